"""An inference server under open-loop load: requests enter the Ready Pool at once, beside one queue before the same functions.

Arrival times are drawn beforehand. A latency counts from that time, however late the server takes the request up, so a slow
answer hides none of those behind it (no coordinated omission).
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from aspen_jax.cost.timing import duration, interleaved
from aspen_jax.errors import InputError
from aspen_jax.report.cores import share_cores
from benchmarks import servers
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.markdown import table
from benchmarks.options import File, Names, Sizes
from benchmarks.servers import MOST_AT_ONCE, PEERS, Server, checked_call
from benchmarks.zoo.model import Size

_QUEUE, _POOL, _DEADLINES = "one queue, first come first served", "Ready Pool at once", "Ready Pool at once, by deadlines"
_ARRIVAL = "Ready Pool at once, in order of arrival"
_EQUAL, _SHORT, _LONG = "equal", "short", "long"
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_CALLS = 9  # of which the median says how long a request takes alone
_SURE = 1.96  # standard deviations of a confidence of 95%

# How many of each kind come, and who answers them.
_Mix = tuple[Mapping[str, int], Mapping[str, Server]]


@benchmark
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
) -> Run:
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
        peers: who else serves: sides of the benchmark `peers` behind queues of their own, as jax.jit or "ONNX Runtime"; the
            decorated functions in "a process a core", or in as many replicas of "Ray Serve". Ray has processes of its own,
            which compute while others are measured.
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
    if unknown := set(peers) - set(PEERS):
        raise InputError(f"there is no server {min(unknown)!r}; take {', '.join(PEERS)}")
    with contextlib.ExitStack() as stack:
        named = {_SHORT: short, _LONG: long}
        cores = share_cores()
        theirs = {peer: stack.enter_context(servers.peer(peer, named, size, cores)) for peer in peers}
        calls = {kind: checked_call(model, size) for kind, model in named.items()}
        seconds = {kind: timing.median for kind, timing in interleaved(calls, _CALLS).items()}
        due = {kind: checked_call(model, size, deadline=slack * seconds[kind]) for kind, model in named.items()}
        equal = {_QUEUE: Server(calls, 1), _POOL: Server(calls, MOST_AT_ONCE), **theirs}
        ahead = Server({**calls, _SHORT: checked_call(short, size, priority=1)}, MOST_AT_ONCE)
        mixes = {
            # Equal requests have no keys, so none goes first.
            "equal requests": (
                {_EQUAL: 1},
                {name: Server({_EQUAL: server.calls[_SHORT]}, server.at_once) for name, server in equal.items()},
            ),
            "short and long requests": (
                {_SHORT: shorts_to_a_long, _LONG: 1},
                {_QUEUE: equal[_QUEUE], _ARRIVAL: equal[_POOL], _POOL: ahead, _DEADLINES: Server(due, MOST_AT_ONCE), **theirs},
            ),
        }
        alone = [{"kind": kind, "alone": median} for kind, median in seconds.items()]
        yield Table("A request alone", {"kind": "", "alone": "s"}, alone, printed="")
        yield from _measured(loads, requests, rounds, mixes)


def _measured(loads: Sequence[float], requests: int, rounds: int, mixes: Mapping[str, _Mix]) -> Iterator[Table]:
    """Latencies by load, mix, server and kind, and quotients of them."""
    names = [f"p{100 * q:g}" for q in _QUANTILES]
    text = {"load": "", "requests": "", "server": "", "kind": ""}
    ends = {f"{name}{end}": "s" for name in names for end in ("", " from", " to")}
    latency = Table("", {**text, **ends, "a second": ".1f"})
    quotient = Table(f"By {_QUEUE}", {**text, **dict.fromkeys([*names, "a second"], "")})
    printed = []
    for load in tqdm(loads, desc="loads", disable=None):
        for mix, (shares, who) in mixes.items():
            served = _served(shares, load, requests, rounds, who)
            for server, (latencies, rate) in served.items():
                for kind, values in latencies.items():
                    found = quantiles(values)
                    latency.add(f"{load:g}", mix, server, kind, *itertools.chain(*found), rate, latencies_s=values)
                    printed.append((f"{load:g}", mix, server, kind, *map(_cell, found), f"{rate:.1f}"))
            for cells in _quotients(served):
                quotient.add(f"{load:g}", mix, *cells)
    header, quotients = list(quotient.columns), [list(row.values()) for row in quotient.rows]
    latency.printed = "\n".join([*table(header, printed), ""])
    quotient.printed = "\n".join([quotient.title, "", *table(header, quotients)])
    yield from (latency, quotient)


def _quotients(served: Mapping[str, tuple[Mapping[str, Sequence[float]], float]]) -> Iterator[tuple[str, ...]]:
    """Quotients by server and kind: each quantile, and requests a second, of a Ready Pool by those of the queue."""
    queued, slow = served[_QUEUE]
    for server in (_ARRIVAL, _POOL, _DEADLINES):
        if server not in served:
            continue
        pooled, fast = served[server]
        for kind, values in queued.items():
            sides = [[item[0] for item in quantiles(side)] for side in (pooled[kind], values)]
            yield server, kind, *(f"{a / b:.2f}" for a, b in zip(*sides, strict=True)), f"{fast / slow:.2f}"


def _served(
    shares: Mapping[str, int], load: float, requests: int, rounds: int, servers: Mapping[str, Server]
) -> dict[str, tuple[dict[str, list[float]], float]]:
    """The latencies of each server in seconds by kind, and how many requests it answered a second.

    What the queue can serve is found at the beginning of each round, when no request waits.
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


class Request(NamedTuple):
    """A call that comes at a time."""

    arrival: float
    kind: str


def arrivals(rates: Mapping[str, float], seconds: float, seed: int = 1) -> list[Request]:
    """Requests of each kind, so many a second, at random times within so many seconds; the last comes after them."""
    generator = random.Random(seed)
    requests = []
    for kind, rate in rates.items():
        now = 0.0
        while now < seconds:
            now += generator.expovariate(rate)
            requests.append(Request(now, kind))
    return sorted(requests)


def serve(
    requests: Sequence[Request], calls: Mapping[str, Callable[[], Any]], at_once: int
) -> tuple[dict[str, list[float]], float]:
    """Answer requests when they come, so many at once, the others behind them in the order in which they came.

    Returns:
        the seconds from the arrival to the answer of each kind of requests, and those until all were answered.
    """
    latencies: dict[str, list[float]] = {kind: [] for kind in calls}

    def answer(request: Request) -> None:
        calls[request.kind]()
        latencies[request.kind].append(time.perf_counter() - start - request.arrival)

    with ThreadPoolExecutor(at_once) as threads:
        start = time.perf_counter()
        answers = []
        for request in requests:
            time.sleep(max(0.0, start + request.arrival - time.perf_counter()))
            answers.append(threads.submit(answer, request))
        for item in answers:
            item.result()
    return latencies, time.perf_counter() - start


def quantiles(latencies: Sequence[float]) -> list[tuple[float, float, float]]:
    """The values of p50, p90, p99 and p99.9, each with the ends of its 95% confidence interval by order statistics.

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
