"""Limits of runs of saved graphs, and Ctrl-C while one runs."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspen_jax
import aspen_jax.schedule as sched
from aspen_jax import TileGraph, aspen
from aspen_jax.errors import EngineError, GraphFormatError, InputError
from aspen_jax.graph.arrivals import Arrivals

X = np.full((256, 256), 1e-3, np.float32)


@aspen(strict=True)
def deep(x: Any) -> Any:
    y = x
    for _ in range(300):
        y = jnp.tanh(y) @ x
    return y


@pytest.fixture(scope="module", params=["workers", "the calling thread"])
def graph(request: pytest.FixtureRequest) -> TileGraph:
    """A tenth of a second of many tiles; a graph that says that it costs nothing is walked by the thread that calls."""
    graph = deep.graph(X)
    return graph if request.param == "workers" else dataclasses.replace(graph, costs=np.zeros_like(graph.costs))


@pytest.fixture(autouse=True)
def _no_limits_are_left() -> Iterator[None]:
    yield
    assert repr(aspen_jax.limits()) == "limits(workspace=None, nanoseconds=None)"


def test_a_run_ends_at_its_limit_of_time_and_the_next_goes_on(graph: TileGraph) -> None:
    expected = graph.run(X)[0]
    for run in (graph.run, graph.timeline):
        with (
            aspen_jax.limits(nanoseconds=10**6),
            pytest.raises(EngineError, match=r"longer than the limit of 1000000 nanoseconds.* raise the limit"),
        ):
            run(X)
    with aspen_jax.limits(nanoseconds=10**12):
        np.testing.assert_array_equal(graph.run(X)[0], expected)


def test_no_tile_runs_beyond_a_limit_of_no_time(graph: TileGraph) -> None:
    with aspen_jax.limits(nanoseconds=0), pytest.raises(EngineError, match="0 nanoseconds"):
        graph.run(X)


def test_a_run_that_needs_more_memory_is_refused(graph: TileGraph) -> None:
    expected = graph.run(X)[0]
    with aspen_jax.limits(workspace=graph.workspace_bytes - 1):
        with pytest.raises(EngineError, match=f"the limit is {graph.workspace_bytes - 1}; raise the limit"):
            graph.run(X)
        np.testing.assert_array_equal(deep(X), expected)  # a call is no run of a stranger's graph
    with aspen_jax.limits(workspace=1 << 40):
        np.testing.assert_array_equal(graph.run(X)[0], expected)


def test_limits_hold_until_they_are_lifted_and_nest() -> None:
    aspen_jax.limits(workspace=7)
    with aspen_jax.limits(nanoseconds=9) as inner:
        assert (inner.workspace, inner.nanoseconds) == (7, 9)
        with aspen_jax.limits(workspace=None) as innermost:
            assert (innermost.workspace, innermost.nanoseconds) == (None, 9)
        assert repr(aspen_jax.limits()) == "limits(workspace=7, nanoseconds=9)"
    assert repr(aspen_jax.limits()) == "limits(workspace=7, nanoseconds=None)"
    aspen_jax.limits(workspace=None)


@pytest.mark.parametrize("number", [-1, 1.5, True, "7", 2**63, np.ones(2)])
@pytest.mark.parametrize("name", ["workspace", "nanoseconds"])
def test_what_is_no_limit_is_refused(name: str, number: Any) -> None:
    with pytest.raises(InputError, match=f"the limit {name} is .*pass an integer of 0 or more"):
        aspen_jax.limits(**{name: number})


def run_again_and_again(graph: TileGraph) -> None:
    while True:
        graph.run(X)


@pytest.mark.parametrize("count", range(3))
def test_ctrl_c_ends_a_run_at_its_next_tile(graph: TileGraph, count: int) -> None:
    expected = graph.run(X)[0]
    begin = time.perf_counter()
    graph.run(X)
    whole = time.perf_counter() - begin
    timer = threading.Timer(whole * (0.1 + 0.2 * count), os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_again_and_again(graph)
    timer.join()
    np.testing.assert_array_equal(graph.run(X)[0], expected)


def test_a_handler_of_a_signal_runs_while_a_run_goes_on(graph: TileGraph) -> None:
    """It computes as outside of the run, and may run a graph itself."""
    seen = []

    def handler(*_: object) -> None:
        seen.append((np.float32(1e-40) * np.float32(0.5), graph.run(X)[0]))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        expected = graph.run(X)[0]
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while not seen:
            np.testing.assert_array_equal(graph.run(X)[0], expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen[0][0] == np.float32(5e-41)
    np.testing.assert_array_equal(seen[0][1], expected)


@pytest.mark.parametrize("more", [64, 3 << 30])
def test_a_workspace_that_no_op_writes_is_refused(more: int, tmp_path: Path) -> None:
    graph = deep.graph(X)
    large = dataclasses.replace(graph, workspace_bytes=graph.workspace_bytes + more)
    with pytest.raises(GraphFormatError, match="of which its ops write the first"):
        large.verify()
    large.save(tmp_path / "g")
    with pytest.raises(GraphFormatError, match="of which its ops write the first"):
        TileGraph.load(tmp_path / "g")
    with pytest.raises(GraphFormatError, match="of which its ops write the first"):
        large.run(X)


def linked(latency_ns: int) -> sched.Machine:
    links = [sched.Link("host", "fake", latency_ns, 1e9), sched.Link("fake", "host", latency_ns, 1e9)]
    return sched.Machine([sched.Cpu(1), sched.Fake(1)], links)


MACHINES = {
    "one memory": sched.Machine([sched.Cpu(2)]),
    "two memories": linked(1_000),
}
POLICIES = {"one memory": sched.ReadyPool(), "two memories": sched.LayerCut()}


@pytest.mark.parametrize("memories", MACHINES)
def test_limits_hold_for_runs_of_the_lab(memories: str) -> None:
    graph, machine, policy = deep.graph(X), MACHINES[memories], POLICIES[memories]

    def run() -> Any:
        return sched.run(graph, X, machine=machine, policy=policy).results[0]

    expected = graph.run(X)[0]
    for nanoseconds in (0, 10**6):
        with (
            aspen_jax.limits(nanoseconds=nanoseconds),
            pytest.raises(EngineError, match=rf"longer than the limit of {nanoseconds} nanoseconds.* raise the limit"),
        ):
            run()
    apart = graph.apart.workspace_bytes * 2 + X.nbytes
    least = graph.workspace_bytes if memories == "one memory" else apart
    with aspen_jax.limits(workspace=least - 1), pytest.raises(EngineError, match=f"the limit is {least - 1}; raise the limit"):
        run()
    with aspen_jax.limits(workspace=least + (1 << 24), nanoseconds=10**12):
        np.testing.assert_array_equal(run(), expected)


def test_a_run_of_the_lab_ends_at_its_limit_while_a_copy_is_on_its_way() -> None:
    begin = time.perf_counter()
    with aspen_jax.limits(nanoseconds=10**8), pytest.raises(EngineError, match="longer than the limit"):
        sched.run(deep.graph(X), X, machine=linked(300 * 10**9), policy=sched.LayerCut())
    assert time.perf_counter() - begin < 60


def halves(graph: TileGraph) -> Arrivals:
    return Arrivals(graph, {0: np.array([[[0, 128], [0, 256]], [[128, 256], [0, 256]]])})


@pytest.mark.parametrize("number_there", [0, 1, 2])
def test_limits_of_time_hold_for_runs_whose_inputs_arrive(number_there: int) -> None:
    graph = deep.graph_without_reuse(X)
    arrivals = halves(graph)
    for wait in (lambda run: run.results(60), lambda run: list(run.parts(60))):
        with aspen_jax.limits(nanoseconds=10**6):
            run = arrivals.start(None)
            for piece in range(number_there):
                run.put(0, piece, X[:128])
            with pytest.raises(EngineError, match="longer than the limit of 1000000 nanoseconds"):
                wait(run)
        for piece in range(number_there, 2):
            run.put(0, piece, X[:128])  # too late, and no error
    run = arrivals.start(None)
    for piece in range(2):
        run.put(0, piece, X[:128])
    np.testing.assert_array_equal(run.results(60)[0], graph.run(X)[0])


def test_limits_of_memory_hold_for_runs_whose_inputs_arrive() -> None:
    graph = deep.graph_without_reuse(X)
    limit = graph.workspace_bytes - 1
    with aspen_jax.limits(workspace=limit), pytest.raises(EngineError, match=f"the limit is {limit}; raise the limit"):
        halves(graph).start(None)


def test_a_limit_is_that_from_the_begin_of_an_arriving_run() -> None:
    arrivals = halves(deep.graph_without_reuse(X))
    with aspen_jax.limits(nanoseconds=10**12):
        run = arrivals.start(None)
    with aspen_jax.limits(nanoseconds=0):
        for piece in range(2):
            run.put(0, piece, X[:128])
        run.results(60)


@pytest.mark.parametrize("mode", ["forced", "choosing"])
def test_calls_of_decorated_functions_have_no_limits(mode: str, request: pytest.FixtureRequest) -> None:
    if mode == "choosing":
        request.getfixturevalue("choosing")
    expected = deep(X)
    with aspen_jax.limits(workspace=0, nanoseconds=0):
        for call in (deep, jax.jit(lambda x: deep(x)), deep.stream(X)):
            np.testing.assert_array_equal(call(X), expected)
