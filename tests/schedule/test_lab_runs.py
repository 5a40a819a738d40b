"""Real runs of the scheduling lab: the bits of `TileGraph.run`, placed by a policy, in memories that must be told everything."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import aspen_jax.schedule as sched
from aspen_jax import EngineError, InputError, UnsupportedError, aspen
from aspen_jax.schedule.costs import random_inputs
from tests.threads import at_once

TWO_KINDS = sched.Machine([sched.Cpu(1), sched.Cpu(2, "slow cores")])
LINKS = [sched.Link("host", "fake", 10_000, 2e9), sched.Link("fake", "host", 10_000, 2e9)]
MIXED = sched.Machine([sched.Cpu(1), sched.Fake(2, repeat=2)], LINKS)


def model(x, w):
    for _ in range(3):
        x = jax.nn.softmax(x @ w, axis=-1) + x
    return x, x.sum(axis=0)


def scattered(x, index):
    y = x * 2
    return y.at[index].add(1.0) * 3


@pytest.fixture(scope="module")
def graph():
    x, w = np.ones((512, 256), np.float32), np.ones((256, 256), np.float32) / 256
    return aspen(model, strict=True).graph(x, w)


@pytest.fixture(scope="module")
def inputs(graph):
    return random_inputs(graph)


class Nearest(sched.Policy):
    def place(self, view, tile):
        return int(view.earliest_finish(tile).argmin())


def at_random(graph, machine, seed=0):
    random = np.random.default_rng(seed)
    return sched.Static(random.integers(len(machine.resources), size=graph.num_tiles), random.random(graph.num_tiles))


def check(graph, inputs, machine, schedule):
    for mine, expected in zip(schedule.results, graph.run(*inputs), strict=True):
        np.testing.assert_array_equal(mine.view(np.uint8), expected.view(np.uint8))
    parents, children = graph.dag.edges()
    assert (schedule.begin[children] >= schedule.end[parents]).all()
    assert schedule.begin.min() == 0
    arrival = {(tile, target): end for tile, _, target, _, end in schedule.copies.tolist()}
    memory = np.array([machine.memories.index(item.memory) for item in machine.resources])[schedule.resources]
    for parent, child in zip(parents[graph.carries_data].tolist(), children[graph.carries_data].tolist(), strict=True):
        if memory[parent] != memory[child]:
            assert arrival[parent, memory[child]] <= schedule.begin[child]


@pytest.mark.parametrize("machine", [TWO_KINDS, MIXED], ids=["one memory", "two memories"])
@pytest.mark.parametrize("seed", range(3))
def test_wherever_tiles_run_results_are_the_same_in_every_bit(graph, inputs, machine, seed):
    policy = at_random(graph, machine, seed)
    schedule = sched.run(graph, *inputs, machine=machine, policy=policy)
    check(graph, inputs, machine, schedule)
    assert (schedule.resources == policy.plan(graph, machine, None).place).all()
    assert schedule.place_ns == 0
    assert (len(schedule.copies) > 0) == (machine is MIXED)


@pytest.mark.parametrize("machine", [TWO_KINDS, MIXED], ids=["one memory", "two memories"])
@pytest.mark.parametrize("kind", [sched.Dmda, sched.Heft, sched.LayerCut, sched.Shares, sched.CpuOnly, Nearest])
def test_every_policy_can_be_run(graph, inputs, machine, kind):
    schedule = sched.run(graph, *inputs, machine=machine, policy=kind(), costs=sched.Costs(np.ones((graph.num_tiles, 2)) * 1000))
    check(graph, inputs, machine, schedule)
    assert (schedule.place_ns > 0) == (kind in (sched.Dmda, Nearest))
    assert schedule.bounds().best > 0


def test_an_op_that_rewrites_its_operand_runs_once_and_lasts_as_long():
    x, index = np.arange(1 << 16, dtype=np.float32).reshape(256, 256), np.array([3, 200, 3], np.int32)
    graph = aspen(scattered, strict=True).graph(x, index)
    assert any(op.in_place for op in graph.program().ops)
    machines = [sched.Machine([sched.Cpu(1), sched.Fake(1, repeat=3, memory="host")])]
    machines += [sched.Machine([sched.Cpu(1), sched.Fake(1, repeat=3)], LINKS)]
    for machine, seed in itertools.product(machines, range(4)):
        schedule = sched.run(graph, x, index, machine=machine, policy=at_random(graph, machine, seed))
        check(graph, (x, index), machine, schedule)


def test_a_copy_that_is_missing_shows_in_the_results(graph, inputs):
    policy = at_random(graph, MIXED)
    place = policy.plan(graph, MIXED, None).place
    parents, children = graph.dag.edges()
    needs_copy = np.flatnonzero(graph.carries_data & (place[parents] != place[children]))
    broken = aspen(model, strict=True).graph(np.ones((512, 256), np.float32), np.ones((256, 256), np.float32))
    assert broken == graph
    parent = parents[needs_copy[0]]
    vars(broken)["carries_data"] = graph.carries_data & ~((parents == parent) & (place[children] != place[parent]))
    results = sched.run(broken, *inputs, machine=MIXED, policy=policy).results
    assert any(np.isnan(result).any() for result in results)


def test_a_fake_is_slower_by_its_factor(graph, inputs):
    spans = []
    for repeat in (1, 8):
        machine = sched.Machine([sched.Fake(1, repeat=repeat)])
        schedules = [sched.run(graph, *inputs, machine=machine) for _ in range(5)]
        spans.append(int(np.min([schedule.end - schedule.begin for schedule in schedules], axis=0).sum()))  # undisturbed tiles
    assert 4 < spans[1] / spans[0] < 16  # a shared machine


def test_one_worker_follows_the_simulated_order(graph, inputs):
    costs = sched.Costs(np.random.default_rng(0).integers(1_000, 90_000, (graph.num_tiles, 1)))
    machine = sched.Machine([sched.Cpu(1)])
    zero = np.zeros(graph.num_tiles, int)
    priority = np.random.default_rng(1).random(graph.num_tiles)
    for policy in (sched.ReadyPool(), sched.FirstReadyFirst(), sched.Static(zero), sched.Static(zero, priority)):
        simulated = sched.simulate(graph, machine, costs, policy)
        real = sched.run(graph, *inputs, machine=machine, policy=policy)
        assert np.argsort(real.begin).tolist() == np.argsort(simulated.begin).tolist()


def test_lanes_are_bound_to_cores(graph, inputs, tmp_path):
    core = min(os.sched_getaffinity(0))
    machine = sched.Machine([sched.Cpu(2, cores=(core,)), sched.Cpu(1, "other")])
    machine.save(tmp_path / "machine.json")
    assert sched.Machine.load(tmp_path / "machine.json") == machine
    check(graph, inputs, machine, sched.run(graph, *inputs, machine=machine, policy=at_random(graph, machine)))
    with pytest.raises(InputError, match="other wants core 4095, and this process may use"):
        sched.run(graph, *inputs, machine=sched.Machine([sched.Cpu(1, "other", cores=(4095,))]))


def placing(place):
    return type("Mine", (sched.Policy,), {"place": lambda self, view, tile: place(view, tile)})()


@pytest.mark.parametrize("answer", [lambda view, tile: 1 / 0, lambda view, tile: "gpu", lambda view, tile: None])
@pytest.mark.parametrize("machine", [TWO_KINDS, MIXED], ids=["one memory", "two memories"])
def test_a_policy_that_raises_ends_the_run_alone(graph, inputs, machine, answer):
    late = placing(lambda view, tile: answer(view, tile) if tile > graph.num_tiles // 2 else tile % 2)
    for policy in (placing(answer), late):
        with pytest.raises(EngineError, match="the policy Mine raised") as caught:
            sched.run(graph, *inputs, machine=machine, policy=policy)
        assert caught.value.__cause__ is not None
    check(graph, inputs, machine, sched.run(graph, *inputs, machine=machine, policy=sched.Dmda()))


def test_what_cannot_be_run_is_said(graph, inputs):
    with pytest.raises(InputError, match=r"^Mine: tile \d+ is placed on resource 7 of 2"):
        sched.run(graph, *inputs, machine=MIXED, policy=placing(lambda view, tile: 7))
    with pytest.raises(UnsupportedError, match="gpu can only be simulated"):
        sched.run(graph, *inputs, machine=sched.Machine([sched.Cpu(1), sched.Gpu()]))
    with pytest.raises(InputError, match="with more than one memory a policy must say"):
        sched.run(graph, *inputs, machine=MIXED)
    islands = sched.Machine([sched.Cpu(1), sched.Fake(1)])
    with pytest.raises(InputError, match="no link brings to memory"):
        sched.run(graph, *inputs, machine=islands, policy=at_random(graph, islands))
    with pytest.raises(InputError, match="runs a tile 0 times"):
        sched.Machine([sched.Fake(1, repeat=0)])
    with pytest.raises(InputError, match="the graph takes 2 inputs"):
        sched.run(graph, machine=MIXED, policy=sched.Dmda())


def test_many_runs_at_once(graph, inputs):
    def work(seed):
        for machine in (TWO_KINDS, MIXED):
            check(graph, inputs, machine, sched.run(graph, *inputs, machine=machine, policy=at_random(graph, machine, seed)))
            check(graph, inputs, machine, sched.run(graph, *inputs, machine=machine, policy=Nearest()))

    at_once(work, 4)


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_the_child_of_a_fork_can_run(graph, inputs):
    def run(sender):
        schedule = sched.run(graph, *inputs, machine=TWO_KINDS, policy=at_random(graph, TWO_KINDS))
        sender.send([result.tobytes() for result in schedule.results])

    sched.run(graph, *inputs, machine=TWO_KINDS, policy=sched.Dmda())
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=run, args=(sender,))
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() == [result.tobytes() for result in graph.run(*inputs)]
    child.join()
    assert child.exitcode == 0


def nearest(tile, now, earliest_finish, num_resources):
    best = 0
    for resource in range(num_resources):
        if earliest_finish[resource] < earliest_finish[best]:
            best = resource
    return best


def test_a_place_compiled_by_numba_is_dmda(graph, inputs):
    pytest.importorskip("numba")
    costs = sched.Costs(np.random.default_rng(3).integers(1_000, 90_000, (graph.num_tiles, 2)))
    policy = sched.Compiled(nearest)
    assert policy.name == "nearest"
    assert isinstance(policy.native, int)
    mine, theirs = sched.simulate(graph, MIXED, costs, policy), sched.simulate(graph, MIXED, costs, sched.Dmda())
    np.testing.assert_array_equal(mine.timeline, theirs.timeline)
    schedule = sched.run(graph, *inputs, machine=MIXED, policy=policy, costs=costs)
    check(graph, inputs, MIXED, schedule)
    assert schedule.place_ns > 0
    with pytest.raises(InputError, match="numba cannot compile"):
        sched.Compiled(lambda tile, now, ends, count: undefined_name)  # noqa: F821


def test_without_numba_the_same_function_is_called_through_python(graph, monkeypatch):
    costs = sched.Costs(np.random.default_rng(3).integers(1_000, 90_000, (graph.num_tiles, 2)))
    monkeypatch.setitem(sys.modules, "numba", None)
    policy = sched.Compiled(nearest)
    assert policy.native is None
    mine, theirs = sched.simulate(graph, MIXED, costs, policy), sched.simulate(graph, MIXED, costs, sched.Dmda())
    np.testing.assert_array_equal(mine.timeline, theirs.timeline)


SOURCE = """
#include "aspen_jax/engine/place.h"

int32_t aspen_place(int64_t, int64_t, const int64_t* earliest_finish, int64_t num_resources) {
  int32_t best = 0;
  for (int32_t i = 1; i < num_resources; ++i) {
    if (earliest_finish[i] < earliest_finish[best]) best = i;
  }
  return best;
}
"""
ORDER = """
const aspen::Policy aspen_order = {
    [](int, int) { return 0; }, [](int self, int attempt, int rows) { return (self + 1 + attempt) % rows; }, nullptr, 1};
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_policy_in_cpp(graph, inputs, tmp_path, monkeypatch):
    monkeypatch.setenv("ASPEN_CACHE_DIR", str(tmp_path / "cache"))
    costs = sched.Costs(np.random.default_rng(3).integers(1_000, 90_000, (graph.num_tiles, 2)))
    (tmp_path / "mine.cc").write_text(SOURCE)
    for policy in (sched.NativePolicy(tmp_path / "mine.cc"), sched.NativePolicy(str(tmp_path / "mine.cc"))):
        assert policy.name == "mine"
        mine, theirs = sched.simulate(graph, MIXED, costs, policy), sched.simulate(graph, MIXED, costs, sched.Dmda())
        np.testing.assert_array_equal(mine.timeline, theirs.timeline)
        check(graph, inputs, MIXED, sched.run(graph, *inputs, machine=MIXED, policy=policy, costs=costs))
    assert len(list((tmp_path / "cache" / "libraries").iterdir())) == 1
    (tmp_path / "mine.cc").write_text(SOURCE + ORDER)
    policy = sched.NativePolicy(tmp_path / "mine.cc")
    assert isinstance(policy.order, int)
    dmda = sched.Dmda()
    dmda.order = "first ready first"
    mine, theirs = sched.simulate(graph, MIXED, costs, policy), sched.simulate(graph, MIXED, costs, dmda)
    np.testing.assert_array_equal(mine.timeline, theirs.timeline)
    (tmp_path / "wrong.cc").write_text("int main() { return x; }")
    with pytest.raises(InputError, match=r"wrong.cc does not compile"):
        sched.NativePolicy(tmp_path / "wrong.cc")
    (tmp_path / "empty.cc").write_text("")
    with pytest.raises(InputError, match="defines no aspen_place"):
        sched.NativePolicy(tmp_path / "empty.cc")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="and none was found"):
        sched.NativePolicy(tmp_path / "mine.cc")


def test_a_graph_for_networkx(graph):
    networkx = pytest.importorskip("networkx")
    found = graph.to_networkx()
    assert networkx.is_directed_acyclic_graph(found)
    assert found.number_of_nodes() == graph.num_tiles
    parents, children = graph.dag.edges()
    assert set(found.edges) == set(zip(parents.tolist(), children.tolist(), strict=True))
    assert [found.nodes[tile]["bytes"] for tile in range(graph.num_tiles)] == graph.tile_bytes.tolist()
    assert [found.nodes[tile]["cost"] for tile in range(graph.num_tiles)] == graph.costs.tolist()
    tiles, boxes = graph.tiles_of(1)
    assert found.nodes[int(tiles[-1])]["box"] == tuple(map(tuple, boxes[-1].tolist()))
    assert found.nodes[int(tiles[-1])]["op"] == graph.op_names[1]
    carried = {edge for edge, size in networkx.get_edge_attributes(found, "bytes").items() if size > 0}
    assert carried == {(int(a), int(b)) for a, b, c in zip(parents, children, graph.carries_data, strict=True) if c}


def test_networkx_is_asked_for_by_name(graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(InputError, match="pip install networkx"):
        graph.to_networkx()


def test_a_process_that_holds_machines_to_its_end_ends_silently():
    code = "import benchmarks.lab as lab; print([machine.virtual.num_resources for machine in lab.MACHINES.values()])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path[1:], str(Path(__file__).parents[2])])}
    found = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert (found.stdout, found.stderr, found.returncode) == ("[1, 1, 2, 2]\n", "", 0)
