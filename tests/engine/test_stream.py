"""A stream computes what a change reaches, nothing else, and gives every bit that a run of all tiles gives."""

from __future__ import annotations

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import EngineError, InputError, UnsupportedError, apu, aspen
from aspen_jax.api.stream import Reach
from aspen_jax.graph.incremental import Incremental
from aspen_jax.passes import run_passes
from tests.content import seed_of
from tests.random_programs import random_program
from tests.tile_graphs import build_with_random_tiles
from tests.tiled import TINY_TILES
from tests.tracing import traced

SEED = seed_of(__name__)


def normal(random, *shape):
    return random.normal(size=shape).astype(np.float32)


def kept(function, *arguments):
    """The graph of a function in tiny tiles, with memory of its own for each value, and its inputs."""
    program, inputs = traced(function, *arguments)
    program = run_passes(program)
    ops = tuple(op.replace(in_place=False) for op in program.ops)
    return apu.build(program.replace(ops=ops), 2, TINY_TILES, reuse=False), [np.asarray(item) for item in inputs]


def made(make):
    """`kept` of what makes a function and its arguments."""
    function, arguments = make(np.random.default_rng(SEED))
    return kept(function, *arguments)


def bits(arrays):
    return [np.asarray(item).tobytes() for item in arrays]


def reached_by(graph, olds, news):
    """The tiles that a change reaches, element by element and edge by edge."""
    from aspen_jax.apu.verify import reads_of_graph

    program, _, reads = reads_of_graph(graph)
    reached = np.zeros(graph.num_tiles, bool)
    for of_op in reads:
        for read in of_op:
            if read.value not in program.inputs:
                continue
            index = program.inputs.index(read.value)
            for tile, box in zip(read.tiles, read.boxes, strict=True):
                part = tuple(slice(*limits) for limits in box)
                reached[tile] |= olds[index][part].tobytes() != news[index][part].tobytes()
    parents, children = graph.dag.edges()
    for _ in range(graph.num_tiles):
        more = children[reached[parents] & ~reached[children]]
        if not more.size:
            break
        reached[more] = True
    return reached


def changes(random, inputs):
    """Nothing; one element; a box; what is no number; another zero; everything."""

    def with_box(array, value):
        array = array.copy()
        begin = [random.integers(0, extent) for extent in array.shape]
        box = tuple(slice(at, random.integers(at, extent) + 1) for at, extent in zip(begin, array.shape, strict=True))
        array[box] = value(array[box].shape)
        return array

    index = random.integers(len(inputs))

    def one(value):
        array = inputs[index]
        if array.size == 0:
            return inputs
        changed = with_box(array, lambda shape: np.asarray(value(shape)).astype(array.dtype))
        return [*inputs[:index], changed, *inputs[index + 1 :]]

    numbers = [np.float32(3)] if any(item.dtype.kind in "iub" for item in inputs) else [np.nan, -0.0, np.inf]
    yield list(inputs)
    yield one(lambda shape: np.abs(random.normal(size=shape)))
    yield one(lambda shape: np.full(shape, numbers[random.integers(len(numbers))]))
    yield [np.asarray(np.abs(random.normal(size=item.shape))).astype(item.dtype) for item in inputs]


def check(graph, inputs):
    """A chain of changes, each compared with a run of all tiles."""
    random = np.random.default_rng(SEED)
    stream = Incremental(graph)
    results, ran = stream.run(inputs)
    assert ran.all()
    assert bits(results) == bits(graph.run(inputs))
    for news in changes(random, inputs):
        results, ran = stream.run(news)
        assert bits(results) == bits(graph.run(news)), SEED
        np.testing.assert_array_equal(ran, reached_by(graph, inputs, news))
        inputs = news


# Bits


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    seed = SEED % 100_000 + seed
    program = random_program(seed, rewrites=False)
    random = np.random.default_rng(seed)
    inputs = [np.asarray(3 * random.standard_normal(value.shape)).astype(value.dtype) for value in program.inputs]
    check(build_with_random_tiles(program, seed, reuse=False), inputs)


def convolutions(random):
    kernels = [normal(random, 3, 3, 8, 8) / 5 for _ in range(3)]  # by Winograd's algorithm

    def fun(x):
        for kernel in kernels:
            x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    return fun, (normal(random, 1, 24, 20, 8),)


def sums_of_parts(random):
    w = normal(random, 4096, 24)  # a long sum is cut into parts
    return (lambda x: jax.nn.softmax(x @ w) + x[:, :24]), (normal(random, 6, 4096),)


def large_product(random):
    w = normal(random, 512, 512)  # by Strassen's algorithm
    return (lambda x: x @ w), (normal(random, 512, 512),)


def attention(random):
    def fun(q, k, v):
        return jax.nn.softmax(q @ k.T / 4) @ v

    return fun, tuple(normal(random, 40, 16) for _ in range(3))


def in_place(random):
    def fun(x, rows, w, c):
        return jnp.cumsum(x, 0).at[2:5].set(rows) * 2, 0.5 * (x @ w) + 2.0 * jnp.cumsum(c, 0), x

    return fun, (normal(random, 9, 8), normal(random, 3, 8), normal(random, 8, 8), normal(random, 9, 8))


def integers(random):
    def fun(table, rows, narrow):
        return table[rows], jnp.sort(rows), narrow * 2, jnp.argmax(table, 1)

    arrays = normal(random, 20, 6), np.arange(7, dtype=np.int32), normal(random, 5, 5).astype(jnp.bfloat16)
    return fun, arrays


@pytest.mark.parametrize("make", [convolutions, sums_of_parts, large_product, attention, in_place, integers])
def test_functions(make):
    check(*made(make))


# The halo


def test_a_change_spreads_by_the_halo_of_each_layer():
    random = np.random.default_rng(SEED)
    kernel = normal(random, 3, 3, 1, 1)

    def fun(x):
        for _ in range(4):
            x = jnp.tanh(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
        return x

    graph, (x,) = kept(fun, normal(random, 1, 64, 64, 1))
    stream = Incremental(graph)
    stream.run([x])
    x = x.copy()
    x[0, 32, 32, 0] += 1
    _, ran = stream.run([x])
    reach = Reach.of(graph, ran)
    shares = [op.share for op in reach.ops]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1
    assert reach.tiles_run == ran.sum() < reach.num_tiles == graph.num_tiles
    assert str(reach).splitlines()[0] == f"{reach.tiles_run} of {reach.num_tiles} tiles ran"
    assert len(str(reach).splitlines()) == len(reach.ops) + 2


# What a user has in hand


def network(random):
    fun, (x,) = convolutions(random)
    return aspen(fun), jnp.asarray(np.repeat(np.repeat(x, 8, 1), 8, 2))


def test_stream_of_a_decorated_function():
    random = np.random.default_rng(SEED)
    f, x = network(random)
    stream = f.stream(x)
    assert stream.last.tiles_run == stream.last.num_tiles > 1
    stream(x)
    assert stream.last.tiles_run == 0
    seen = []
    for _ in range(4):
        row, column = random.integers(0, 150, 2)
        x = x.at[0, row : row + 3, column : column + 3].set(random.normal())
        result = stream(x)
        assert 0 < stream.last.tiles_run < stream.last.num_tiles
        assert bits([result]) == bits([f.stream(x)(x)]) == bits(f.graph(x).run(x))
        np.testing.assert_allclose(result, f.__wrapped__(x), atol=1e-4 * float(jnp.abs(result).max()))
        seen.append((result, np.array(result)))
    assert all(bits([result]) == bits([copy]) for result, copy in seen), "a later call wrote in an earlier result"


def test_trees_static_arguments_and_numbers():
    @aspen
    def f(params, x, scale, mode="plain"):
        y = x @ params["w"]
        return {"y": jnp.tanh(y) * scale if mode == "plain" else y, "same": x}

    random = np.random.default_rng(SEED)
    params, x = {"w": normal(random, 64, 64)}, normal(random, 64, 64)
    stream = f.stream(params, x, 2.0)
    for scale in (2.0, 3.0):
        result = stream(params, x, scale)
        assert jax.tree.structure(result) == jax.tree.structure(f(params, x, scale))
        np.testing.assert_allclose(result["y"], np.tanh(x @ params["w"]) * scale, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(result["same"], x)
    with pytest.raises(InputError, match="was made for"):
        stream(params, x, 2.0, mode="other")


def test_arrays_that_their_owner_changes():
    f = aspen(lambda x, w: jnp.tanh(x @ w))
    random = np.random.default_rng(SEED)
    x, w = normal(random, 32, 32), jnp.asarray(normal(random, 32, 32))
    stream = f.stream(x, w)
    x[3, 4] = 100
    assert bits([stream(x, w)]) == bits([f.stream(x, w)(x, w)])
    assert bits([stream(x.astype(np.float64), w)]) == bits([stream(x, w)])  # as jax.jit takes it
    assert stream.last.tiles_run == 0


def test_methods_and_alias_results():
    class Layer:
        def __init__(self, w):
            self.w = w

        @aspen
        def forward(self, x):
            y = x @ self.w
            return x, y, y

    random = np.random.default_rng(SEED)
    layer, x = Layer(normal(random, 32, 32)), jnp.asarray(normal(random, 32, 32))
    stream = layer.forward.stream(x)
    for _ in range(2):
        x = x.at[0, 0].add(1)
        given, one, two = stream(x)
        assert bits([given, one]) == bits([x, two])
        np.testing.assert_allclose(one, x @ layer.w, rtol=1e-4, atol=1e-4)


def test_results_stay_when_the_next_call_comes_at_once():
    stream = aspen(lambda x: x + 1).stream(jnp.zeros((1024, 2048)))
    inputs = [jnp.full((1024, 2048), number, jnp.float32) for number in range(20)]
    results = [stream(x) for x in inputs]  # nobody waits for any of them
    for number, result in enumerate(results):
        assert (np.asarray(result) == number + 1).all()


def test_threads_take_turns():
    f, x = network(np.random.default_rng(SEED))
    stream = f.stream(x)
    inputs = [x.at[0, 10 * k : 10 * k + 5].set(k) for k in range(8)]
    expected = [bits([f.stream(item)(item)]) for item in inputs[:4]]
    wrong = []

    def work(k):
        wrong.extend(k for _ in range(6) if bits([stream(inputs[k])]) != expected[k])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert not wrong


def test_other_shapes_are_refused_and_leave_the_stream_as_it_was():
    f = aspen(lambda x: jnp.tanh(x @ x))
    x = jnp.asarray(normal(np.random.default_rng(SEED), 48, 48))
    stream = f.stream(x)
    for wrong in (x[:40], x.astype(jnp.int32), (x, x), jax.ShapeDtypeStruct(x.shape, x.dtype)):
        with pytest.raises(InputError):
            stream(wrong)
    with pytest.raises(InputError, match="traced"):
        jax.jit(stream)(x)
    stream(x)
    assert stream.last.tiles_run == 0


def test_after_an_error_all_is_computed_again(monkeypatch):
    graph, (x, *rest) = made(attention)
    stream = Incremental(graph)
    stream.run([x, *rest])
    engine = stream._engine

    class Failing:
        def run(self, operands, chosen):
            engine.run([item * 0 for item in operands], chosen)  # other values than the stream believes
            raise EngineError("tile 3 failed")

    stream._engine = Failing()
    other = x + 1
    with pytest.raises(EngineError, match="tile 3 failed"):
        stream.run([other, *rest])
    stream._engine = engine
    results, ran = stream.run([x, *rest])
    assert ran.all()
    assert bits(results) == bits(graph.run([x, *rest]))


def test_what_cannot_be_a_stream():
    with pytest.raises(UnsupportedError):
        aspen(lambda x: lax.while_loop(lambda c: c.sum() < 3, lambda c: c + lax.lgamma(c), x)).stream(jnp.zeros(3))
    with pytest.raises(InputError, match="streams run on the CPU"):
        aspen(lambda x: x + 1, device="cuda").stream(jnp.zeros(3))
    graph = apu.build(run_passes(traced(lambda x: jnp.cumsum(x, 0).at[0].set(1.0), np.ones((300, 300), np.float32))[0]), 2)
    with pytest.raises(InputError, match="share memory"):
        Incremental(dataclasses.replace(graph))


# The engine


def test_any_choice_of_tiles_ends():
    """Those that are chosen run in order; all others keep what they wrote."""
    from aspen_jax import _engine

    random = np.random.default_rng(SEED)
    graph, inputs = made(convolutions)
    stream = _engine.Stream(graph.plan)
    operands = graph.operands_of(inputs)
    expected = bits(stream.run(operands, None))
    for share in (0.0, 0.01, 0.3, 0.9, 1.0):
        chosen = random.random(graph.num_tiles) < share
        assert bits(stream.run(operands, chosen.tobytes())) == expected
    zeros = [inputs[0] * 0, *operands[1:]]
    assert bits(stream.run(zeros, bytes(graph.num_tiles))) == expected
    for wrong in (b"", bytes(graph.num_tiles + 1)):
        with pytest.raises(InputError, match="one for each tile"):
            stream.run(operands, wrong)


@pytest.mark.parametrize("mode", ["forced", "default"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_another_sign_of_zero_is_a_change(mode, dtype, array, request):
    """The reciprocals of the two zeros are the two infinities, so a stream that compares numbers gives the wrong one."""
    if mode == "default":
        request.getfixturevalue("choosing")
    zeros = np.zeros(600, dtype)
    mixed = zeros.copy()
    mixed[[3, 599]] = -0.0
    stream = aspen(lambda x: 1 / x).stream(array(zeros))
    for x in (mixed, zeros, -zeros, mixed, mixed):
        got = np.asarray(stream(array(x)), np.float32)
        np.testing.assert_array_equal(got, np.where(np.signbit(x.astype(np.float32)), -np.inf, np.inf))
    assert stream.last.tiles_run == 0


def test_a_call_inside_of_a_call_is_refused(monkeypatch):
    """A handler of a signal could make it. Both runs would write the same memory."""
    x = np.ones(600, np.float32)
    stream = aspen(lambda x: jnp.tanh(x) * 2).stream(x)
    run = stream._incremental.run
    monkeypatch.setattr(stream._incremental, "run", lambda _: stream(x))
    with pytest.raises(EngineError, match="by a handler of a signal while it runs; call it when that has ended"):
        stream(x)
    monkeypatch.setattr(stream._incremental, "run", run)
    np.testing.assert_array_equal(stream(2 * x), stream(2 * x))
