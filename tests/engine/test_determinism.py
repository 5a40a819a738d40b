"""The same call gives bitwise the same result, whatever order its tiles ran in: what moves would be a race."""

from __future__ import annotations

import dataclasses
import operator
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aspen_jax
from aspen_jax import _engine, apu, aspen
from aspen_jax.apu import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.passes import run_passes
from tests.content import generator
from tests.random_functions import random_function


def network(x, weights):
    """Convolutions with residuals, so that buffers are reused while neighbours still read them."""
    for index, (w, scale) in enumerate(weights):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.nn.relu(y * scale + 0.1)
        x = x + y if index % 2 else y
        if index == 3:
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    return jax.nn.softmax(x.mean((1, 2)))


@pytest.mark.parametrize("workers", [2, 5])
def test_500_calls_from_4_threads_are_bitwise_equal(workers):
    aspen_jax.set_num_workers(workers)
    rng = np.random.default_rng(0)
    weights = [
        ((rng.standard_normal((3, 3, 32, 32)) / 17).astype(np.float32), rng.uniform(0.5, 1, 32).astype(np.float32))
        for _ in range(8)
    ]
    weights = jax.tree.map(jnp.asarray, weights)
    x = jnp.asarray(rng.standard_normal((1, 40, 36, 32), np.float32))
    compiled = jax.jit(aspen(network, strict=True)).lower(x, weights).compile()
    first = np.asarray(compiled(x, weights))
    np.testing.assert_allclose(first, jax.jit(network)(x, weights), rtol=1e-4, atol=1e-6)
    with ThreadPoolExecutor(4) as threads:
        for result in threads.map(lambda _: np.asarray(compiled(x, weights)), range(500)):
            np.testing.assert_array_equal(result.view(np.int32), first.view(np.int32))


# The number of workers decides how ops are cut into tiles. Of these a tile of few rows is summed in another order.
CUT_MATTERS = {"matmul", "conv2d", "stack"}
WORKERS = (1, 2, 3, 7, 16, 64)
RNG = generator(__name__)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def size(least: int, most: int) -> int:
    return int(RNG.integers(least, most))


def conv(x, w, stride=1, groups=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=numbers, feature_group_count=groups)


def of_constants(function, x, *weights):
    return lambda x: function(x, *weights), x


def flat(function, arguments):
    return function, *arguments


ROWS, COLUMNS, DEPTH = size(50, 300), size(300, 600), size(65, 150)
IMAGE, CHANNELS = (1, size(13, 40), size(13, 40)), size(33, 80)
HEADS = (1, size(60, 140), 3, 32)

FUNCTIONS = {
    "elements": (lambda x: jnp.tanh(x) * jnp.exp(-x), normal(ROWS, COLUMNS)),
    "sums along rows": (lambda x: (x * x).sum(1), normal(ROWS, COLUMNS)),
    "sums along columns": (lambda x: x.sum(0), normal(ROWS, COLUMNS)),
    "sums of all": (lambda x: (x * x).mean(), normal(ROWS, COLUMNS)),
    "running sums": (lambda x: jnp.cumsum(x, 0) + jnp.cumsum(x, 1), normal(ROWS, COLUMNS)),
    "softmax": (lambda x: jax.nn.softmax(x) + jax.nn.softmax(x, 0), normal(ROWS, COLUMNS)),
    "normalised rows": (lambda x: jax.nn.standardize(x), normal(ROWS, COLUMNS)),
    "pools": (lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), normal(*IMAGE, CHANNELS)),
    # A smaller image is convolved directly, and is then one of those that the cut matters for.
    "winograd": (conv, normal(1, size(24, 40), size(24, 40), 64), normal(3, 3, 64, 64)),
    "depthwise": (lambda x, w: conv(x, w, groups=CHANNELS), normal(*IMAGE, CHANNELS), normal(3, 3, 1, CHANNELS)),
    "attention": (jax.nn.dot_product_attention, normal(*HEADS), normal(*HEADS), normal(*HEADS)),
    "dense layer of constants": of_constants(lambda x, w: jax.nn.relu(x @ w), normal(ROWS, DEPTH), normal(DEPTH, COLUMNS)),
    "convolution of constants": of_constants(lambda x, w: conv(x, w, 2), normal(*IMAGE, 32), normal(1, 1, 32, CHANNELS)),
    "product": (lambda a, b: a @ b, normal(ROWS, DEPTH), normal(DEPTH, COLUMNS)),
    "product of few rows": (lambda a, b: a @ b, normal(2, DEPTH), normal(DEPTH, COLUMNS)),
    "long product": (lambda a, b: a @ b, normal(size(7, 100), 1500), normal(1500, size(33, 257))),
    "convolution": (lambda x, w: conv(x, w, 2), normal(*IMAGE, 32), normal(1, 1, 32, CHANNELS)),
    "5x5": (conv, normal(*IMAGE, 17), normal(5, 5, 17, CHANNELS)),
}


# The same bits whatever the tiles: all but products and convolutions whose weights are not stored in panels.
EQUAL = list(FUNCTIONS)[: list(FUNCTIONS).index("product")]


def has_tile_of_few_rows(graph: TileGraph) -> bool:
    """Whether a tile of an op of `CUT_MATTERS` has as few rows, or columns, as kernels read a matrix once for."""
    few = _engine.cpu_few_rows()
    for number, op in enumerate(graph.program().ops):
        if op.family.kernel not in CUT_MATTERS:
            continue
        extents = np.diff(graph.tiles_of(number)[1], axis=2)[:, :, 0]
        if op.family.kernel != "matmul":
            if (extents[:, :-1].prod(axis=1) <= few).any():
                return True
            continue
        for own, other in ((op.attrs.a, op.attrs.b), (op.attrs.b, op.attrs.a)):
            free = [label for label in own if label >= 0 and label not in other]
            if (extents[:, free].prod(axis=1) <= few).any():
                return True
    return False


def graph_for(function, arguments, workers: int) -> tuple[TileGraph, list[np.ndarray]]:
    """The graph of a function for so many workers, cut so finely that it differs, and what it gives."""
    machine = dataclasses.replace(Machine.here(2), shortest_tile_ns=200.0)  # with what `tune` found for another number it could
    trace = frontend.trace(jax.make_jaxpr(function)(*arguments))
    (part,) = trace.parts
    assert not trace.fallbacks
    graph = apu.build(run_passes(part, machine=machine), workers, machine)
    given = dict(zip(trace.inputs, arguments, strict=True))
    return graph, graph.run(*(given[value] for value in part.inputs))


@pytest.mark.parametrize("name", [*FUNCTIONS, *(f"random function {seed}" for seed in range(8))])
def test_bits_depend_on_the_number_of_workers_only_by_tiles_of_few_rows(name: str) -> None:
    function, *arguments = FUNCTIONS[name] if name in FUNCTIONS else flat(*random_function(int(name.split()[-1])))
    graphs, results = zip(*(graph_for(function, arguments, workers) for workers in WORKERS), strict=True)
    # The same ops, all by the same algorithms, only cut in other ways.
    for graph in graphs[1:]:
        assert graph.kernels == graphs[0].kernels
        np.testing.assert_array_equal(graph.params, graphs[0].params)
        np.testing.assert_array_equal(graph.inputs, graphs[0].inputs)
    assert name != "winograd" or "winograd" in graphs[0].kernels
    if name in EQUAL or not any(map(has_tile_of_few_rows, graphs)):
        assert all(
            ours.tobytes() == first.tobytes() for result in results for ours, first in zip(result, results[0], strict=True)
        )


def test_more_workers_cut_finer() -> None:
    """Or the test above would compare each graph with itself."""
    counts = [graph_for(FUNCTIONS[name][0], FUNCTIONS[name][1:], 2)[0].num_tiles for name in FUNCTIONS]
    finer = [graph_for(FUNCTIONS[name][0], FUNCTIONS[name][1:], 16)[0].num_tiles for name in FUNCTIONS]
    assert sum(map(operator.lt, counts, finer)) > len(FUNCTIONS) / 2
