"""An inference server under open-loop load: requests enter the Ready Pool at once, beside one queue before the same functions.

Arrival times are drawn beforehand. A latency counts from that time, however late the server takes the request up, so a slow
answer hides none of those behind it (no coordinated omission).
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from aspen_jax.cost.timing import duration, interleaved
from aspen_jax.errors import AspenError, InputError
from aspen_jax.report.cores import share_cores
from aspen_jax.report.record import write_record
from benchmarks.markdown import table
from benchmarks.models.model import Size
from benchmarks.options import File, Names, Sizes
from benchmarks.peers.prepared import Prepared
from benchmarks.peers.sides import SIDES
from benchmarks.together import MOST_AT_ONCE, arrivals, checked_call, serve

_QUEUE, _POOL, _DEADLINES = "one queue, first come first served", "Ready Pool at once", "Ready Pool at once, by deadlines"
_EQUAL, _SHORT, _LONG = "equal", "short", "long"
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_CALLS = 9  # of which the median says how long a request takes alone
_SURE = 1.96  # standard deviations of a confidence of 95%


def serving(
    short: str = "squeezenet1_1",
    long: str = "resnet50",
    loads: tuple[float, ...] = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
    shorts_to_a_long: int = 10,
    requests: int = 1000,
    rounds: int = 8,
    slack: float = 5.0,
    size: Sizes = Size(),  # noqa: B008 - immutable
    peers: Names = (),
    json: File = None,
) -> int:
    """Latency of requests at several loads: equal ones, and short ones beside long ones, which have keys.

    Keys are a priority for short requests, or for each request a deadline.

    The load is a share of the capacity of one queue before the decorated functions. The requests come in rounds. In each all
    servers, in turn, get the same requests at the same times. Brackets hold 95% confidence intervals.

    Args:
        short: the model of equal requests, and of short ones.
        long: the model of long requests.
        loads: shares of the capacity.
        shorts_to_a_long: how many short requests come to one long one.
        requests: about how many come at each load, in all rounds together.
        rounds: how often each server has its turn at each load. In more rounds a change of the machine's speed meets all of them.
        slack: how many times its own time after its arrival a request is due, where requests have deadlines.
        size: of the inputs of both models.
        peers: who else serves, each behind a queue of its own, as in the benchmark `peers`: jax.jit, "ONNX Runtime".
        json: where to write the figures as well.
    """
    if not loads or not all(0 < load < 1 for load in loads):
        raise InputError(f"loads of {loads} are to be served; take some of more than 0 and less than 1")
    if min(requests, rounds, shorts_to_a_long) < 1:
        raise InputError(
            f"{requests} requests in {rounds} rounds, {shorts_to_a_long} short ones to a long one: take at least 1 of each"
        )
    if not 0 < slack < math.inf:
        raise InputError(f"a request is due {slack} times its own time after its arrival; take 5, say")
    if unknown := set(peers) - set(SIDES):
        raise InputError(f"there is no side {min(unknown)!r}; take {', '.join(SIDES)}")
    workers = share_cores()
    calls = {_SHORT: checked_call(short, size), _LONG: checked_call(long, size)}
    ahead = checked_call(short, size, priority=1)
    seconds = {kind: timing.median for kind, timing in interleaved(calls, _CALLS).items()}
    servers = {_QUEUE: _Server(calls, 1), _POOL: _Server({**calls, _SHORT: ahead}, MOST_AT_ONCE)}
    named = {_SHORT: short, _LONG: long}
    due = {kind: checked_call(model, size, deadline=slack * seconds[kind]) for kind, model in named.items()}
    servers[_DEADLINES] = _Server(due, MOST_AT_ONCE)
    servers |= {f"{peer}, one queue": _Server(own, 1) for peer, own in _of_peers(peers, named, size, workers)}
    # Equal requests have no keys, so none goes first.
    alike = {name: server for name, server in servers.items() if name != _DEADLINES} | {_POOL: _Server(calls, MOST_AT_ONCE)}
    equal = {name: _Server({_EQUAL: server.calls[_SHORT]}, server.at_once) for name, server in alike.items()}
    mixes = {
        "equal requests": ({_EQUAL: 1}, equal),
        "short and long requests": ({_SHORT: shorts_to_a_long, _LONG: 1}, servers),
    }
    rows, quotients, record = [], [], []
    for load in tqdm(loads, desc="loads", disable=None):
        for mix, (shares, who) in mixes.items():
            served = _served(shares, load, requests, rounds, who)
            for server, (latencies, rate) in served.items():
                for kind, values in latencies.items():
                    rows.append((f"{load:g}", mix, server, kind, *map(_cell, quantiles(values)), f"{rate:.1f}"))
                record.append({"load": load, "mix": mix, "server": server, "latencies_s": latencies, "requests_per_s": rate})
            quotients += [(f"{load:g}", mix, *cells) for cells in _quotients(served)]
    header = "load", "requests", "server", "kind", *(f"p{100 * q:g}" for q in _QUANTILES), "a second"
    print("\n".join([*table(header, rows), "", f"By {_QUEUE}", "", *table(header, quotients)]), flush=True)
    if json is not None:
        write_record(json, {"benchmark": "serving", "alone_s": seconds, "served": record})
    return 0


def _quotients(served: Mapping[str, tuple[Mapping[str, Sequence[float]], float]]) -> Iterator[tuple[str, ...]]:
    """By server and kind of requests: each quantile of a Ready Pool by that of the queue, and requests a second likewise."""
    queued, slow = served[_QUEUE]
    for server in (_POOL, _DEADLINES):
        if server not in served:
            continue
        pooled, fast = served[server]
        for kind, values in queued.items():
            sides = [[item[0] for item in quantiles(side)] for side in (pooled[kind], values)]
            yield server, kind, *(f"{a / b:.2f}" for a, b in zip(*sides, strict=True)), f"{fast / slow:.2f}"


class _Server(NamedTuple):
    """A call for each kind of requests, and how many run at once."""

    calls: Mapping[str, Callable[[], Any]]
    at_once: int


def _of_peers(
    peers: Sequence[str], models: Mapping[str, str], size: Size, workers: int
) -> Iterator[tuple[str, dict[str, Callable[[], Any]]]]:
    """For each peer a call of each model, made ready as the benchmark `peers` does it.

    Raises:
        AspenError: a package is missing, or a model cannot be exported.
    """
    for peer in peers:
        side = SIDES[peer]
        if (remedy := side.remedy()) is not None:
            raise AspenError(f"{peer} cannot serve: {remedy}")
        calls = {}
        for kind, model in models.items():
            with tempfile.TemporaryDirectory() as folder:
                prepared = Prepared(Path(folder), model, size)
                prepared.make(workers, "weights")
                if side.onnx:
                    prepared.make(workers, "onnx")
                calls[kind] = side.start(prepared, workers)
                calls[kind]()  # what is compiled or read at first is ready
        yield peer, calls


def _served(
    shares: Mapping[str, int], load: float, requests: int, rounds: int, servers: Mapping[str, _Server]
) -> dict[str, tuple[dict[str, list[float]], float]]:
    """For each server the latencies by kind, and how many requests it answered a second.

    What the queue can serve is found at the beginning of each round.
    """
    names = list(servers)
    latencies: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in shares} for name in names}
    seconds = dict.fromkeys(names, 0.0)
    count = 0
    for number in range(rounds):
        alone = interleaved(servers[_QUEUE].calls, _CALLS)
        round_seconds = sum(share * alone[kind].median for kind, share in shares.items())
        rates = {kind: load * share / round_seconds for kind, share in shares.items()}
        stream = arrivals(rates, requests / rounds / sum(rates.values()), seed=number)
        count += len(stream)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found, total = serve(stream, servers[name].calls, servers[name].at_once)
            seconds[name] += total
            for kind, values in found.items():
                latencies[name][kind] += values
    return {name: (latencies[name], count / seconds[name]) for name in names}


def quantiles(latencies: Sequence[float]) -> list[tuple[float, float, float]]:
    """Of each of p50, p90, p99 and p99.9 the value, and the ends of its 95% confidence interval by order statistics.

    An end that lies beyond all values is infinite, so that few requests promise nothing of the tail.
    """
    values = np.sort(latencies)
    count = len(values)
    result = []
    for q in _QUANTILES:
        spread = _SURE * math.sqrt(count * q * (1 - q))
        low, high = math.floor(count * q - spread), math.ceil(count * q + spread)  # counted from 1
        ends = float(values[max(low - 1, 0)]), float(values[high - 1]) if high <= count else math.inf
        result.append((float(np.quantile(values, q)), *ends))
    return result


def _cell(value: tuple[float, float, float]) -> str:
    middle, low, high = value
    return f"{duration(middle)} [{duration(low)}, {duration(high) if high < math.inf else '?'}]"
