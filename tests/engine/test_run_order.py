"""Priorities and deadlines of runs: how they reach the engine, and that it keeps to them."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import _engine, aspen, num_workers, set_num_workers
from aspen_jax.errors import InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.runtime import run_key


@pytest.fixture
def one_worker():
    before = num_workers()
    set_num_workers(1)
    yield
    set_num_workers(before)


def chain(x, length=40):
    for _ in range(length):
        x = jnp.tanh(x @ x)
    return x


def short(x):
    return jnp.tanh(x @ x)


X = np.full((768, 768), 1e-3, np.float32)


@pytest.mark.parametrize(
    ("priority", "deadline", "seconds"),
    [(0, None, 0), (None, 1, 0), (1, None, -1), (-2, None, 2), (0, 0.25, -0.75), (3, 2, -2)],
)
def test_a_run_key_is_a_time(priority, deadline, seconds):
    assert run_key(priority, deadline) == seconds * 1e9


@pytest.mark.parametrize("options", [{"priority": 1.5}, {"priority": True}, {"priority": 10**7}, {"priority": "high"}])
def test_what_is_no_priority_is_refused(options):
    with pytest.raises(InputError, match="priority="):
        aspen(short, **options)
    with pytest.raises(InputError, match="priority="):
        aspen(short).graph(X).run(X, **options)


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), True, "soon"])
def test_what_is_no_deadline_is_refused(deadline):
    with pytest.raises(InputError, match="deadline="):
        aspen(short, deadline=deadline)
    with pytest.raises(InputError, match="deadline="):
        aspen(short).graph(X).run(X, deadline=deadline)


def test_a_graph_has_the_key_of_its_function(tmp_path):
    graph = aspen(short, priority=2).graph(X)
    assert graph.fields["run_key"].tolist() == [-2_000_000_000]
    graph.save(tmp_path / "graph")
    assert TileGraph.load(tmp_path / "graph") == graph
    assert not aspen(short).graph(X).fields
    assert graph.with_run_key(0) == aspen(short).graph(X)
    np.testing.assert_array_equal(graph.run(X)[0], graph.run(X, priority=-1, deadline=0.5)[0])


def test_functions_of_two_priorities_under_one_jit():
    urgent, patient = aspen(short, priority=1, strict=True), aspen(short, deadline=10, strict=True)

    @jax.jit
    def both(x):
        return urgent(x) + patient(x)

    text = both.lower(X).as_text()
    graphs = [line for line in text.splitlines() if "aspen_run" in line]
    assert len(graphs) == 2
    assert len({line.partition("graph = ")[2] for line in graphs}) == 2
    np.testing.assert_allclose(both(X), 2 * np.asarray(short(X)), rtol=1e-4)
    np.testing.assert_allclose(jax.vmap(urgent)(X[None])[0], short(X), rtol=1e-4)


@pytest.mark.parametrize(("options", "interrupts"), [({}, False), ({"priority": 1}, True), ({"deadline": 0.01}, True)])
def test_a_call_that_goes_first_interrupts_another(one_worker, options, interrupts):
    long_call, short_call = (jax.jit(aspen(item, strict=True, **kept)) for item, kept in ((chain, {}), (short, options)))
    jax.block_until_ready((long_call(X), short_call(X)))
    recorder = _engine.Recorder(100_000)
    recorder.start()
    thread = threading.Thread(target=lambda: jax.block_until_ready(long_call(X)))
    thread.start()
    time.sleep(0.1)
    jax.block_until_ready(short_call(X))
    thread.join()
    records, *_ = recorder.stop()
    rows = np.frombuffer(records, np.int64).reshape(-1, 6)
    first = rows[:, 1] == rows[0, 1]
    begin, end = rows[~first, 4].min(), rows[~first, 5].max()
    between = (rows[first, 4] > begin) & (rows[first, 4] < end)
    assert not between.any()
    assert (rows[first, 5].max() > end) == interrupts
