"""Runs that begin before their inputs are complete: any order of pieces gives the bits of a plain run, and parts come early."""

import gc
import itertools
import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import num_workers, set_num_workers
from aspen_jax.errors import EngineError, InputError
from aspen_jax.graph.arrivals import Arrivals, whole_box
from tests.content import seed_of
from tests.random_programs import random_program
from tests.tile_graphs import build_with_random_tiles, small_net

SECONDS = 60.0  # a bound against hangs
SEED = seed_of(__name__)


@pytest.fixture(params=[1, 3])
def workers(request):
    before = num_workers()
    set_num_workers(request.param)
    yield
    set_num_workers(before)


def random_pieces(rng, shape):
    """The cells of a random grid, in random order."""
    cuts = [np.union1d(np.flatnonzero(rng.random(max(extent, 1)) < 0.4), (0, extent)) for extent in shape]
    edges = [np.stack([cut[:-1], cut[1:]], axis=1).tolist() for cut in cuts]
    cells = list(itertools.product(*edges))
    return rng.permutation(np.array(cells, np.int64).reshape(len(cells), len(shape), 2))


def cut_out(array, box):
    return array[(*(slice(low, high) for low, high in box), ...)]


def random_inputs(rng, graph):
    count = len(graph.operands) - len(graph.constants)
    inputs = []
    for shape, dtype in map(graph.value, graph.operands[:count]):
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        inputs.append(np.asarray(values, dtype))
        if dtype.kind == "f" and inputs[-1].size:
            special = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1.0])
            inputs[-1].reshape(-1)[rng.integers(inputs[-1].size)] = special
    return inputs


def assert_same_bits(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("number", range(25))
def test_any_order_of_pieces_gives_the_bits_of_a_plain_run(number, workers):
    rng = np.random.default_rng((SEED, number))
    graph = build_with_random_tiles(random_program(SEED + number, steps=10), SEED + number, reuse=True)
    inputs = random_inputs(rng, graph)
    plain = graph.run(*inputs)
    chosen = [k for k in range(len(inputs)) if rng.random() < 0.7]
    arrivals = Arrivals(graph, {k: random_pieces(rng, inputs[k].shape) for k in chosen})
    for _ in range(3):
        run = arrivals.start(
            *(None if k in chosen else x for k, x in enumerate(inputs)), order=rng.choice(["deep first", "shallow first"])
        )
        to_come = [(k, piece) for k in chosen for piece in range(len(arrivals.pieces[k]))]
        rng.shuffle(to_come)
        seen = [np.zeros(result.shape, bool) for result in plain]

        def bring(share, run=run):
            for k, piece in share:
                run.put(k, piece, cut_out(inputs[k], arrivals.pieces[k][piece]))

        threads = [threading.Thread(target=bring, args=(to_come[i::2],)) for i in range(2)]
        for thread in threads:
            thread.start()
        for part, values in itertools.chain.from_iterable(run.parts(SECONDS)):
            box = arrivals.parts[part.result][part.part]
            assert values.tobytes() == cut_out(plain[part.result], box).tobytes()
            there = cut_out(seen[part.result], box)
            assert not there.any()
            there[...] = True
        for thread in threads:
            thread.join()
        assert all(result.all() for result in seen)
        assert_same_bits(run.results(SECONDS), plain)


def test_parts_come_before_the_last_piece():
    graph = small_net()
    rng = np.random.default_rng(SEED)
    inputs = random_inputs(rng, graph)
    plain = graph.run(*inputs)
    height = inputs[0].shape[1]
    rows = np.array([[(0, 1), (row, row + 1), (0, 32), (0, 8)] for row in range(height)])
    arrivals = Arrivals(graph, {0: rows})
    run = arrivals.start(None, inputs[1])
    for row in range(height - 1):
        run.put(0, row, inputs[0][:, row : row + 1])
    parts = itertools.chain.from_iterable(run.parts(SECONDS))
    early = [next(parts) for _ in range(3)]  # none of these waits for the last row
    with pytest.raises(EngineError, match=r"within 0\.01 seconds"):
        run.results(0.01)
    run.put(0, height - 1, inputs[0][:, height - 1 :])
    parts = [*early, *parts]
    assert len(parts) == len(arrivals.parts[0]) > 3
    for part, values in parts:
        assert values.tobytes() == cut_out(plain[0], arrivals.parts[0][part.part]).tobytes()
    assert_same_bits(run.results(SECONDS), plain)


def test_pieces_and_inputs_that_do_not_fit_are_refused():
    graph = small_net()
    x, w = random_inputs(np.random.default_rng(SEED), graph)
    whole = whole_box(x.shape)
    for pieces, message in [
        ({2: whole}, "input 2"),
        ({-1: whole}, "input -1"),
        ({0: whole[:, :3]}, "comes in pieces"),
        ({0: whole.astype(float)}, "comes in pieces"),
        ({0: np.concatenate([whole, whole])}, "each element"),
        ({0: whole[:0]}, "each element"),
        ({0: whole + 1}, "each element"),
    ]:
        with pytest.raises(InputError, match=message):
            Arrivals(graph, pieces)
    arrivals = Arrivals(graph, {0: whole})
    with pytest.raises(InputError, match="2 inputs"):
        arrivals.start(None)
    with pytest.raises(InputError, match="there is no order"):
        arrivals.start(None, w, order="none")
    run = arrivals.start(None, w)
    for index, piece in [(1, 0), (0, 1), (0, -1)]:
        with pytest.raises(InputError, match="waits for no piece"):
            run.put(index, piece, x)
    for wrong in (x[:, 1:], x.astype(np.float64)):
        with pytest.raises(InputError, match="the run waits for"):
            run.put(0, 0, wrong)
    run.put(0, 0, x)
    with pytest.raises(InputError, match="arrived already"):
        run.put(0, 0, x)
    assert_same_bits(run.results(SECONDS), graph.run(x, w))


def test_a_run_can_be_cancelled_and_dropped():
    graph = small_net()
    x, w = random_inputs(np.random.default_rng(SEED), graph)
    halves = np.repeat(whole_box(x.shape), 2, axis=0)
    halves[0, 1, 1] = halves[1, 1, 0] = 20
    arrivals = Arrivals(graph, {0: halves})
    run = arrivals.start(None, w)
    run.put(0, 0, x[:, :20])
    run.cancel("the peer is gone")
    with pytest.raises(EngineError, match="the peer is gone"):
        run.results(SECONDS)
    with pytest.raises(EngineError, match="the peer is gone"):
        list(run.parts(SECONDS))
    run.put(0, 1, x[:, 20:])  # whoever brings it cannot know yet
    for _ in range(40):  # more than may wait in the pool at once
        run = arrivals.start(None, w)
        run.put(0, 0, x[:, :20])
    del run
    gc.collect()
    assert_same_bits(graph.run(x, w), graph.run(x, w))


def test_more_runs_than_have_a_place_wait_their_turn():
    graph = small_net()
    x, w = random_inputs(np.random.default_rng(SEED), graph)
    plain = graph.run(x, w)
    arrivals = Arrivals(graph, {0: whole_box(x.shape)})
    runs = [arrivals.start(None, w) for _ in range(80)]
    assert_same_bits(graph.run(x, w), plain)  # they keep no other run from the pool
    for run in reversed(runs):
        run.put(0, 0, x)
    for run in runs:
        assert_same_bits(run.results(SECONDS), plain)


def test_inputs_of_odd_shapes():
    from aspen_jax import aspen

    for function, inputs in [
        (lambda x: (x + 1,), (np.float32(3),)),
        (lambda x: (jnp.tanh(x), x * 2), (np.zeros((0, 3), np.float32),)),
        (lambda x: (x.reshape(6, 4) @ jnp.ones((4, 5)),), (np.random.default_rng(SEED).standard_normal((2, 3, 4), np.float32),)),
    ]:
        graph = aspen(function, strict=True).graph(*inputs)
        plain = graph.run(*inputs)
        boxes = whole_box(np.shape(inputs[0]))
        arrivals = Arrivals(graph, {0: boxes if np.size(inputs[0]) else boxes[:0]})
        run = arrivals.start(None)
        if np.size(inputs[0]):
            run.put(0, 0, np.asarray(inputs[0]))
        assert_same_bits(run.results(SECONDS), plain)
        assert jax.tree.all(jax.tree.map(np.array_equal, run.results(), plain))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_does_not_touch_its_parents_run():
    graph = small_net()
    x, w = random_inputs(np.random.default_rng(SEED), graph)
    arrivals = Arrivals(graph, {0: whole_box(x.shape)})
    run = arrivals.start(None, w)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that threads exist
        child = os.fork()
    if child == 0:
        signal.alarm(60)  # whoever waits for ever is killed
        refused = 0
        for act in (lambda: run.put(0, 0, x), lambda: run.results(SECONDS), lambda: run.results()):
            try:
                act()
            except InputError as error:
                refused += "forked" in str(error)
        del run, act
        os._exit(0 if refused == 3 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run.put(0, 0, x)
    assert_same_bits(run.results(SECONDS), graph.run(x, w))
