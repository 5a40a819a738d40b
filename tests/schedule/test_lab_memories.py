"""Real runs over several memories give the bits of `TileGraph.run`, wherever tiles run and whenever copies come."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspen_jax.schedule as sched
from aspen_jax import TileGraph, aspen
from aspen_jax.schedule.costs import random_inputs
from benchmarks import zoo
from benchmarks.zoo import bert
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.in_jax import in_jax
from benchmarks.zoo.network.parameters import draw, draw_inputs
from benchmarks.zoo.transformer import Config
from tests.tile_graphs import build_with_random_tiles, random_graph, random_program

CONFIG = Config(layers=2, width=48, heads=4, hidden=80, tokens=13, vocabulary=57)
NETWORKS = {
    "bert": lambda: bert.bert(Size(2), config=CONFIG),
    "squeezenet1_1": lambda: zoo.describe("squeezenet1_1", Size(2, image_size=45)),
    "resnet18": lambda: zoo.describe("resnet18", Size(1, image_size=33)),
    "mobilenet_v2": lambda: zoo.describe("mobilenet_v2", Size(1, image_size=33)),
}


def random_machine(random: np.random.Generator, latencies: Sequence[int], speeds: Sequence[float]) -> sched.Machine:
    """Two or three memories, and links between all of them."""
    names = [f"fake{i}" for i in range(int(random.integers(1, 3)))]
    fakes = [sched.Fake(int(random.integers(1, 3)), name=name, memory=name) for name in names]
    pairs = itertools.permutations(["host", *names], 2)
    links = [sched.Link(*pair, int(random.choice(latencies)), float(random.choice(speeds))) for pair in pairs]
    return sched.Machine([sched.Cpu(int(random.integers(1, 3))), *fakes], links)


def wrong_results(
    graph: TileGraph,
    inputs: list,
    seed: int,
    latencies: Sequence[int] = (0, 1_000, 300_000),
    speeds: Sequence[float] = (1e8, 1e9, 1e12),
) -> int:
    """How many results of a run under random places differ from those of `graph.run` in a bit."""
    random = np.random.default_rng(seed)
    machine = random_machine(random, latencies, speeds)
    place = random.integers(len(machine.resources), size=graph.num_tiles)
    policy = sched.Static(place, random.random(graph.num_tiles) if random.random() < 0.5 else None)
    mine = sched.run(graph, *inputs, machine=machine, policy=policy).results
    return sum(a.tobytes() != b.tobytes() for a, b in zip(mine, graph.run(*inputs), strict=True))


def lying_together(graph: TileGraph) -> list[tuple[int, int]]:
    """Values that ops write which share a byte."""
    spans = []
    for number in (number for op in range(graph.num_ops) for number in graph.outputs_of(op)):
        shape, dtype = graph.value(number)
        buffer, offset = graph.values[number, :2].tolist()
        spans.append((number, buffer, offset, offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize))
    return [
        (one, other)
        for i, (one, buffer, begin, end) in enumerate(spans)
        for other, there, start, stop in spans[:i]
        if buffer == there and begin < stop and start < end
    ]


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_graphs_under_random_places(first):
    for seed in range(first, first + 20):
        graph = random_graph(seed)
        assert wrong_results(graph, random_inputs(graph), seed) == 0, seed


def test_values_taken_apart_share_no_byte_and_nothing_else_changes():
    shared = rewritten = 0
    for seed in range(40):
        graph = build_with_random_tiles(random_program(seed, steps=12), seed, reuse=True)
        inputs = random_inputs(graph)
        graph.apart.verify()
        assert not lying_together(graph.apart)
        assert not any(op.in_place for op in graph.apart.program().ops)
        for name in ("tile_ops", "tile_boxes", "children", "child_counts", "inputs", "ops", "costs"):
            np.testing.assert_array_equal(getattr(graph.apart, name), getattr(graph, name))
        mine = graph.apart.run(*inputs)
        assert [array.tobytes() for array in mine] == [array.tobytes() for array in graph.run(*inputs)], seed
        shared += bool(lying_together(graph))
        rewritten += any(op.in_place for op in graph.program().ops)
    assert shared > 20
    assert rewritten > 10


def test_a_result_that_a_later_op_rewrites_is_the_later_ops():
    x, index = np.ones((256, 64), np.float32), np.array([3, 200], np.int32)
    graph = aspen(lambda x, i: (jnp.sin(x) * 2).at[i].set(0.0), strict=True).graph(x, index)
    assert any(op.in_place for op in graph.program().ops)
    links = [sched.Link("host", "fake", 1_000, 1e10), sched.Link("fake", "host", 1_000, 1e10)]
    machine = sched.Machine([sched.Cpu(1), sched.Fake(1)], links)
    for first in (0, 1):
        policy = sched.Static(np.where(graph.tile_ops == 0, first, 1 - first))
        (mine,) = sched.run(graph, x, index, machine=machine, policy=policy).results
        np.testing.assert_array_equal(mine, graph.run(x, index)[0])


def test_a_late_copy_spoils_no_newer_value():
    def function(x, a, b, c):
        for _ in range(3):
            z = jax.nn.softmax(jnp.cumsum(x @ a, axis=0).T @ b, axis=0)
            x = jnp.sort(z @ c, axis=1)[: x.shape[0], : x.shape[1]]
        return x

    shapes = ((96, 128), (128, 160), (96, 192), (192, 128))
    random = np.random.default_rng(0)
    given = [(random.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32) for shape in shapes]
    graph = aspen(function, strict=True).graph(*given)
    assert lying_together(graph)
    (expected,) = graph.run(*given)
    links = [sched.Link("host", "fake", 1_000_000, 1e9), sched.Link("fake", "host", 1_000_000, 1e9)]
    machine = sched.Machine([sched.Cpu(1), sched.Fake(1)], links)
    for seed in range(40):
        random = np.random.default_rng(seed)
        policy = sched.Static(random.integers(2, size=graph.num_tiles), random.random(graph.num_tiles))
        (mine,) = sched.run(graph, *given, machine=machine, policy=policy).results
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.sweep
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_forward_and_backward(name):
    network = NETWORKS[name]()
    params, inputs, function = draw(network), draw_inputs(network), in_jax(network)

    def loss(params, *inputs):
        return sum(jnp.square(leaf).mean() for leaf in jax.tree.leaves(function(params, *inputs)))

    for what in (function, jax.grad(loss)):
        graph = aspen(what, strict=True).graph(params, *inputs)
        for seed in range(2 if what is function else 1):
            assert wrong_results(graph, [params, *inputs], seed, (0, 2_000), (1e10, 1e12)) == 0, seed


@pytest.mark.parametrize("kind", [sched.Dmda, sched.Heft, sched.LayerCut, sched.Shares])
def test_gradients_of_tied_weights_under_the_policies_of_the_lab(kind):
    def loss(w, x):
        for _ in range(3):
            x = jnp.tanh(x @ w)
        return (x @ w.T).sum()

    given = np.ones((64, 64), np.float32) / 64, np.linspace(-1, 1, 48 * 64, dtype=np.float32).reshape(48, 64)
    graph = aspen(jax.grad(loss, argnums=(0, 1)), strict=True).graph(*given)
    expected = graph.run(*given)
    links = [sched.Link("host", "fake", 1_000, 1e9), sched.Link("fake", "host", 1_000, 1e9)]
    machine = sched.Machine([sched.Cpu(1), sched.Fake(2)], links)
    for seed in range(3):
        costs = sched.Costs(np.random.default_rng(seed).integers(1_000, 90_000, (graph.num_tiles, 2)))
        mine = sched.run(graph, *given, machine=machine, policy=kind(), costs=costs).results
        assert [array.tobytes() for array in mine] == [array.tobytes() for array in expected]


def test_a_graph_from_a_file_runs_over_two_memories(tmp_path):
    graph = random_graph(5)
    inputs = random_inputs(graph)
    graph.save(tmp_path / "graph.aspen")
    loaded = TileGraph.load(tmp_path / "graph.aspen")
    for seed in range(5):
        assert wrong_results(loaded, inputs, seed) == 0, seed
