"""TileGraph: its bytes and files, what its checks refuse, and its numbers."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import numpy as np
import pytest

from aspen_jax import graph_format
from aspen_jax.apu import Machine, build, pack
from aspen_jax.apu.dependencies import reads_of
from aspen_jax.apu.memory import touches
from aspen_jax.dag import Dag
from aspen_jax.dtypes import DTYPES
from aspen_jax.errors import GraphFormatError, InputError
from aspen_jax.ops.block_program import single
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.conv import CONV2D, ConvAttrs
from aspen_jax.program import Operand, Program, Value
from aspen_jax.reference import evaluate
from aspen_jax.tilegraph import TileGraph
from aspen_jax.verify_reuse import check_reuse
from aspen_jax.view import View
from tests.random_programs import random_program
from tests.test_apu import build_with_random_tiles, numbers_of

FLOAT = np.dtype(np.float32)
FINE = Machine(flops_per_ns=1e-3, tile_ns=1.0, shortest_tile_ns=1.0)


def small_net(seed: int = 0) -> TileGraph:
    """Five convolutions and an addition, tiled finely, with a constant and reused memory."""
    rng = np.random.default_rng(seed)
    builder = Builder()
    x = Operand.whole(Value((1, 48, 32, 8), FLOAT))
    constant = builder.constant(rng.standard_normal((8,), np.float32))
    last, w = x, Operand.whole(Value((3, 3, 8, 8), FLOAT))
    for _ in range(5):
        last = builder.op(CONV2D, ConvAttrs((1, 1), (1, 1, 1, 1), (1, 1), 1), [last, w])
    bias = Operand(constant.value, constant.view.broadcast_in_dim(last.shape, (3,)))
    last = builder.block(single("add_f"), [last, bias], last.shape, FLOAT)
    ops = tuple(dataclasses.replace(op, name=f"layer{k}") for k, op in enumerate(builder.ops))
    return build(Program((x.value, w.value), tuple(builder.constants), ops, (last,)), 2, FINE)


def random_graph(seed: int) -> TileGraph:
    return build_with_random_tiles(random_program(seed, steps=10), seed, reuse=True)


@pytest.mark.parametrize("seed", range(30))
def test_bytes_say_all_about_a_graph(seed):
    graph = random_graph(seed)
    again = TileGraph.from_bytes(graph.to_bytes())
    for field in dataclasses.fields(TileGraph):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(graph, field.name))
    assert again == graph
    assert hash(again) == hash(graph)
    assert again != random_graph(seed + 1)
    again.verify()


@pytest.mark.parametrize("seed", range(20))
def test_arrays_of_any_integers_survive_coding(seed):
    rng = np.random.default_rng(seed)
    arrays = [
        rng.integers(-(1 << int(rng.integers(1, 63))), 1 << int(rng.integers(1, 63)), int(rng.integers(0, 40)))
        for _ in range(int(rng.integers(1, 6)))
    ]
    arrays.append(np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0, -1]))
    data = graph_format.encode([(array, (int(rng.integers(0, 9)),)) for array in arrays])
    for array, again in zip(arrays, graph_format.decode(data, len(arrays)), strict=True):
        np.testing.assert_array_equal(again, array)


def test_the_bytes_are_those_of_the_format_page():
    data = graph_format.encode([(np.array([1, 3, 5, -200]), (1,)), (np.array([], np.int64), (0,))])
    payload = bytes([4, 1, 2, 4, 4, 0x99, 0x03, 0, 0])
    assert data == b"ASPENTG\0" + struct.pack("<IIQ", 1, zlib.crc32(payload), len(payload)) + payload


def test_neighbours_in_a_lattice_cost_few_bytes():
    graph = small_net()
    assert graph.num_tiles > 100
    assert len(graph.to_bytes()) < 10 * graph.num_tiles + 1.5 * graph.num_edges + 500


def test_a_program_comes_back_from_its_graph():
    program = random_program(5)
    graph = build(program, 2)
    again = graph.program()
    assert [str(op.attrs) for op in again.ops] == [str(op.attrs) for op in program.ops]
    assert [op.program for op in again.ops] == [op.program for op in program.ops]
    assert [[item.view for item in op.inputs] for op in again.ops] == [[item.view for item in op.inputs] for op in program.ops]
    assert [(value.shape, value.dtype) for value in again.inputs] == [(value.shape, value.dtype) for value in program.inputs]
    assert [op.name for op in again.ops] == [op.name for op in program.ops]


def test_stats_and_repr_count():
    graph = small_net()
    stats = graph.stats()
    assert stats["ops"] == graph.num_ops == 6
    assert stats["tiles"] == graph.num_tiles == sum(stats["kernels"].values())
    assert stats["edges"] == graph.num_edges == len(graph.children)
    assert stats["flops"] == pytest.approx(5 * 2 * 48 * 32 * 8 * 72 + 48 * 32 * 8)
    assert stats["work_ns"] == graph.costs.sum()
    assert graph.costs.max() < stats["critical_path_ns"] < stats["work_ns"]
    assert stats["constant_bytes"] == 32
    assert f"{graph.num_tiles} tiles" in repr(graph)


# Files


def test_a_file_brings_back_graph_and_constants(tmp_path):
    graph = small_net()
    graph.save(tmp_path / "net.aspen")
    again = TileGraph.load(tmp_path / "net.aspen")
    assert again == graph
    np.testing.assert_array_equal(again.constants[0], graph.constants[0])
    assert again != small_net(seed=1)
    assert [path.name for path in tmp_path.iterdir()] == ["net.aspen"]


def test_constants_of_every_kind_survive(tmp_path):
    arrays = [np.arange(7, dtype=np.int8), np.array(2.5, np.float32), np.zeros((0, 3), np.float32), np.eye(3, dtype=bool)]
    x = Operand.whole(Value((2,), FLOAT))
    builder = Builder()
    for array in arrays:
        builder.constant(array)
    out = builder.block(single("neg_f"), [x], (2,), FLOAT)
    graph = build(Program((x.value,), tuple(builder.constants), tuple(builder.ops), (out,)), 1)
    graph.save(tmp_path / "g")
    for array, again in zip(arrays, TileGraph.load(tmp_path / "g").constants, strict=True):
        assert again.dtype == array.dtype
        np.testing.assert_array_equal(again, array)


def of_small_constants(sizes: list[int]) -> tuple[TileGraph, np.ndarray]:
    """A vector plus the sums of some constants, and what that is for zeros."""
    rng = np.random.default_rng(len(sizes))
    x = Operand.whole(Value((8,), FLOAT))
    builder, expected, last = Builder(), np.zeros(8, np.float32), x
    for size in sizes:
        array = rng.standard_normal((size, 8), np.float32)
        row = builder.constant(array)
        view = row.view.slice((size - 1, 0), (size, 8)).reshape((8,))
        last = builder.block(single("add_f"), [last, Operand(row.value, view)], (8,), FLOAT)
        expected += array[-1]
    return build(Program((x.value,), tuple(builder.constants), tuple(builder.ops), (last,)), 1), expected


@pytest.mark.parametrize("sizes", [[1], [1, 3], [2, 1, 5, 40000, 7, 33000]])
def test_small_constants_share_an_operand(tmp_path, sizes):
    graph, expected = of_small_constants(sizes)
    large = [size for size in sizes if size > 30000]
    assert len(graph.constants) == len(large) + 1
    graph.verify()
    TileGraph.from_bytes(graph.to_bytes()).verify()
    graph.save(tmp_path / "g")
    for again in (graph, TileGraph.load(tmp_path / "g"), build(graph.program(), 1)):
        np.testing.assert_array_equal(again.run(np.zeros(8, np.float32))[0], expected)
        assert sorted(array.size for array in again.constants) == sorted(array.size for array in graph.constants)


def test_constants_that_were_packed_are_not_copied_again():
    program = of_small_constants([2, 3, 4])[0].program()
    packed = pack(program.constants)
    assert all(array.base is packed.operands[0][1] for _, array in packed.constants)
    assert pack(packed.constants).operands[0][1] is packed.operands[0][1]
    assert pack(packed.constants[1:]).operands[0][1] is not packed.operands[0][1]


@pytest.mark.parametrize(("column", "number"), [(1, 32), (1, 1 << 20), (2, DTYPES.index(np.dtype(np.int32)))])
def test_values_that_do_not_lie_inside_their_operand_are_refused(column, number):
    graph, _ = of_small_constants([1, 2])
    values = graph.values.copy()
    (part,) = np.flatnonzero((values[:, 0] == 1) & (values[:, 1] > 0))
    values[part, column] = number
    broken = dataclasses.replace(graph, values=values)
    with pytest.raises(GraphFormatError, match=f"value {part} lies at byte"):
        broken.verify()
    with pytest.raises(GraphFormatError, match=f"value {part}"):
        broken.run(np.zeros(8, np.float32))


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path):
    graph = small_net()
    graph.save(tmp_path / "g")
    broken = dataclasses.replace(graph, constants=(Unwritable(),))
    with pytest.raises(RuntimeError):
        broken.save(tmp_path / "g")
    assert TileGraph.load(tmp_path / "g") == graph
    assert len(list(tmp_path.iterdir())) == 1


class Unwritable:
    nbytes = 4

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError


def test_every_truncation_of_a_file_is_refused(tmp_path):
    path = tmp_path / "g"
    small_net().save(path)
    whole = path.read_bytes()
    for size in {*range(0, len(whole), 37), *range(len(whole) - 70, len(whole)), *range(40)}:
        path.write_bytes(whole[:size])
        with pytest.raises(GraphFormatError, match="save the graph again"):
            TileGraph.load(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(GraphFormatError):
        TileGraph.load(path)


def test_every_flipped_bit_of_a_file_is_refused_or_harmless(tmp_path):
    path = tmp_path / "g"
    graph = small_net()
    graph.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        position, bit = int(rng.integers(len(whole))), int(rng.integers(8))
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(GraphFormatError, match=str(path)):
            TileGraph.load(path)


def test_another_version_is_named():
    data = bytearray(small_net().to_bytes())
    data[8] = 9
    with pytest.raises(GraphFormatError, match=r"version 9 .* version 1"):
        TileGraph.from_bytes(bytes(data))


def test_a_missing_file_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        TileGraph.load(tmp_path / "nothing")


# Hostile bytes with a right checksum


def with_payload(payload: bytes) -> bytes:
    return b"ASPENTG\0" + struct.pack("<IIQ", 1, zlib.crc32(payload), len(payload)) + payload


@pytest.mark.parametrize("seed", range(8))
def test_mutated_payloads_are_refused_or_right(seed):
    """Any bytes at all either fail with GraphFormatError or make a graph that passes every check."""
    rng = np.random.default_rng(seed)
    payload = (small_net() if seed % 2 else random_graph(seed)).to_bytes()[24:]
    for _ in range(150):
        mutated = bytearray(payload)
        for _ in range(int(rng.integers(1, 4))):
            position = int(rng.integers(len(mutated)))
            match int(rng.integers(4)):
                case 0:
                    mutated[position] ^= 1 << int(rng.integers(8))
                case 1:
                    mutated[position] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))
                case 2:
                    del mutated[position]
                case 3:
                    mutated.insert(position, int(rng.integers(256)))
        try:
            TileGraph.from_bytes(with_payload(bytes(mutated))).verify()
        except GraphFormatError as error:
            assert str(error)  # noqa: PT017 (that it is this error is the point)


@pytest.mark.parametrize("seed", range(8))
def test_mutated_arrays_are_refused_or_right(seed):
    """As above, but with a number changed inside an otherwise well-formed graph, which reaches the deeper checks."""
    rng = np.random.default_rng(seed)
    graph = small_net() if seed % 2 else random_graph(seed)
    names = [field.name for field in dataclasses.fields(TileGraph) if isinstance(getattr(graph, field.name), np.ndarray)]
    refused = 0
    for _ in range(150):
        name = names[int(rng.integers(len(names)))]
        array = getattr(graph, name).copy()
        if not array.size:
            continue
        change = int(rng.choice([-1, 1, 2, 16, 64, -(1 << 40), (1 << 62), -(1 << 63)]))
        with np.errstate(over="ignore"):
            array.reshape(-1)[int(rng.integers(array.size))] += np.int64(change)
        try:
            dataclasses.replace(graph, **{name: array}).verify()
        except GraphFormatError:
            refused += 1
    assert refused > 75


# Each check, by the graph that only it refuses


def refused(graph: TileGraph, match: str) -> None:
    with pytest.raises(GraphFormatError, match=match):
        graph.verify()


def changed(graph: TileGraph, name: str, index, value) -> TileGraph:
    array = getattr(graph, name).copy()
    array[index] = value
    return dataclasses.replace(graph, **{name: array})


def test_a_cycle_is_refused():
    graph = small_net()
    parents, children = graph.dag.edges()
    for edge in (0, len(parents) // 2, len(parents) - 1):
        back = Dag.from_edges(graph.num_tiles, np.append(parents, children[edge]), np.append(children, parents[edge]))
        refused(dataclasses.replace(graph, child_counts=back.child_counts, children=back.children), "cycle")


def test_a_tile_that_reaches_over_its_neighbour_is_refused():
    graph = small_net()
    _, boxes = graph.tiles_of(0)
    refused(changed(graph, "tile_boxes", 5, boxes[0, 1, 1] + 1), "2 times|0 times|box")


def test_a_tile_that_is_missing_is_refused():
    graph = small_net()
    last = graph.num_tiles - 1
    parents, children = graph.dag.edges()
    kept = Dag.from_edges(last, parents[children != last], children[children != last])
    short = dataclasses.replace(
        graph, tile_ops=graph.tile_ops[:-1], tile_boxes=graph.tile_boxes[:-8], costs=graph.costs[:-1],
        child_counts=kept.child_counts, children=kept.children,
    )  # fmt: skip
    refused(short, "0 times|do not cover")


@pytest.mark.parametrize("seed", range(10))
def test_an_edge_that_data_needs_is_missed_wherever_it_is(seed):
    graph = random_graph(seed)
    plain = build_with_random_tiles(random_program(seed, steps=10), seed, reuse=False)
    parents, children = plain.dag.edges()
    rng = np.random.default_rng(seed)
    for edge in rng.permutation(len(parents))[:10]:
        all_parents, all_children = graph.dag.edges()
        kept = (all_parents != parents[edge]) | (all_children != children[edge])
        less = Dag.from_edges(graph.num_tiles, all_parents[kept], all_children[kept])
        refused(dataclasses.replace(graph, child_counts=less.child_counts, children=less.children), "does not wait for it")


def test_an_unknown_kernel_is_named():
    graph = small_net()
    refused(dataclasses.replace(graph, kernels=("conv9", "block")), "'conv9'")


def test_an_output_of_another_shape_is_refused():
    graph = small_net()
    value = graph.ops[0, 1]
    refused(changed(graph, "value_shapes", 4 * value + 1, 47), "does not fit|box|reshapes|bytes")


def test_a_view_that_leaves_its_value_is_refused():
    graph = small_net()
    start = 3 + 3  # value, ranks, then three dimensions of R
    assert graph.inputs[:4].tolist() == [0, 3, 4, 48]
    refused(changed(graph, "inputs", start, 1), "leaves its value")
    refused(changed(graph, "inputs", 3, 49), "reshapes")
    refused(changed(graph, "inputs", start + 3 + 3, 1), "walk")


def test_values_that_leave_the_workspace_are_refused():
    graph = small_net()
    refused(dataclasses.replace(graph, workspace_bytes=graph.workspace_bytes - 1), "workspace")
    inside = np.flatnonzero(graph.values[:, 0] == len(graph.operands) + len(graph.results))[0]
    refused(changed(graph, "values", (inside, 1), 4), "workspace")


def test_an_operand_that_an_op_writes_is_refused():
    graph = small_net()
    refused(changed(graph, "ops", (0, 1), 0), "operand")


def test_two_ops_that_write_one_value_are_refused():
    graph = small_net()
    refused(changed(graph, "ops", (0, 1), graph.ops[1, 1]), "another op writes|written by no op")


def test_a_result_that_no_op_or_two_write_is_refused():
    rng = np.random.default_rng(0)
    builder = Builder()
    x = Operand.whole(Value((4, 6), FLOAT))
    flat, again = (builder.block(single("exp_f"), [x], x.shape, FLOAT) for _ in range(2))
    reshaped = Operand(flat.value, View.identity((24,)))
    graph = build(Program((x.value,), (), tuple(builder.ops), (reshaped, again)), 1, FINE)
    graph.verify()
    inputs = rng.standard_normal((4, 6), np.float32)
    np.testing.assert_array_equal(graph.run(inputs)[0], graph.run(inputs)[1].ravel())
    result, written = int(graph.results[0]), int(graph.ops[0, 1])
    assert result != written
    refused(changed(graph, "values", (written, 0), 2), "written by [02] ops")
    refused(changed(graph, "values", (written, 2), 3), "dtype|buffer 1")
    refused(changed(graph, "values", (int(graph.ops[1, 1]), 0), 3), "workspace")
    shapes = graph.value_shapes.copy()
    shapes[-1] = 23
    refused(dataclasses.replace(graph, value_shapes=shapes), "buffer 1|elements")


# Reuse of memory


def is_safe_by_definition(graph: TileGraph) -> bool:
    """Element by element and path by path, as slow as it is plain."""
    program = graph.program()
    numbers = numbers_of(program, graph)
    parents, children = graph.dag.edges()
    ancestors: list[set[int]] = [set() for _ in range(graph.num_tiles)]
    for nodes in graph.dag.levels:
        for node in nodes.tolist():
            for parent in parents[children == node].tolist():
                ancestors[node] |= {parent} | ancestors[parent]
    used: dict[Value, list[tuple[int, set[int], bool]]] = {}
    for number, op in enumerate(program.ops):
        tiles, boxes = graph.tiles_of(number)
        accesses = [(op.output, tiles, boxes, True)]
        for index, operand in enumerate(op.inputs):
            region = op.family.region(op, index, boxes)
            used_by = (region[:, :, 1] > region[:, :, 0]).all(axis=1)
            value_boxes = operand.view.region(operand.value.shape, region[used_by])
            accesses.append((operand.value, tiles[used_by], value_boxes, False))
        for value, touching, value_boxes, writes in accesses:
            buffer, offset = graph.values[numbers[value], :2].tolist()
            if buffer != len(graph.operands) + len(graph.results):
                continue
            elements = np.arange(value.size).reshape(value.shape)
            for tile, box in zip(touching.tolist(), value_boxes, strict=True):
                part = elements[tuple(slice(lo, hi) for lo, hi in box)].reshape(-1).tolist()
                used.setdefault(value, []).append((tile, {offset + e * value.dtype.itemsize for e in part}, writes))

    def done_before(first: Value, second: Value) -> bool:
        return all(
            a in ancestors[b] for a, mine, _ in used[first] for b, yours, writes in used[second] if writes and mine & yours
        )

    values = list(used)
    return all(
        done_before(values[i], values[j]) or done_before(values[j], values[i]) for i in range(len(values)) for j in range(i)
    )


@pytest.mark.parametrize("seed", range(25))
def test_reuse_is_refused_exactly_where_it_is_unsafe(seed):
    """Random offsets and random missing edges, against the definition."""
    rng = np.random.default_rng(seed)
    graph = build_with_random_tiles(random_program(seed, steps=7), seed, reuse=bool(seed % 2))
    inside = np.flatnonzero(graph.values[:, 0] == len(graph.operands) + len(graph.results))
    for _ in range(6):
        values = graph.values.copy()
        if inside.size and rng.integers(2):
            moved = inside[rng.random(inside.size) < 0.4]
            values[moved, 1] = rng.integers(0, 12, moved.size) * 64
        parents, children = graph.dag.edges()
        kept = rng.random(graph.num_edges) < 0.95
        less = Dag.from_edges(graph.num_tiles, parents[kept], children[kept])
        other = dataclasses.replace(
            graph, values=values, child_counts=less.child_counts, children=less.children, workspace_bytes=1 << 20
        )
        program = other.program()
        tiles = [other.tiles_of(number) for number in range(other.num_ops)]
        reads = [reads_of(op, *tiles[number]) for number, op in enumerate(program.ops)]
        try:
            check_reuse(other, program, tiles, reads)
            accepted = True
        except GraphFormatError:
            accepted = False
        assert accepted == is_safe_by_definition(other)


def test_tiles_need_not_form_a_grid():
    """An output cut like a pinwheel is accepted, and its edges are checked all the same."""
    pinwheel = np.array([[[0, 1], [0, 2]], [[0, 2], [2, 3]], [[2, 3], [1, 3]], [[1, 3], [0, 1]], [[1, 2], [1, 2]]])
    x = Operand.whole(Value((3, 3), FLOAT))
    builder = Builder()
    a = builder.block(single("neg_f"), [x], (3, 3), FLOAT)
    b = builder.block(single("neg_f"), [a], (3, 3), FLOAT)
    graph = build(Program((x.value,), (), tuple(builder.ops), (b,)), 1)
    parents = np.array([0, 1, 2, 3, 4])
    wheel = dataclasses.replace(
        graph,
        tile_ops=np.array([0] * 5 + [1]),
        tile_boxes=np.concatenate([pinwheel.swapaxes(1, 2).reshape(-1), [0, 0, 3, 3]]),
        child_counts=np.array([1] * 5 + [0]),
        children=np.full(5, 5),
        costs=np.ones(6, np.int64),
    )
    wheel.verify()
    for missing in parents:
        kept = Dag.from_edges(6, np.delete(parents, missing), np.full(4, 5))
        refused(dataclasses.replace(wheel, child_counts=kept.child_counts, children=kept.children), "does not wait")


# The graph's questions about order


@pytest.mark.parametrize("seed", range(20))
def test_paths_levels_and_finish_times(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 90))
    order = rng.permutation(size)
    a, b = rng.integers(0, size, (2, int(rng.integers(0, 3 * size))))
    parents, children = order[np.minimum(a, b)][a != b], order[np.maximum(a, b)][a != b]
    dag = Dag.from_edges(size, parents, children)
    reach = np.zeros((size, size), bool)
    reach[parents, children] = True
    direct = reach.copy()
    for _ in range(size):
        reach |= reach @ reach
    before, after = (array.reshape(-1) for array in np.meshgrid(np.arange(size), np.arange(size), indexing="ij"))
    np.testing.assert_array_equal(dag.has_paths(before, after), reach.reshape(-1))
    np.testing.assert_array_equal(dag.has_short_paths(before, after), (direct @ direct).reshape(-1))
    costs = rng.integers(0, 100, size)
    finish = dag.finish_times(costs)
    for node in range(size):
        assert finish[node] == costs[node] + max((finish[p] for p in np.flatnonzero(direct[:, node])), default=0)
    assert dag.is_acyclic()
    if len(parents):
        assert not Dag.from_edges(size, np.append(parents, children[0]), np.append(children, parents[0])).is_acyclic()


def test_byte_ranges_of_boxes():
    value = Value((3, 4, 5), np.dtype(np.int16))
    box = np.array([[[1, 3], [0, 2], [4, 5]]])
    numbers = np.arange(60).reshape(3, 4, 5)[1:3, 0:2, 4:5]
    found = touches(value, np.array([7]), box)
    assert (found.lo[0], found.hi[0]) == (2 * numbers.min(), 2 * numbers.max() + 2)


# Running


def test_inputs_that_do_not_fit_are_named():
    graph = small_net()
    x, w = np.zeros((1, 48, 32, 8), np.float32), np.zeros((3, 3, 8, 8), np.float32)
    with pytest.raises(InputError, match="takes 2 inputs and got 1"):
        graph.run(x)
    with pytest.raises(InputError, match=r"input 1 is float64\[3, 3, 8, 8\]"):
        graph.run(x, w.astype(np.float64))
    with pytest.raises(InputError, match=r"input 0 is float32\[1, 48, 32, 9\]"):
        graph.run(np.zeros((1, 48, 32, 9), np.float32), w)


@pytest.mark.parametrize("seed", range(60))
def test_the_engine_computes_what_the_references_do_whatever_the_tiles(seed, tmp_path):
    """Every op family, through strided, reversed and broadcast views, on random tiles and in reused memory."""
    program = random_program(seed)
    rng = np.random.default_rng(seed)
    inputs = [(3 * rng.standard_normal(value.shape)).astype(value.dtype) for value in program.inputs]
    graph = build_with_random_tiles(program, seed, reuse=True)
    graph.save(tmp_path / "g")
    for result, expected in zip(TileGraph.load(tmp_path / "g").run(*inputs), evaluate(program, *inputs), strict=True):
        assert result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(expected).max(initial=0))))


def test_constants_are_handed_over_by_the_graph():
    graph = small_net()
    x, w = np.ones((1, 48, 32, 8), np.float32), np.zeros((3, 3, 8, 8), np.float32)
    (result,) = graph.run(x, w)
    np.testing.assert_array_equal(result, np.broadcast_to(graph.constants[0], result.shape))
