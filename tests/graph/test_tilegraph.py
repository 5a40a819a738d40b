"""TileGraph: its bytes and numbers, its questions about order, and its runs."""

from __future__ import annotations

import dataclasses
import struct
import zlib

import numpy as np
import pytest

from aspen_jax import set_num_workers
from aspen_jax.apu import build
from aspen_jax.apu.memory import touches
from aspen_jax.errors import InputError
from aspen_jax.graph import graph_format
from aspen_jax.graph.dag import Dag
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Value
from aspen_jax.ops.reference import evaluate
from tests.random_programs import random_program
from tests.tile_graphs import build_with_random_tiles, random_graph, small_net


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
    for array, again in zip(arrays, graph_format.decode(data, len(arrays))[0], strict=True):
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
@pytest.mark.sweep
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


@pytest.mark.parametrize("workers", [1, 3])
def test_the_timeline_has_every_tile_after_its_parents(workers):
    set_num_workers(workers)
    graph = small_net()
    x, w = np.ones((1, 48, 32, 8), np.float32), np.zeros((3, 3, 8, 8), np.float32)
    timeline = graph.timeline(x, w)
    assert timeline.shape == (graph.num_tiles, 3)
    worker, begin, end = timeline.T
    assert set(worker) <= {-1} or set(worker) <= set(range(workers))
    assert (begin <= end).all()
    parents, children = graph.dag.edges()
    assert (end[parents] <= begin[children]).all()
    for number in set(worker):
        order = np.argsort(begin[worker == number], kind="stable")
        assert (end[worker == number][order][:-1] <= begin[worker == number][order][1:]).all()
    with pytest.raises(InputError, match="takes 2 inputs and got 1"):
        graph.timeline(x)


def test_constants_are_handed_over_by_the_graph():
    graph = small_net()
    x, w = np.ones((1, 48, 32, 8), np.float32), np.zeros((3, 3, 8, 8), np.float32)
    (result,) = graph.run(x, w)
    np.testing.assert_array_equal(result, np.broadcast_to(graph.constants[0], result.shape))
