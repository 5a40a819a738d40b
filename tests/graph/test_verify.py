"""What a graph's checks refuse, each by the graph that only it refuses."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from aspen_jax.apu import build
from aspen_jax.apu.dependencies import reads_of
from aspen_jax.apu.memory import rewritten
from aspen_jax.apu.verify_reuse import check_reuse
from aspen_jax.errors import GraphFormatError
from aspen_jax.graph.dag import Dag
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Operand, Program, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.block_program import single
from aspen_jax.ops.builder import Builder
from tests.random_programs import random_program
from tests.tile_graphs import FINE, FLOAT, build_with_random_tiles, changed, numbers_of, random_graph, small_net


def refused(graph: TileGraph, match: str) -> None:
    with pytest.raises(GraphFormatError, match=match):
        graph.verify()


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
    parents, children = map(np.array, zip(*sorted(data_edges(graph)), strict=True))
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
    used: dict[Value, list[tuple[int, set[tuple[int, int]], bool]]] = {}
    rewrites = {op.output: rewritten(op) for op in program.ops if op.in_place}
    written = {int(graph.values[number, 0]) for op in range(graph.num_ops) for number in graph.outputs_of(op)}
    for value in program.inputs:
        used[value] = []
    for number, op in enumerate(program.ops):
        tiles, boxes = graph.tiles_of(number)
        accesses = [(value, value.shape, tiles, boxes, True) for value in op.outputs]
        for index, operand in enumerate(op.inputs):
            region = op.family.region(op, index, boxes)
            used_by = (region[:, :, 1] > region[:, :, 0]).all(axis=1)
            value_boxes = operand.view.region(operand.value.shape, region[used_by])
            shape = operand.value.shape
            if op.in_place and op.inputs[index] == op.family.rewritten(op):
                value_boxes, shape = boxes, op.output.shape  # whatever the operand's shape: the same elements
            accesses.append((operand.value, shape, tiles[used_by], value_boxes, False))
        for value, shape, touching, value_boxes, writes in accesses:
            buffer, offset = graph.values[numbers[value], :2].tolist()
            if buffer not in written:
                continue
            elements = np.arange(value.size).reshape(shape)
            for tile, box in zip(touching.tolist(), value_boxes, strict=True):
                part = elements[tuple(slice(lo, hi) for lo, hi in box)].reshape(-1).tolist()
                used.setdefault(value, []).append((tile, {(buffer, offset + e * value.dtype.itemsize) for e in part}, writes))

    def done_before(first: Value, second: Value) -> bool:
        return all(
            a in ancestors[b] or (a == b and rewrites.get(second) is first)
            for a, mine, _ in used[first]
            for b, yours, writes in used[second]
            if writes and mine & yours
        )

    def safe(first: Value, second: Value) -> bool:
        in_workspace = graph.values[numbers[second], 0] == len(graph.operands) + len(graph.results)
        return done_before(first, second) or (in_workspace and done_before(second, first))

    values = [value for value in numbers if value in used]
    return all(safe(values[j], values[i]) for i in range(len(values)) for j in range(i))


def data_edges(graph: TileGraph) -> set[tuple[int, int]]:
    """What the data alone demands, box by box."""
    program = graph.program()
    tiles = {value: graph.tiles_of(number) for number, op in enumerate(program.ops) for value in op.outputs}
    found = set()
    for op in program.ops:
        for value, readers, regions in reads_of(op, *tiles[op.output]):
            for reader, region in zip(readers.tolist(), regions, strict=True):
                for writer, box in zip(*tiles.get(value, ((), ())), strict=True):
                    if (np.maximum(region[:, 0], box[:, 0]) < np.minimum(region[:, 1], box[:, 1])).all():
                        found.add((int(writer), reader))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_reuse_is_refused_exactly_where_it_is_unsafe(seed):
    """Random offsets, results in random operands and random missing edges, against the definition."""
    rng = np.random.default_rng(seed)
    graph = build_with_random_tiles(random_program(seed, steps=7), seed, reuse=bool(seed % 2))
    needed = data_edges(graph)
    inside = np.flatnonzero(graph.values[:, 0] == len(graph.operands) + len(graph.results))
    for _ in range(6):
        values = graph.values.copy()
        if inside.size and rng.integers(2):
            moved = inside[rng.random(inside.size) < 0.4]
            values[moved, 1] = rng.integers(0, 12, moved.size) * 64
        result, operand = rng.integers(len(graph.results)), rng.integers(len(graph.operands))
        alike = graph.value(graph.results[result]) == graph.value(graph.operands[operand])
        if alike and operand not in graph.shared_memory and result not in graph.shared_memory.values():
            values[values[:, 0] == values[graph.results[result], 0], 0] = operand
        parents, children = graph.dag.edges()
        kept = (rng.random(graph.num_edges) < 0.95) | [edge in needed for edge in zip(parents, children, strict=True)]
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
