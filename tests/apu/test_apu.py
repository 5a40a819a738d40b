"""The APU: tiles as the cost model wants them, edges against an element-wise oracle, memory against any order of execution."""

from __future__ import annotations

import dataclasses
import math
import time
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax.apu import Machine, build
from aspen_jax.apu.grid import Grid
from aspen_jax.apu.memory import Touches, overlapping
from aspen_jax.cost.tiling import cut_points
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops import windows
from aspen_jax.ops.arg_reduce import ARG_REDUCE
from aspen_jax.ops.attention import ATTENTION
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import single
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.concatenate import CONCATENATE
from aspen_jax.ops.conv import CONV2D, ConvAttrs
from aspen_jax.ops.conv_panels import CONV2D_PANELS
from aspen_jax.ops.gather import GATHER
from aspen_jax.ops.matmul import MATMUL, MATMUL_PANELS, MatmulAttrs
from aspen_jax.ops.pad import PAD
from aspen_jax.ops.pool import POOL, PoolAttrs
from aspen_jax.ops.ragged_dot import RAGGED_DOT
from aspen_jax.ops.scatter import SCATTER
from aspen_jax.ops.select_windows import SELECT_AND_GATHER_ADD, SELECT_AND_SCATTER_ADD
from aspen_jax.ops.sort import SORT
from aspen_jax.ops.winograd import TILES, WINOGRAD, WinogradAttrs
from tests.random_programs import elements_read, random_program
from tests.tile_graphs import build_with_random_tiles, numbers_of


def boxes_of_tiles(graph: TileGraph) -> dict[int, tuple[int, np.ndarray]]:
    """For each tile its op and its box."""
    found = {}
    for op in range(graph.num_ops):
        tiles, boxes = graph.tiles_of(op)
        found.update((tile, (op, box)) for tile, box in zip(tiles.tolist(), boxes, strict=True))
    return found


def elements_in(box: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    inside = np.zeros(shape, bool)
    inside[tuple(slice(lo, hi) for lo, hi in box)] = True
    return np.flatnonzero(inside)


def is_box(elements: np.ndarray, shape: tuple[int, ...]) -> bool:
    if not shape:
        return elements.size == 1
    where = np.array(np.unravel_index(elements, shape))
    return elements.size == np.prod(where.max(axis=1) - where.min(axis=1) + 1)


def has_holes(op: Op) -> bool:
    """Whether the op reads with gaps, so that what it reads of a box need not be one."""
    names = ("dilation", "base_dilation", "window_dilation")
    return any(step > 1 for name in names for step in getattr(op.attrs, name, ()))


@pytest.mark.parametrize("seed", range(60))
def test_edges_are_those_of_the_element_wise_oracle(seed):
    program = random_program(seed, rewrites=False)
    graph = build_with_random_tiles(program, seed, reuse=False)
    tiles = boxes_of_tiles(graph)
    owner = {}
    for number, op in enumerate(program.ops):
        owner.update(dict.fromkeys(op.outputs, np.full(op.output.size, -1)))
        for tile, (tile_op, box) in tiles.items():
            if tile_op == number:
                owner[op.output][elements_in(box, op.output.shape)] = tile
    read = [[elements_read(op, index) for index in range(len(op.inputs))] for op in program.ops]
    parents, children = graph.dag.edges()
    for tile, (number, box) in tiles.items():
        op = program.ops[number]
        needed, boxes_only = set(), not has_holes(op)
        for operand, dependence in zip(op.inputs, read[number], strict=True):
            elements = np.flatnonzero(dependence[elements_in(box, op.output.shape)].any(axis=0))
            if operand.value in owner and elements.size:
                needed |= set(owner[operand.value][elements].tolist())
                boxes_only &= is_box(elements, operand.value.shape)
            elif operand.value in owner:
                boxes_only &= op.family in (CONCATENATE, SCATTER)  # a window may lie in the padding or between dilated elements
        made = set(parents[children == tile].tolist())
        assert needed <= made, f"tile {tile} of {op.name} misses parents"
        if boxes_only:
            assert needed == made, f"tile {tile} of {op.name} has parents that it does not need"


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.sweep
def test_no_order_of_execution_reads_what_reuse_has_overwritten(seed):
    program = random_program(seed, steps=12)
    graph = build_with_random_tiles(program, seed, reuse=True)
    graph.verify()
    read = [[elements_read(op, index) for index in range(len(op.inputs))] for op in program.ops]
    plain = build_with_random_tiles(program, seed, reuse=False)
    assert graph.workspace_bytes <= plain.workspace_bytes
    for order_seed in range(4):
        run_in_some_order(graph, program, read, np.random.default_rng(order_seed), deepest_first=order_seed % 2 == 1)


@pytest.mark.parametrize("seed", range(3))
def test_the_oracle_sees_what_the_references_do(seed):
    """A one walks through each input; every output that it reaches depends on it."""
    for op in random_program(seed, steps=4).ops:
        for index, operand in enumerate(op.main_inputs):
            # Values say which.
            chosen = (GATHER, SCATTER, ARG_REDUCE, SORT, SELECT_AND_SCATTER_ADD, SELECT_AND_GATHER_ADD, RAGGED_DOT)
            if (op.family is PAD and index == 1) or op.family in chosen:
                continue
            view = operand.view
            multiplies = op.family in (CONV2D, CONV2D_PANELS, MATMUL, MATMUL_PANELS, ATTENTION)
            others = [np.full(item.shape, multiplies, np.float32) for item in op.main_inputs]
            others[index] = np.zeros(view.shape, np.float32)
            without = np.asarray(op.family.reference(op.attrs, *map(jnp.asarray, others)))
            expected = np.zeros((op.output.size, operand.value.size), bool)
            elements = view.gather(np.arange(operand.value.size)).reshape(-1)
            for k, one in enumerate(np.eye(len(elements), dtype=np.float32)):
                others[index] = one.reshape(view.shape)
                with_one = np.asarray(op.family.reference(op.attrs, *map(jnp.asarray, others)))
                expected[:, elements[k]] |= (with_one != without).reshape(-1)
            np.testing.assert_array_equal(elements_read(op, index), expected)


def run_in_some_order(graph, program, read, rng, deepest_first):
    """Runs tiles as soon as their parents have run, marking each byte with the element that it holds."""
    sizes = {}
    first_mark, marks = {}, 0
    rebuilt = graph.program()
    number_of = numbers_of(rebuilt, graph)
    for value, number in number_of.items():
        buffer, offset = graph.values[number, :2].tolist()
        sizes[buffer] = max(sizes.get(buffer, 0), offset + value.nbytes)
        first_mark[value] = marks
        marks += value.size
    buffers = {buffer: np.full(size, -1, np.int64) for buffer, size in sizes.items()}

    def place(value, elements):
        buffer, offset = graph.values[number_of[value], :2].tolist()
        return buffer, (offset + elements[:, None] * value.dtype.itemsize + np.arange(value.dtype.itemsize)).reshape(-1)

    def write(value, elements):
        buffer, where = place(value, elements)
        buffers[buffer][where] = np.repeat(first_mark[value] + elements, value.dtype.itemsize)

    def check(value, elements):
        buffer, where = place(value, elements)
        assert (buffers[buffer][where] == np.repeat(first_mark[value] + elements, value.dtype.itemsize)).all()

    for value in rebuilt.inputs:
        write(value, np.arange(value.size))
    tiles = boxes_of_tiles(graph)
    waiting = graph.parent_counts
    ready = np.flatnonzero(waiting == 0).tolist()
    done = 0
    while ready:
        tile = ready.pop(
            max(range(len(ready)), key=lambda k: tiles[ready[k]][0]) if deepest_first else int(rng.integers(len(ready)))
        )
        number, box = tiles[tile]
        op = rebuilt.ops[number]
        elements = elements_in(box, op.output.shape)
        for operand, dependence in zip(op.inputs, read[number], strict=True):
            check(operand.value, np.flatnonzero(dependence[elements].any(axis=0)))
        for value in op.outputs:
            write(value, elements)
        done += 1
        for child in graph.dag.step(np.array([tile]))[1].tolist():
            waiting[child] -= 1
            if waiting[child] == 0:
                ready.append(child)
    assert done == graph.num_tiles
    for operand in rebuilt.outputs:
        check(operand.value, np.arange(operand.value.size))


@pytest.mark.parametrize(("window", "tile"), [(window, tile) for window in TILES for tile in TILES[window]])
@pytest.mark.parametrize("phases", [(1, 1), (2, 3)])
@pytest.mark.parametrize("seed", range(10))
def test_winograd_regions_hold_the_whole_patches_of_a_tile(seed, phases, window, tile):
    """The kernel reads the inputs of each whole patch from the tile's corner on, also for outputs beyond its end."""
    (down, across), (taps_down, taps_across) = tile, window
    points = (down + taps_down - 1) * (across + taps_across - 1) + taps_down * taps_across
    rng = np.random.default_rng(seed)
    height, width = (int(rng.integers(9, 20) * squares - rng.integers(0, squares)) for squares in phases)
    channels = 5 * math.prod(phases)
    padding = tuple(rng.integers(-1, 3, 4).tolist())
    build_ops = Builder()
    x, u = (Operand.whole(Value(shape, np.dtype(np.float32))) for shape in ((2, height, width, 5), (points, 3, channels, 32)))
    out = build_ops.op(WINOGRAD, WinogradAttrs(padding, 70, window, tile, phases, (0, 0), phases), [x, u])
    (op,) = build_ops.ops
    lo = np.array([rng.integers(0, extent) for extent in out.shape])
    hi = np.array([rng.integers(low, extent) + 1 for low, extent in zip(lo, out.shape, strict=True)])
    box = np.stack([lo, hi], axis=1)[None]
    read = np.zeros(x.shape, bool)
    for row in range(lo[1], hi[1], down):
        for column in range(lo[2], hi[2], across):
            rows, columns = (
                [r for r in range((start - low) * squares, (start - low + extent) * squares) if 0 <= r < size]
                for start, low, extent, squares, size in (
                    (row, padding[0], down + taps_down - 1, phases[0], height),
                    (column, padding[2], across + taps_across - 1, phases[1], width),
                )
            )
            read[np.ix_(range(lo[0], hi[0]), rows, columns, range(5))] = True
    (region,) = op.family.region(op, 0, box)
    covered = np.zeros(x.shape, bool)
    covered[tuple(slice(low, high) for low, high in region)] = True
    np.testing.assert_array_equal(covered, read)
    (region,) = op.family.region(op, 1, box)
    np.testing.assert_array_equal(region, [(0, points), (lo[3] // 32, (hi[3] - 1) // 32 + 1), (0, channels), (0, 32)])


def conv(shape, weight, strides=(1, 1), padding=(1, 1, 1, 1)):
    build_ = Builder()
    x, w = Value(shape, np.dtype(np.float32)), Value(weight, np.dtype(np.float32))
    out = build_.op(CONV2D, ConvAttrs(strides, padding, (1, 1), 1), [Operand.whole(x), Operand.whole(w)])
    return Program((x, w), (), tuple(build_.ops), (out,))


@pytest.mark.parametrize("num_workers", [1, 2, 8, 64])
@pytest.mark.parametrize(
    ("shape", "weight"),
    [((1, 56, 56, 64), (3, 3, 64, 64)), ((1, 7, 7, 512), (3, 3, 512, 512)), ((8, 28, 28, 64), (1, 1, 64, 256))],
)
def test_a_large_op_gives_each_worker_several_tiles_that_are_worth_a_schedule(shape, weight, num_workers):
    machine = Machine()
    program = conv(shape, weight, padding=(weight[0] // 2,) * 4)
    graph = build(program, num_workers, machine)
    assert graph.costs.min() >= 0.5 * machine.shortest_tile_ns
    if machine.of_ops(program.ops) / (num_workers * machine.tiles_per_worker) > 2 * machine.shortest_tile_ns:
        assert graph.num_tiles >= num_workers * machine.tiles_per_worker


def test_early_layers_are_tiled_in_whole_pixel_columns_and_whole_rows():
    graph = build(conv((1, 56, 56, 64), (3, 3, 64, 64)), 2)
    _, boxes = graph.tiles_of(0)
    assert (boxes[:, 2] == (0, 56)).all()
    assert (boxes[:, 3] == (0, 64)).all()


def test_a_layer_with_more_weights_than_pixels_is_split_into_columns():
    graph = build(conv((1, 7, 7, 512), (3, 3, 512, 512)), 2)
    _, boxes = graph.tiles_of(0)
    assert len(np.unique(boxes[:, 3, 0])) > 1


def test_a_tiny_op_is_one_tile():
    assert build(conv((1, 4, 4, 8), (3, 3, 8, 8)), 64).num_tiles == 1


def product_of_one_row(order):
    """[1,4096] by a matrix of 4096 x 4096, which lies as einsum's letters say."""
    build = Builder()
    a, b = (Operand.whole(Value(shape, np.dtype(np.float32))) for shape in ((1, 4096), (4096, 4096)))
    build.op(MATMUL, MatmulAttrs((0, -1), {"kn": (-1, 1), "nk": (1, -1)}[order]), [a, b])
    return build.ops[0]


def test_a_matrix_that_lies_as_it_comes_is_read_in_long_pieces():
    narrow = np.array([[[0, 1], [64, 128]]])
    assert MATMUL.work(product_of_one_row("kn"), narrow).pieces == 4096
    assert MATMUL.work(product_of_one_row("nk"), narrow).pieces == 0  # whole columns, one behind the other
    assert MATMUL.work(product_of_one_row("kn"), np.array([[[0, 1], [0, 4096]]])).pieces == 0
    op = product_of_one_row("kn")
    parts = [len(cut_points(op, 2, Machine(piece_ns=nanoseconds))[1]) - 1 for nanoseconds in (0.0, Machine().piece_ns)]
    assert parts[1] < parts[0]


def test_cuts_lie_on_the_grain():
    (op,) = conv((3, 9, 11, 8), (1, 1, 8, 100), padding=(0, 0, 0, 0)).ops
    op = dataclasses.replace(op, family=Grained())
    cuts = cut_points(op, 16, Machine(flops_per_ns=0.01))
    for cut, extent, grain in zip(cuts, op.output.shape, op.family.grain(op), strict=True):
        assert cut[0] == 0
        assert cut[-1] == extent
        assert (cut[:-1] % grain == 0).all()
        assert (np.diff(cut) > 0).all()


class Grained(type(CONV2D)):
    """A convolution whose kernel wants blocks of 2 by 5 pixels and 24 channels."""

    def grain(self, op):
        return (1, 2, 5, 24)


def test_values_without_elements_have_no_tiles():
    x = Value((2, 0, 3), np.dtype(np.float32))
    builder = Builder()
    out = builder.block(single("neg_f"), [Operand.whole(x)], x.shape, np.float32)
    graph = build(Program((x,), (), tuple(builder.ops), (out,)), 2)
    graph.verify()
    assert graph.num_tiles == 0
    assert TileGraph.from_bytes(graph.to_bytes()) == graph


def test_depth_is_the_longest_path_in_ops():
    x = Operand.whole(Value((64,), np.dtype(np.float32)))
    builder = Builder()
    a = builder.block(single("neg_f"), [x], (64,), np.float32)
    b = builder.block(single("neg_f"), [a], (64,), np.float32)
    c = builder.block(single("add_f"), [a, b], (64,), np.float32)
    d = builder.block(single("add_f"), [x, x], (64,), np.float32)
    graph = build(Program((x.value,), (), tuple(builder.ops), (c, d)), 2)
    assert graph.ops[:, 4].tolist() == [0, 1, 2, 0]
    assert graph.max_depth == 2


def test_outputs_that_no_op_writes_are_refused():
    x = Operand.whole(Value((4,), np.dtype(np.float32)))
    with pytest.raises(ValueError, match="written by an op"):
        build(Program((x.value,), (), (), (x,)), 2)


def test_reuse_is_refused_where_its_edges_would_cost_more_than_the_memory():
    """Two all-to-all layers of many tiles: ordering every tile of one after every tile of the other is not worth a buffer."""
    builder = Builder()
    x = Operand.whole(Value((128, 128), np.dtype(np.float32)))
    chain = [x]
    for _ in range(4):
        mixed = Operand(chain[-1].value, chain[-1].view.transpose((1, 0)))
        dense = builder.block(single("neg_f"), [mixed], (128, 128), np.float32)
        chain.append(dense)
    program = Program((x.value,), (), tuple(builder.ops), (chain[-1],))
    with mock.patch("aspen_jax.apu.pipeline.cut_points", return_value=(np.arange(129), np.array([0, 128]))):
        graph = build(program, 2)
        plain = build(program, 2, reuse=False)
    graph.verify()
    assert graph.num_edges <= plain.num_edges + 16 * 2 * graph.num_tiles


@pytest.mark.parametrize("seed", range(20))
def test_overlapping_ranges_are_found(seed):
    rng = np.random.default_rng(seed)

    def ranges(n):
        lo = rng.integers(0, 60, n)
        return Touches(rng.permutation(n), lo, lo + rng.integers(1, 25, n))

    early, late = ranges(rng.integers(0, 20)), ranges(rng.integers(0, 20))
    found = set(zip(*(array.tolist() for array in overlapping(early, late)), strict=True))
    expected = {(a, b) for a, al, ah in zip(*early, strict=True) for b, bl, bh in zip(*late, strict=True) if al < bh and bl < ah}
    assert found == expected


def test_a_grid_finds_the_cells_that_boxes_meet():
    grid = Grid.numbered([np.array([0, 2, 5]), np.array([0, 1, 4, 6])], 10)
    row, cell = grid.touched(np.array([[[1, 3], [0, 4]], [[2, 2], [0, 6]], [[4, 5], [5, 6]]]))
    assert row.tolist() == [0, 0, 0, 0, 2]
    assert grid.tiles[cell].tolist() == [10, 11, 13, 14, 15]


def test_pooling_is_cut_between_pixels_not_through_them():
    """Channels read apart from their neighbours cost more than the rows that neighbouring windows share."""
    x = Value((1, 112, 112, 64), np.dtype(np.float32))
    ones, sides = (1, 1, 1, 1), (0, 1, 1, 0)
    builder = Builder()
    builder.op(POOL, PoolAttrs(windows.MAX, (1, 3, 3, 1), (1, 2, 2, 1), sides, sides, ones, ones), [Operand.whole(x)])
    rows, channels = cut_points(builder.ops[0], 2, Machine())[1::2]
    assert len(rows) > 2
    assert channels.tolist() == [0, 64]


def test_a_hundred_thousand_tiles_take_seconds():
    """A budget with a wide margin: a build that works element by element or tile by tile takes minutes."""
    builder = Builder()
    x = Operand.whole(Value((1024, 1024), np.dtype(np.float32)))
    last = x
    for _ in range(25):
        last = builder.block(single("add_f"), [last, last], last.shape, np.float32)
    program = Program((x.value,), (), tuple(builder.ops), (last,))
    cuts = np.arange(0, 1025, 16)
    with mock.patch("aspen_jax.apu.pipeline.cut_points", return_value=(cuts, cuts)):
        started = time.process_time()
        graph = build(program, 2)
        graph.verify()
        elapsed = time.process_time() - started
    assert graph.num_tiles == 102_400
    assert BLOCK.kernel in graph.kernels
    assert elapsed < 60
