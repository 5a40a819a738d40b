"""Models that share the workers: two at once against one after the other, and a short one beside a long one under load."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from aspen_jax import aspen
from aspen_jax.cost.timing import Timing, interleaved
from aspen_jax.errors import AspenError, InputError
from aspen_jax.report.cores import share_cores
from aspen_jax.report.difference import largest_difference
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File, Models
from benchmarks.zoo.model import Model, Size

_IN_TURN, _AT_ONCE = "in turn", "at once"
_QUEUE, _ARRIVAL, _PRIORITY = "one at a time, first come first served", "at once, in order of arrival", "at once, short first"
MOST_AT_ONCE = 48
_TOLERANCE = 1e-3


@benchmark
def together(
    models: Models = ("resnet50", "bert-base"),
    short: str = "squeezenet1_1",
    rounds: int = 15,
    load: float = 0.8,
    seconds: float = 15.0,
    json: File = None,
) -> Run:
    """Two models at once against one after the other; then short requests beside long ones, by three kinds of servers.

    Requests come at random times (Poisson), the same for all servers. The long model is the first; half of the load is its.

    Args:
        models: names in the zoo: each of the others runs together with the first one, and the first with itself.
        short: the model whose requests are short.
        rounds: how often two models are timed.
        load: which share of the machine the requests ask for.
        seconds: how long requests come in; 0 leaves this part out.
        json: where to write the figures as well.
    """
    if not 0 < load < 1:
        raise InputError(f"a load of {load} is to be served; take more than 0 and less than 1")
    if not 0 <= seconds < float("inf"):
        raise InputError(f"{seconds} seconds is no time to measure for; take 15, say")
    share_cores()
    first = checked_call(models[0])
    for name in (*models[1:], models[0]):
        second = first if name == models[0] else checked_call(name)
        timings = _timed(first, second, rounds)
        table = Table(f"{models[0]} and {name}", {"": "", "min": "s", "median": "s"})
        for side, timing in timings.items():
            table.add(side, timing.minimum, timing.median, samples_s=timing.samples)
        yield table
        yield f"at once takes {timings[_AT_ONCE].minimum / timings[_IN_TURN].minimum:.3f} of the time in turn\n"
    if seconds:
        yield _served(first, short, load, seconds)


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


def checked_call(name: str, size: Size | None = None, **options: Any) -> Callable[[], Any]:
    """A call of a decorated model, whose results were compared with the undecorated one's; its own size if None."""
    model = zoo.build(name, size or Size()).calibrated()
    wanted = jax.jit(model.apply)(*model.arguments)
    return _agreeing(model, wanted, jax.jit(aspen(model.apply, **options)))


def _agreeing(model: Model, wanted: Any, function: Callable[..., Any]) -> Callable[[], Any]:
    if largest_difference(function(*model.arguments), wanted) > _TOLERANCE:  # infinite where only one side is NaN
        raise AspenError(f"{model.name}: the decorated function gives other results; run `python -m benchmarks accuracy`")
    return lambda: jax.block_until_ready(function(*model.arguments))


def _timed(first: Callable[[], Any], second: Callable[[], Any], rounds: int) -> dict[str, Timing]:
    with ThreadPoolExecutor(2) as threads:

        def at_once() -> None:
            for item in [threads.submit(first), threads.submit(second)]:
                item.result()

        def in_turn() -> None:
            for call in (first, second):
                threads.submit(call).result()

        return interleaved({_IN_TURN: in_turn, _AT_ONCE: at_once}, rounds)


def _served(long: Callable[[], Any], short: str, load: float, seconds: float) -> Table:
    by_arrival, ahead = checked_call(short), checked_call(short, priority=1)
    alone = interleaved({"short": by_arrival, "long": long}, 9)
    rates = {kind: load / 2 / timing.median for kind, timing in alone.items()}
    requests = arrivals(rates, seconds)
    servers = {
        _QUEUE: ({"short": by_arrival, "long": long}, 1),
        _ARRIVAL: ({"short": by_arrival, "long": long}, MOST_AT_ONCE),
        _PRIORITY: ({"short": ahead, "long": long}, MOST_AT_ONCE),
    }
    columns = [f"{kind} {quantile}" for kind in ("short", "long") for quantile in ("p50", "p99")]
    table = Table(f"load {load}, {len(requests)} requests", {"": "", **dict.fromkeys(columns, "s"), "a second": ".1f"})
    for name, (calls, at_once) in servers.items():
        latencies, total = serve(requests, calls, at_once)
        quantiles = [float(np.quantile(latencies[kind], q)) for kind in ("short", "long") for q in (0.5, 0.99)]
        table.add(name, *quantiles, len(requests) / total, latencies_s=latencies, total_s=total)
    return table
