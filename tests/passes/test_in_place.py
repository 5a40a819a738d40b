"""What rewrites a part of an array does so in its memory where nobody needs the rest as it was, and nowhere else."""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import apu, aspen, runtime
from aspen_jax.errors import GraphFormatError
from aspen_jax.ops import FAMILIES
from aspen_jax.ops.reference import evaluate
from aspen_jax.passes import run_passes
from tests.content import generator
from tests.random_programs import random_program
from tests.tile_graphs import FINE, build_with_random_tiles, changed
from tests.tracing import traced

RNG = generator(__name__)

ROWS, COLUMNS = 16384, 256


def write(cache, row, i):
    return cache.at[i].set(row)


def graph_of(function, *arguments):
    """The graph of a function that is one part."""
    graph = apu.build(run_passes(traced(function, *arguments)[0]), 2, FINE)
    graph.verify()
    return graph


def in_place(graph):
    return [op.in_place for op in graph.program().ops if op.family.rewrites is not None]


def seconds(function, *arguments, calls=5, rounds=7):
    """The least of a call, each with the result of the one before as its first argument."""
    best = float("inf")
    first, *rest = arguments
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(calls):
            first = function(first, *rest)
        jax.block_until_ready(first)
        best = min(best, (time.perf_counter() - begin) / calls)
    return best


# Products that add to what is there


def accumulated(x, w, c):
    """A product added to a matrix: alpha * x @ w + beta * C, where C is made by the function and dies there."""
    return 0.5 * (x @ w) + 2.0 * jnp.cumsum(c, 0)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_product_that_adds_to_a_dying_matrix_is_one_op_in_its_memory(dtype):
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(shape).astype(dtype) for shape in ((70, 300), (300, 90), (70, 90))]

    def twice(x, w, c):
        return jnp.cumsum(jnp.tanh(accumulated(x, w, c) / 99), 1)

    graph = graph_of(twice, *operands)
    product = next(op for op in graph.program().ops if op.family.kernel == "matmul")
    assert product.in_place
    assert [op.family.kernel for op in graph.program().ops] == ["cumulative", "matmul", "cumulative"]
    # The sums of C and the product share one piece of the workspace.
    nbytes = 70 * 90 * np.dtype(dtype).itemsize
    assert nbytes <= graph.workspace_bytes < nbytes + 256
    (result,) = graph.run(*operands)
    tolerance = 1e-4 if dtype == jnp.float32 else 0.5  # of sums of 90 roundings to 16 bits
    expected = np.asarray(jax.jit(twice)(*operands), np.float32)
    np.testing.assert_allclose(result.astype(np.float32), expected, rtol=0, atol=tolerance)


def test_a_product_that_gives_the_result_adds_in_the_callers_buffer():
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(shape, np.float32) for shape in ((70, 300), (300, 90), (70, 90))]
    graph = graph_of(accumulated, *operands)
    assert graph.workspace_bytes == 0
    np.testing.assert_allclose(graph.run(*operands)[0], jax.jit(accumulated)(*operands), rtol=1e-4, atol=1e-4)


def test_a_product_leaves_alone_what_is_the_callers_or_is_read_again():
    def is_in_place(function, *shapes):
        operands = [np.ones(shape, np.float32) for shape in shapes]
        ops = graph_of(function, *operands).program().ops
        return [op.in_place for op in ops if op.family.kernel == "matmul"]

    shapes = ((64, 64),) * 3
    assert is_in_place(lambda x, w, c: 0.5 * (x @ w) + 2 * c, *shapes) == [False]  # XLA would copy c first
    assert is_in_place(accumulated, *shapes) == [True]
    # It is what the product reads, too; it is another result; it is read as a transpose; it is wider.
    assert is_in_place(lambda x, w, c: (y := jnp.cumsum(c, 0)) + y @ w, *shapes) == [False]
    assert is_in_place(lambda x, w, c: (y := jnp.cumsum(c, 0), x @ w + y), *shapes) == [False]
    assert is_in_place(lambda x, w, c: x @ w + jnp.cumsum(c, 0).T, *shapes) == [False]
    narrow = lambda x, w, c: (x @ w + jnp.cumsum(c, 0)).astype(jnp.bfloat16)  # noqa: E731
    assert is_in_place(narrow, *shapes) == [False]


# No big copy


def test_a_row_written_into_a_donated_buffer_costs_no_copy_of_it():
    keeping, donating = jax.jit(aspen(write)), jax.jit(aspen(write), donate_argnums=0)
    row = jnp.ones(COLUMNS)
    copied = seconds(keeping, jnp.zeros((ROWS, COLUMNS)), row, 5)
    assert seconds(donating, jnp.zeros((ROWS, COLUMNS)), row, 5) < copied / 5


def test_a_scan_that_fills_a_buffer_row_by_row_copies_nothing_in_a_turn():
    w = np.eye(COLUMNS, dtype=np.float32)

    def fill(buffer, x):
        def turn(carry, i):
            buffer, h = carry
            h = jnp.tanh(h @ w)
            return (lax.dynamic_update_slice(buffer, h, (i, 0)), h), None

        return lax.scan(turn, (buffer, x), jnp.arange(64))[0][0]

    times = [seconds(jax.jit(aspen(fill)), jnp.zeros((rows, COLUMNS)), jnp.ones((1, COLUMNS)), calls=1) for rows in (64, ROWS)]
    one_copy = seconds(jax.jit(jnp.copy), jnp.zeros((ROWS, COLUMNS)), calls=1)
    assert times[1] - times[0] < 16 * one_copy  # not 64
    x = jnp.ones((1, COLUMNS))
    np.testing.assert_allclose(aspen(fill)(jnp.zeros((80, COLUMNS)), x), fill(jnp.zeros((80, COLUMNS)), x), rtol=1e-5)


def test_the_tiles_of_a_written_row_move_its_bytes_alone():
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((ROWS, COLUMNS), (COLUMNS,))]
    graph = aspen(write).graph(*arguments, 5)
    assert in_place(graph) == [True]
    assert graph.stats()["bytes"] < 1 << 16
    assert len(graph.shared_memory) == 1


def test_a_chain_of_updates_lies_in_one_buffer():
    def function(cache, rows, i):
        for k in range(4):
            cache = lax.dynamic_update_slice(cache, rows[k : k + 1] + cache[0, 0], (i + k, 0))
        return cache

    graph = graph_of(function, np.zeros((512, 256), np.float32), np.ones((4, 256), np.float32), np.int32(3))
    assert in_place(graph) == [True] * 4
    assert len(graph.shared_memory) == 1
    assert graph.workspace_bytes < 512 * 256 * 4


def test_what_was_computed_and_dies_is_rewritten_where_it_lies():
    def function(x, row, i):
        return jnp.exp(lax.dynamic_update_slice(jnp.tanh(x), row, (i, 0)))

    arguments = np.ones((512, 256), np.float32), np.zeros((1, 256), np.float32), np.int32(3)
    graph = graph_of(function, *arguments)
    assert in_place(graph) == [True]
    assert graph.shared_memory == {}
    assert graph.workspace_bytes < 1.5 * 512 * 256 * 4
    np.testing.assert_allclose(aspen(function)(*arguments), function(*arguments), rtol=1e-5)


def test_readers_of_the_old_array_run_before_it_is_rewritten():
    """Also those that the user wrote down after the update."""

    def function(cache, row, i):
        new = cache.at[i].set(row)
        return new, jnp.tanh(cache).sum(0)

    arguments = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32), np.ones(8, np.float32), 5
    assert in_place(graph_of(function, *arguments)) == [True]
    expected = function(*map(jnp.array, arguments))
    for ours, theirs in zip(jax.jit(aspen(function), donate_argnums=0)(*map(jnp.array, arguments)), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_without_the_pass_nothing_is_rewritten():
    program, inputs = traced(write, jnp.zeros((64, 8)), jnp.ones(8), np.int32(5))
    graphs = [apu.build(run_passes(program, disabled), 2, FINE) for disabled in ((), {"in_place"})]
    assert [len(graph.shared_memory) for graph in graphs] == [1, 0]
    np.testing.assert_array_equal(*(graph.run(*map(np.asarray, inputs))[0] for graph in graphs))


# Where something still needs the array


NEEDED = {
    "it is a result": lambda x, row, i: (x.at[i].set(row), x + 0 * i),
    "it was computed and is a result": lambda x, row, i: ((y := jnp.tanh(x)), y.at[i].set(row)),
    "both are read": lambda x, row, i: jnp.tanh(x.at[i].set(row)) * x,
    "the update is made of it": lambda x, row, i: lax.dynamic_update_slice(x, x[2:3] * 2, (i, 0)),
    "two updates": lambda x, row, i: (x.at[i].set(row), x.at[i + 1].add(row)),
    "the result is smaller": lambda x, row, i: x.at[i].set(row).sum(1),
    "another order": lambda x, row, i: x.T.at[:, i].set(row),
    "a constant": lambda x, row, i: jnp.zeros((9, 6)).at[i].set(row) + x,
    "a chain that ends elsewhere": lambda x, row, i: (x.at[i].set(row).at[i + 1].add(row).sum(0), x[0]),
    "a reader that waits for the outcome": lambda x, row, i: (y := x.at[i].set(row), (x * y.sum())[1]),
}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.parametrize("donated", [(), (0,), (0, 1)])
def test_no_value_is_lost(name, donated):
    rng = np.random.default_rng(0)
    x, row = rng.standard_normal((9, 6)).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    expected = jax.tree.leaves(NEEDED[name](jnp.asarray(x), jnp.asarray(row), 4))
    arguments = jnp.array(x), jnp.array(row)
    ours = jax.tree.leaves(jax.jit(aspen(NEEDED[name]), donate_argnums=donated)(*arguments, 4))
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    for number in {0, 1} - set(donated):
        np.testing.assert_array_equal(arguments[number], (x, row)[number])
    if not donated:
        assert all(map(np.array_equal, jax.tree.leaves(aspen(NEEDED[name])(*arguments, 4)), ours))


def test_a_caller_that_does_not_donate_keeps_its_array():
    cache, row = jnp.zeros((64, 8)), jnp.ones(8)
    for call in (aspen(write), jax.jit(aspen(write))):
        first, second = call(cache, row, 3), call(cache, row, 4)
        assert float(cache.sum()) == 0
        assert (float(first[3].sum()), float(second[3].sum()), float(second[4].sum())) == (8, 0, 8)
    graph = aspen(write).graph(cache, row, 3)
    inputs = [np.zeros(shape, dtype) for shape, dtype in map(graph.value, graph.operands[: len(graph.program().inputs)])]
    graph.run(*inputs)
    assert not any(array.any() for array in inputs)


def appended(cache, row, i):
    """A row written into a cache, and what a reader makes of all of it."""
    new = lax.dynamic_update_slice(cache, row[None], (i, 0))
    return new, jnp.tanh(new).sum(0)


def appended_in_turn(cache, row, i):
    def turn(carry, k):
        return appended(carry, row * (k + 1), i + k)

    return lax.scan(turn, cache, jnp.arange(3))


APPENDS = {"once": appended, "in a loop": appended_in_turn}


def gradients(function):
    return lambda cache, row, i: jax.grad(lambda *given: sum(item.sum() for item in function(*given, i)), (0, 1))(cache, row)


# How a function is transformed, and which of its arguments then are many.
TRANSFORMED = {
    "as it is": (lambda function: function, (False, False, False)),
    "many caches": (jax.vmap, (True, True, True)),
    "many rows of one cache": (lambda function: jax.vmap(function, (None, 0, 0)), (False, True, True)),
    "the gradient": (gradients, (False, False, False)),
}


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("donated", [(), (0,)])
@pytest.mark.parametrize("transformed", TRANSFORMED)
@pytest.mark.parametrize("append", APPENDS)
def test_caches_under_transformations(append, transformed, donated):
    """Those that are not donated are as they were after the call, and may be used again."""
    cache, row = RNG.standard_normal((4, 16, 8), np.float32), RNG.standard_normal((4, 8), np.float32)
    places = np.array([14, 5, 0, 3], np.int32)  # of the first the last turn of the loop is clamped
    change, are_many = TRANSFORMED[transformed]
    cache, row, places = (item if many else item[0] for item, many in zip((cache, row, places), are_many, strict=True))
    expected = jax.tree.leaves(jax.jit(change(APPENDS[append]))(cache, row, places))
    ours = jax.jit(change(aspen(APPENDS[append], strict=True)), donate_argnums=donated)
    given = jnp.array(cache)
    for _ in range(1 if donated else 2):
        found = jax.tree.leaves(ours(given, row, places))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    if not donated:
        np.testing.assert_array_equal(given, cache)


def test_one_array_as_two_arguments():
    def function(x, y, i):
        return x.at[i].set(y[1]), y.at[i].add(1)

    x = jnp.arange(72.0).reshape(9, 8)
    for ours, theirs in zip(jax.jit(lambda x: aspen(function)(x, x, 3))(x), function(x, x, 3), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(x, np.arange(72.0).reshape(9, 8))


def test_loops_keep_what_they_carry():
    """Carries that are rewritten, that hold an old value and that change places, and a conditional turn."""

    def function(x, row):
        def turn(carry, i):
            x, before, left, right = carry
            new = lax.cond(i % 2 == 0, lambda: jnp.tanh(x @ x.T / 32 + x).at[i].set(row), lambda: x.at[i].add(row))
            right = right.at[i].set(jnp.tanh(new @ before / 32)[i])
            return (new, x, right, left.at[0].add(row)), new[i]

        return lax.scan(turn, (x, x, x, x), jnp.arange(8))

    rng = np.random.default_rng(0)
    x, row = jnp.array(rng.standard_normal((32, 32)), jnp.float32), jnp.ones(32)
    for ours, theirs in zip(jax.tree.leaves(aspen(function)(x, row)), jax.tree.leaves(function(x, row)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("donates", [False, True])
def test_random_programs_in_memory_that_xla_shares(seed, donates):
    program = random_program(seed)
    graph = build_with_random_tiles(program, seed, reuse=True)
    rng = np.random.default_rng(seed)
    inputs = [(3 * rng.standard_normal(value.shape)).astype(value.dtype) for value in program.inputs]
    expected = evaluate(program, *inputs)
    results = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in expected]
    encoded, shared = np.frombuffer(graph.to_bytes(), np.uint8), graph.shared_memory
    donated = tuple(shared) if donates else ()
    call = jax.jit(
        lambda *operands: runtime.engine_call(encoded, results, *operands, shared_memory=shared), donate_argnums=donated
    )
    given = [*map(jnp.array, inputs)]
    for ours, theirs in zip(call(*given), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(theirs).max(initial=0))))
    for number in set(range(len(inputs))) - set(donated):
        np.testing.assert_array_equal(given[number], inputs[number])


# The contract, and graphs that break it


def test_a_box_of_an_output_in_place_reads_that_box_of_the_operand():
    seen = set()
    for seed in range(60):
        for op in random_program(seed, steps=12).ops:
            if op.family.rewrites is not None:
                rng = np.random.default_rng(seed)
                lo = np.array([rng.integers(0, extent, 20) for extent in op.output.shape]).reshape(-1, 20).T
                hi = np.minimum(lo + rng.integers(1, 4, lo.shape), np.array(op.output.shape, int))
                boxes = np.stack([lo, hi], 2)
                np.testing.assert_array_equal(op.family.region(op, op.family.rewrites, boxes), boxes)
                seen.add(op.family)
    assert seen == {family for family in FAMILIES.values() if family.rewrites is not None}


def test_graphs_that_would_lose_a_value_are_refused():
    def function(cache, row, i):
        return cache.at[i].set(row), cache.sum(0)

    graph = graph_of(function, np.zeros((64, 8), np.float32), np.ones(8, np.float32), 5)
    ((operand, result),) = graph.shared_memory.items()
    assert graph.dag.size
    value, other = int(graph.results[result]), int(graph.results[1 - result])
    cases = [
        (changed(graph, "values", (other, 0), operand), "lies in buffer|lies at byte"),
        (changed(graph, "values", (value, 1), 64), "lies at byte 64"),
        (changed(graph, "values", (value, 0), operand + 1), "lies at byte"),
    ]
    for wrong, message in cases:
        with pytest.raises(GraphFormatError, match=message):
            wrong.verify()
