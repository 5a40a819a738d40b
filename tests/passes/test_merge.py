"""Ops of several outputs: the pass that makes them, and their way through graph, file, engine and CUDA code."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import apu, aspen
from aspen_jax.errors import GraphFormatError, InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import single
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.reduce import REDUCE, ReduceAttrs
from aspen_jax.ops.reference import evaluate
from aspen_jax.ops.rows import ROWS
from aspen_jax.passes import merge, run_passes
from tests.targets.cuda import cuda_check
from tests.tile_graphs import FINE
from tests.tiled import run_tiled
from tests.tracing import traced

FLOAT = np.dtype(np.float32)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ran(program: Program, inputs, workers: int = 2, machine=FINE) -> list[np.ndarray]:
    graph = apu.build(program, workers, machine)
    graph.verify()
    return graph.run(*inputs)


def ran_as_called(function, arguments) -> list[np.ndarray]:
    """What the function returns, in its order."""
    return run_tiled(function, arguments, machine=FINE)


def others(program: Program) -> list[str]:
    """The ops that are no products."""
    return [op.family.name for op in program.ops if "matmul" not in op.family.name]


def lstm_cell(params, x, h, c):
    gates = x @ params["input"] + h @ params["hidden"] + params["bias"]
    i, f, g, o = jnp.split(gates, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def lstm(size, batch=1):
    params = {"input": normal(0, size, 4 * size) / 4, "hidden": normal(1, size, 4 * size) / 4, "bias": normal(2, 4 * size)}
    return params, *(normal(seed, batch, size) for seed in range(3, 6))


def gradient_of_lstm(params, x, h, c, *cotangents):
    return jax.vjp(lstm_cell, params, x, h, c)[1](cotangents)


def test_the_gradient_of_an_lstm_cell_is_three_ops_beside_its_products():
    program, inputs = traced(gradient_of_lstm, *lstm(128), normal(6, 1, 128), normal(7, 1, 128))
    before, after = run_passes(program, {"merge"}), run_passes(program)
    assert len(others(before)) > 10
    # With a batch of one the gradients of the weights are outer products: blocks, which write them as JAX wants them.
    assert others(after) == ["block", "concatenate", "reduce", "block", "block"]
    for one, other in zip(ran(before, inputs), ran(after, inputs), strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("size", [1, 5, 17, 40])
def test_gradients_of_lstm_cells_are_as_precise_as_xla_s(size):
    arguments = (*lstm(size, 3), normal(6, 3, size), normal(7, 3, size))
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arguments)
        expected = jax.tree.map(np.asarray, gradient_of_lstm(*wide))
    for ours, theirs in zip(ran_as_called(gradient_of_lstm, arguments), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * max(1.0, np.abs(theirs).max()))


def mlp(params, x):
    for w, b in params[:-1]:
        x = jax.nn.gelu(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def residual_block(params, x):
    for w, scale, shift in params:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean, variance = y.mean((0, 1, 2)), y.var((0, 1, 2))
        x = jax.nn.relu((y - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift + x)
    return x


FUNCTIONS = {
    "mlp": (mlp, ([(normal(k, 9, 9), normal(k + 3, 9)) for k in range(3)], normal(9, 6, 9))),
    "residual block": (
        residual_block,
        ([(normal(k, 3, 3, 7, 7) / 8, normal(k + 3, 7), normal(k + 6, 7)) for k in range(2)], normal(9, 2, 9, 5, 7)),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_float64(name):
    function, arguments = FUNCTIONS[name]

    def gradient(*arguments):
        return jax.grad(lambda *arguments: (function(*arguments) ** 2).mean())(*arguments)

    program, _ = traced(gradient, *arguments)
    assert len(run_passes(program).ops) < len(run_passes(program, {"merge"}).ops)
    with jax.enable_x64(True):
        expected = jax.tree.leaves(gradient(*jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arguments)))
    for ours, theirs in zip(ran_as_called(gradient, arguments), map(np.asarray, expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())


def test_the_updates_of_an_optimizer_read_each_tensor_once():
    def adam(parameter, gradient, mean, square):
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        return parameter - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), mean, square

    def step(*trees):
        return [adam(*leaves) for leaves in zip(*trees, strict=True)]

    trees = [[normal(4 * k + tree, 12, 30) ** 2 for k in range(3)] for tree in range(4)]
    program, _ = traced(step, *trees)
    after = run_passes(program)
    assert len(after.ops) == 3
    assert all(len(op.outputs) == 3 for op in after.ops)
    assert all(len({item.value for item in op.inputs}) == len(op.inputs) for op in after.ops)
    for ours, theirs in zip(ran_as_called(step, trees), jax.tree.leaves(jax.jit(step)(*trees)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_gradients_ask_relu_for_its_sign_and_so_keep_one_tensor():
    def gradient(x, bias):
        return jax.grad(lambda x: (jax.nn.relu(x * 2 + bias) ** 2).sum())(x)

    hostile = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-30, -1e-30], np.float32)
    bias = np.zeros_like(hostile)
    program, inputs = traced(gradient, hostile, bias)
    ours = ran(run_passes(program), inputs)[0]
    np.testing.assert_array_equal(ours, np.asarray(jax.jit(gradient)(hostile, bias)))
    program, inputs = traced(lambda x, g: (jax.nn.relu(x + 1), jnp.where(x + 1 > 0, g, 0)), normal(0, 5), normal(1, 5))
    (op,) = run_passes(program).ops
    assert len(op.outputs) == 2
    (ours, masked), (result, expected) = ran(run_passes(program), inputs), evaluate(program, *inputs)
    np.testing.assert_array_equal(ours, result)
    np.testing.assert_array_equal(masked, expected)


SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, 3e38, 1.5], np.float32)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 5), (2, 37), (4, 130), (1, 3000), (0, 4)])
def test_outputs_of_every_dtype_and_odd_shapes(shape):
    """A copy, a constant, a result that is read on, one that is not, and narrow ones."""

    def function(x, y):
        total = x + y
        return total, jnp.exp(total), total > 0, (total * 2).astype(jnp.bfloat16), x * 0 + 1, total.astype(jnp.float16), -y

    x, y = (np.resize(np.concatenate([SPECIAL, normal(k, 23)]), shape).astype(np.float32) for k in range(2))
    program, inputs = traced(function, x, y)
    after = run_passes(program)
    assert len(after.ops) == 1 or not x.size
    for ours, theirs in zip(ran(after, inputs), evaluate(program, *inputs), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=2e-6)


def test_sums_of_one_tensor_become_one_row_program():
    def function(x, y):
        return x.sum((0, 1)), (x * y).sum((0, 1)), x.max((0, 1)), y.min((0, 1))

    x, y = normal(0, 7, 9, 33), normal(1, 7, 9, 33)
    program, _ = traced(function, x, y)
    (op,) = run_passes(program).ops
    assert op.family is ROWS
    assert len(op.outputs) == 4
    for ours, theirs in zip(ran_as_called(function, (x, y)), function(x.astype(np.float64), y.astype(np.float64)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    hostile = x.copy()
    hostile[3, 4, :3] = np.nan, np.inf, -np.inf
    for ours, theirs in zip(ran(run_passes(program), [hostile, y]), evaluate(program, hostile, y), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_store_what_they_go_on_with(axis):
    def function(x, y):
        weights = jax.nn.softmax(x, axis)
        return weights, weights * y, jnp.log1p(weights)

    x, y = normal(0, 11, 12, 13), normal(1, 11, 12, 13)
    program, inputs = traced(function, x, y)
    (op,) = run_passes(program).ops
    assert op.family is ROWS
    assert len(op.outputs) == 3
    for ours, theirs in zip(ran(run_passes(program), inputs), evaluate(program, *inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-7)


# Random graphs: no circle, the same meaning, the same bits at every run.


def random_blocks(seed: int, count: int = 40) -> tuple[Program, list[np.ndarray]]:
    """Blocks and sums of two shapes, which read each other in a random order of program and depth."""
    rng = np.random.default_rng(seed)
    builder = Builder()
    inputs = [Value((4, 6), FLOAT) for _ in range(3)]
    full, sums = [Operand.whole(value) for value in inputs], []
    for _ in range(count):
        kind = rng.integers(6)
        one, other = (full[rng.integers(max(0, len(full) - 12), len(full))] for _ in range(2))
        if kind == 0:
            sums.append(builder.op(REDUCE, ReduceAttrs(int(rng.integers(0, 2)), (0,)), [one]))
        elif kind == 1 and sums:
            spread = sums[rng.integers(len(sums))]
            spread = Operand(spread.value, spread.view.broadcast_in_dim((4, 6), (1,)))
            full.append(builder.block(single("max_f"), [one, spread], (4, 6), FLOAT))
        elif kind == 2:
            turned = Operand(one.value, one.view.reverse((1,)))  # no block reads it element by element
            full.append(builder.block(single("min_f"), [other, turned], (4, 6), FLOAT))
        elif kind == 3:
            full.append(builder.block(single("tanh_f"), [one], (4, 6), FLOAT))
        else:
            full.append(builder.block(single("max_f" if kind == 4 else "sub_f"), [one, other], (4, 6), FLOAT))
    made = [*full[3:], *sums]
    results = [item for item in made if rng.random() < 0.3] or made[-1:]
    arrays = [normal(seed + k, 4, 6) for k in range(3)]
    return Program(tuple(inputs), (), tuple(builder.ops), tuple(results)).pruned(), arrays


def assert_in_order(program: Program) -> None:
    known = {*program.inputs, *(value for value, _ in program.constants)}
    for op in program.ops:
        assert known.issuperset(operand.value for operand in op.inputs), f"{op.name} reads what is written behind it"
        assert known.isdisjoint(op.outputs)
        known.update(op.outputs)


@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_keep_their_order_and_meaning(seed):
    program, arrays = random_blocks(seed)
    merged = merge.run(program)
    assert_in_order(merged)
    assert len(merged.ops) < len(program.ops)
    for one, other in zip(evaluate(program, *arrays), evaluate(merged, *arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    results = ran(merged, arrays)
    for ours, theirs in zip(results, evaluate(program, *arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    for again, first in zip(ran(merged, arrays, workers=1), results, strict=True):
        assert again.tobytes() == first.tobytes()


def test_a_merge_that_would_close_a_circle_or_a_longer_path_is_left():
    """Two blocks read x, but the second waits for a sum of the first; two others wait for chains of other lengths."""
    builder = Builder()
    x = Operand.whole(Value((8, 8), FLOAT))
    first = builder.block(single("exp_f"), [x], (8, 8), FLOAT)
    total = builder.op(REDUCE, ReduceAttrs(0, (0, 1)), [first])
    spread = Operand(total.value, total.view.broadcast_in_dim((8, 8), ()))
    second = builder.block(single("add_f"), [x, spread], (8, 8), FLOAT)
    program = Program((x.value,), (), tuple(builder.ops), (first, second))
    merged = merge.run(program)
    assert_in_order(merged)
    assert len(merged.ops) == 3


def small_graph() -> TileGraph:
    program, inputs = traced(lambda x, y: (jnp.exp(x), jnp.exp(x) + y, (x - y).sum(0)), normal(0, 6, 40), normal(1, 6, 40))
    graph = apu.build(run_passes(program), 2, FINE)
    assert graph.further_outputs.size
    graph.verify()
    graph.run(*inputs)
    return graph


def test_a_file_keeps_further_outputs(tmp_path):
    graph = small_graph()
    graph.save(tmp_path / "graph.aspen")
    again = TileGraph.load(tmp_path / "graph.aspen")
    assert again == graph
    assert [op.outputs for op in again.program().ops] != []
    x, y = normal(0, 6, 40), normal(1, 6, 40)
    for one, other in zip(graph.run(x, y), again.run(x, y), strict=True):
        assert one.tobytes() == other.tobytes()
    assert graph.stats() == again.stats()


def test_a_graph_of_single_outputs_is_written_as_before():
    program, _ = traced(lambda x: jnp.exp(x), normal(0, 5))
    assert apu.build(run_passes(program), 1).to_bytes()[8] == 1  # the format's version
    assert small_graph().to_bytes()[8] == 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[9, 0]], "op of further output"),
        ([[0, 99]], "value of further output"),
        ([[0, 0]], "is an operand or that another op writes"),
        ([], "more parameter words"),
    ],
)
def test_damaged_further_outputs_are_refused(rows, message):
    graph = small_graph()
    damaged = dataclasses.replace(graph, further_outputs=np.array(rows, np.int64).reshape(-1, 2))
    with pytest.raises(GraphFormatError, match=message):
        damaged.verify()
    with pytest.raises(GraphFormatError):
        _ = damaged.plan


def test_users_may_not_take_the_name_of_the_field():
    with pytest.raises(InputError, match="'!outputs'"):
        dataclasses.replace(small_graph(), fields={"!outputs": np.zeros(2, np.int64)}).to_bytes()


def test_a_family_of_one_output_refuses_more():
    x = Operand.whole(Value((4, 6), FLOAT))
    op = Op(REDUCE, ReduceAttrs(0, (0,)), (x,), Value((6,), FLOAT), further=(Value((6,), FLOAT),))
    with pytest.raises(ValueError, match="2 outputs and may have 1"):
        REDUCE.check(op)
    wrong = Op(BLOCK, None, (x,), Value((4, 6), FLOAT), single("exp_f"), further=(Value((4, 6), FLOAT),))
    with pytest.raises(ValueError, match="1 results and has 2 outputs"):
        BLOCK.check(wrong)


def test_decorated_functions_have_several_outputs_in_one_op():
    params, *others = lstm(24)
    cotangents = normal(6, 1, 24), normal(7, 1, 24)
    function = aspen(gradient_of_lstm)
    ours = jax.jit(function)(params, *others, *cotangents)
    theirs = jax.jit(gradient_of_lstm)(params, *others, *cotangents)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_cuda_code_stores_several_outputs():
    def function(x, y):
        weights = jax.nn.softmax(x)
        sums = y.sum(0), (x * y).sum(0), y.max(0)
        return weights, weights * y, jnp.exp(y), (jnp.exp(y) * 3).astype(jnp.bfloat16), y > 0, *sums

    arguments = normal(0, 70, 33), normal(1, 70, 33)
    assert max(len(op.outputs) for op in cuda_check.ops_of(function, arguments)) > 1
    cuda_check.check(function, *arguments, tolerance=1e-2)
