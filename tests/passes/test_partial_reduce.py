"""Products and convolutions that reduce their own result (passes/partial_reduce.py)."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aspen_jax.schedule as sched
from aspen_jax import AspenError, apu
from aspen_jax.cost.machine import Machine
from aspen_jax.errors import GraphFormatError
from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Op, Program
from aspen_jax.ops.partial_reduce import PARTIAL_REDUCE
from aspen_jax.passes import PASSES, partial_reduce, run_passes
from aspen_jax.targets.cuda.families.partial_reduce import PartialReduceShape
from aspen_jax.targets.cuda.passes.stages import UNPLANNED
from aspen_jax.targets.cuda.price import Gpu
from tests.changed_words import most_are_refused
from tests.content import generator
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check as check_on_host
from tests.targets.cuda.cuda_check import ops_of
from tests.tiled import TINY_TILES, check, run_tiled

RNG = generator(__name__)
SIZED = Machine(tile_ns=0.0, shortest_tile_ns=1.0, tiles_per_worker=3)


@pytest.fixture(autouse=True)
def _whatever_the_size(monkeypatch):
    monkeypatch.setattr(partial_reduce, "_SMALLEST_RESULT", 0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def part_of(function, *arguments) -> Program:
    (part,) = frontend.trace(jax.make_jaxpr(function)(*arguments)).parts
    return part


def reducing(function, *arguments, disabled=()) -> list[Op]:
    """The ops that reduce their own result."""
    ops = run_passes(part_of(function, *arguments), disabled).ops
    return [op for op in ops if op.family is PARTIAL_REDUCE]


def dense(axis, kind=jnp.sum):
    def function(x, w, b):
        y = jax.nn.relu(x @ w + b)
        return y, kind(y, axis)

    return function


def convolved(axes, kind=jnp.mean, groups=1):
    def function(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups)
        return jnp.tanh(y), kind(jnp.tanh(y), axes)

    return function


CASES = {
    "column sums": (dense(0), ((96, 40), (40, 48), (48,))),
    "odd columns": (dense(0), ((77, 13), (13, 37), (37,))),
    "column maxima": (dense(0, jnp.max), ((60, 20), (20, 33), (33,))),
    "row sums": (dense(1), ((50, 40), (40, 96), (96,))),
    "row sums of many columns": (dense(1), ((9, 24), (24, 1536), (1536,))),
    "row minima": (dense(-1, jnp.min), ((31, 8), (8, 64), (64,))),
    "all": (dense((0, 1)), ((64, 16), (16, 32), (32,))),
    "a batch": (dense((0, 1)), ((3, 20, 16), (16, 40), (40,))),
    "means of pixels": (convolved((1, 2)), ((2, 12, 10, 8), (3, 3, 8, 24))),
    "prime extents": (convolved((1, 2)), ((1, 17, 13, 5), (3, 3, 5, 7))),
    "by Winograd": (convolved((1, 2)), ((2, 28, 28, 32), (3, 3, 32, 64))),
    "depthwise": (convolved((1, 2), jnp.max, groups=24), ((1, 16, 9, 24), (3, 3, 1, 24))),
    "of images": (convolved((0, 1, 2), jnp.sum), ((4, 6, 6, 8), (1, 1, 8, 16))),
}


@pytest.mark.parametrize("case", CASES)
def test_reductions_are_those_of_xla(case):
    function, shapes = CASES[case]
    arguments = [normal(*shape) for shape in shapes]
    if case == "by Winograd":
        arguments[1] *= 0.05  # where tanh keeps errors as they are
    assert len(reducing(function, *arguments)) == 1
    check(function, *arguments, machine=RNG.choice([TINY_TILES, SIZED]), tolerance=1e-4 if case == "by Winograd" else 1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_results_are_reduced_in_float32(dtype):
    """Partial sums in 16 bits would be off by several units."""

    def function(x, w, b):
        y = x @ w + b
        return y, lax.reduce(y, np.zeros((), dtype), lax.add, (0,))

    arguments = [normal(*shape).astype(dtype) for shape in ((512, 24), (24, 40), (40,))]
    (op,) = reducing(function, *arguments)
    assert op.further[0].dtype == np.float32
    y, total = run_tiled(function, arguments)
    assert total.dtype == dtype
    exact = y.astype(np.float64).sum(0)
    unit = np.abs(exact).max() * float(jnp.finfo(dtype).eps)
    assert np.abs(total.astype(np.float64) - exact).max() <= unit


@pytest.mark.parametrize("case", ["column sums", "row sums", "means of pixels"])
def test_what_is_not_finite_reaches_its_own_sums_alone(case):
    function, shapes = CASES[case]
    arguments = [normal(*shape) for shape in shapes]
    arguments[1][..., 3], arguments[1][..., 5] = np.nan, np.inf
    with_partial = run_tiled(function, arguments)
    for ours, apart in zip(with_partial, run_tiled(function, arguments, ("partial_reduce",)), strict=True):
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(apart))
    assert not np.isfinite(with_partial[1]).all()


def test_an_empty_result_gives_what_nothing_comes_to():
    function = dense(0)
    arguments = normal(0, 8), normal(8, 16), normal(16)
    check(function, *arguments)


def mean_square(params, x):
    for w, b in params:
        x = jax.nn.relu(x @ w + b)
    return jnp.mean(x**2)


def test_gradients_of_biases_are_read_once():
    """Each product that gives the gradient of a layer's input also sums it up, in the memory of what it masks by."""
    params = [(normal(64, 64), normal(64)) for _ in range(3)]
    function, x = jax.grad(mean_square), normal(256, 64)
    ops = reducing(function, params, x)
    assert len(ops) == 3
    assert any(op.in_place for op in ops)
    check(function, params, x)
    with_partial, without = (
        apu.build(run_passes(part_of(function, params, x), disabled), 2).stats() for disabled in ((), ("partial_reduce",))
    )
    assert with_partial["bytes"] < without["bytes"]


def test_a_reduction_of_a_small_result_is_left(monkeypatch):
    monkeypatch.setattr(partial_reduce, "_SMALLEST_RESULT", 1 << 20)
    function, shapes = CASES["column sums"]
    arguments = [normal(*shape) for shape in shapes]
    assert not reducing(function, *arguments)
    assert reducing(function, normal(8192, 40), *arguments[1:])


def graph_of(case="column sums"):
    function, shapes = CASES[case]
    arguments = [normal(*shape) for shape in shapes]
    return apu.build(run_passes(part_of(function, *arguments)), 2, SIZED), arguments


def test_the_bits_depend_on_no_scheduling():
    graph, arguments = graph_of("means of pixels")
    first = graph.run(*arguments)
    for _ in range(20):
        for one, other in zip(first, graph.run(*arguments), strict=True):
            assert one.tobytes() == other.tobytes()


def test_a_file_keeps_the_graph(tmp_path):
    graph, arguments = graph_of()
    graph.save(tmp_path / "graph.aspen")
    again = graph.load(tmp_path / "graph.aspen")
    again.verify()
    for one, other in zip(graph.run(*arguments), again.run(*arguments), strict=True):
        assert one.tobytes() == other.tobytes()


def test_partial_results_go_from_memory_to_memory():
    graph, arguments = graph_of()
    links = [sched.Link("host", "fake", 10_000, 2e9), sched.Link("fake", "host", 10_000, 2e9)]
    machine = sched.Machine([sched.Cpu(1), sched.Fake(2, repeat=2)], links)
    random = np.random.default_rng(0)
    policy = sched.Static(random.integers(len(machine.resources), size=graph.num_tiles), random.random(graph.num_tiles))
    schedule = sched.run(graph, *arguments, machine=machine, policy=policy)
    for one, other in zip(schedule.results, graph.run(*arguments), strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def test_a_tile_that_cuts_a_unit_is_refused():
    graph, arguments = graph_of()
    (op,) = [op for op in graph.program().ops if op.family is PARTIAL_REDUCE]
    rows, boxes = op.output.shape[0], graph.tile_boxes.copy()
    tiles = boxes[: 4 * len(graph.tiles_of(0)[0])].reshape(-1, 2, 2)  # a view
    where = tiles[tiles[:, 1, 0] < rows][0, 1, 0]  # two tiles meet
    tiles[:, :, 0] += tiles[:, :, 0] == where
    damaged = dataclasses.replace(graph, tile_boxes=boxes)
    with pytest.raises(GraphFormatError, match="a part of an element"):
        damaged.verify()
    with pytest.raises(AspenError, match="cuts what a partial result is reduced from"):
        damaged.run(*arguments)


def test_any_changed_word_is_refused_or_right():
    graph, arguments = graph_of()
    most_are_refused(graph, PARTIAL_REDUCE, arguments)


# GPUs are not asked to before that was measured.
ASKED = tuple(
    (title, tuple(item for own in passes for item in ((PASSES["partial_reduce"], own) if own.name == "merge" else (own,))))
    for title, passes in UNPLANNED
)


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("cases", [["odd columns", "row sums"], ["means of pixels", "depthwise"]], ids=["product", "images"])
def test_cuda_code_on_the_host(cases):
    case = RNG.choice(cases)
    function, shapes = CASES[case]
    arguments = [normal(*shape) for shape in shapes]
    assert [op.family.name for op in ops_of(function, arguments, stages=ASKED)] == ["partial_reduce", "reduce"]
    arguments[1] *= 0.1  # where tanh keeps errors as they are
    check_on_host(function, *arguments, tolerance=5e-3, stages=ASKED)


def test_gpus_are_not_asked_to_before_that_was_measured():
    function, shapes = CASES["column sums"]
    arguments = [normal(*shape) for shape in shapes]
    assert not any(op.family is PARTIAL_REDUCE for op in ops_of(function, arguments, Gpu()))


def test_the_shape_of_a_cuda_kernel():
    function, shapes = CASES["means of pixels"]
    (op, _) = ops_of(function, [normal(*shape) for shape in shapes], stages=ASKED)
    shape = PartialReduceShape.of(op)
    assert shape.unit == op.attrs.unit
    assert shape.result.of == (12 * 10 * 24, 10 * 24, 24, 1)
