"""What a policy says is kept or refused, and a run ends when its user says so."""

from __future__ import annotations

import heapq
import shutil
import subprocess
import sys

import numpy as np
import pytest

import aspen_jax.schedule as sched
from aspen_jax import EngineError, InputError, aspen
from aspen_jax.schedule.costs import random_inputs
from tests.schedule.test_simulation import tiles
from tests.tile_graphs import random_graph

TWO = sched.Machine([sched.Cpu(1, "a"), sched.Cpu(2, "b")])


def random_dag(random: np.random.Generator, size: int):
    parents, children = random.integers(0, size, (2, 3 * size))
    forward = parents < children
    return tiles(size, np.stack([parents[forward], children[forward]], axis=1))


def listed(dag, ns, lanes, place, priority):
    """When each tile begins if each resource always takes the ready tile of the largest priority, of equal ones the first."""
    waiting = dag.parent_counts().tolist()
    children = [[] for _ in waiting]
    for parent, child in zip(*(array.tolist() for array in dag.edges()), strict=True):
        children[parent].append(child)
    ready = [[] for _ in lanes]
    free = list(lanes)
    begins, ends, now = {}, [], 0

    def enter(tile):
        heapq.heappush(ready[place[tile]], (-priority[tile], tile))

    for tile, parents in enumerate(waiting):
        if parents == 0:
            enter(tile)
    while True:
        for resource, queue in enumerate(ready):
            while free[resource] and queue:
                _, tile = heapq.heappop(queue)
                begins[tile] = now
                free[resource] -= 1
                heapq.heappush(ends, (now + int(ns[tile, resource]), tile))
        if not ends:
            return [begins[tile] for tile in range(len(waiting))]
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, tile = heapq.heappop(ends)
            free[place[tile]] += 1
            for child in children[tile]:
                waiting[child] -= 1
                if waiting[child] == 0:
                    enter(child)


@pytest.mark.parametrize("seed", range(40))
def test_priorities_are_an_exact_order(seed):
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 200))
    graph, dag = random_dag(random, size)
    machine = sched.Machine([sched.Cpu(int(random.integers(1, 4)), name) for name in "abc"[: int(random.integers(1, 4))]])
    ns = random.integers(1, 6, (size, len(machine.resources)))  # many tiles end at one moment
    place = random.integers(len(machine.resources), size=size)
    priority = random.integers(0, 5, size) if seed % 2 else random.random(size)
    schedule = sched.simulate(graph, machine, sched.Costs(ns), sched.Static(place, priority))
    lanes = [resource.lanes for resource in machine.resources]
    assert schedule.begin.tolist() == listed(dag, ns, lanes, place.tolist(), priority.tolist())


def test_more_priorities_than_the_ready_pool_has_levels():
    graph, _ = tiles(3000, [])
    priority = np.random.default_rng(0).permutation(3000)
    one = sched.Machine([sched.Cpu(1)])
    schedule = sched.simulate(graph, one, sched.Costs(np.ones((3000, 1))), sched.Static(np.zeros(3000, int), priority))
    assert np.argsort(schedule.begin).tolist() == np.argsort(-priority).tolist()


@pytest.mark.parametrize("seed", range(6))
def test_a_real_run_keeps_the_exact_order(seed):
    graph = random_graph(seed)
    random = np.random.default_rng(seed)
    one, zero, ones = sched.Machine([sched.Cpu(1)]), np.zeros(graph.num_tiles, int), np.ones((graph.num_tiles, 1))
    priority = random.integers(0, 9, graph.num_tiles)
    real = sched.run(graph, *random_inputs(graph), machine=one, policy=sched.Static(zero, priority))
    mine = np.lexsort((real.end, real.begin)).tolist()
    assert mine == np.argsort(listed(graph.dag, ones, [1], zero, priority), kind="stable").tolist()
    # On each of two resources with a lane, no tile begins while another waits there whose parents all ran there before.
    two = sched.Machine([sched.Cpu(1, "a"), sched.Cpu(1, "b")])
    place = random.integers(2, size=graph.num_tiles)
    real = sched.run(graph, *random_inputs(graph), machine=two, policy=sched.Static(place, priority))
    parents, children = graph.dag.edges()
    mixed = np.zeros(graph.num_tiles, bool)
    np.logical_or.at(mixed, children, place[parents] != place[children])
    ready = np.zeros(graph.num_tiles, np.int64)
    np.maximum.at(ready, children, real.end[parents])
    for tile in np.flatnonzero(~mixed):
        before = (place == place[tile]) & (real.begin >= ready[tile]) & (real.end <= real.begin[tile])
        before[tile] = False
        assert (priority[before] >= priority[tile]).all()


# What is said twice


class Recorded(sched.Dmda):
    def __init__(self):
        self.asked = []

    def place(self, view, tile):
        self.asked.append(tile)
        return 0


@pytest.fixture(scope="module")
def graph():
    return aspen(lambda x: (x @ x).sum(axis=0) * 2, strict=True).graph(np.ones((256, 256), np.float32))


@pytest.fixture(scope="module")
def costs(graph):
    return sched.Costs(np.random.default_rng(3).integers(1_000, 90_000, (graph.num_tiles, 2)))


def outcomes(graph, costs, policy):
    """What a simulation and a run do with a policy: the resources of the tiles, or the error."""
    inputs = random_inputs(graph)
    for play in (
        lambda: sched.simulate(graph, TWO, costs, policy),
        lambda: sched.run(graph, *inputs, machine=TWO, policy=policy, costs=costs),
    ):
        try:
            yield play().resources.tolist()
        except (InputError, EngineError) as error:
            yield str(error)


def test_a_place_that_derives_from_a_native_one_is_called(graph, costs):
    for _ in outcomes(graph, costs, policy := Recorded()):
        pass
    assert sorted(policy.asked) == sorted([*range(graph.num_tiles)] * 2)
    compiled = type("Mine", (sched.Compiled,), {"place": lambda self, view, tile: 1})(lambda tile, now, ends, count: 0)
    for found in outcomes(graph, costs, compiled):
        assert found == [1] * graph.num_tiles or "Compiled" in found or "place" in found


def test_a_native_one_that_derives_from_a_place_counts(graph, costs):
    mine = type("Mine", (Recorded,), {"native": "earliest finish"})()
    (first, _) = outcomes(graph, costs, mine)
    assert first == sched.simulate(graph, TWO, costs, sched.Dmda()).resources.tolist()
    assert not mine.asked


def own(**attributes):
    return type("Mine", (sched.Policy,), attributes)()


def with_plan(plan, **attributes):
    return own(plan=lambda self, graph, machine, costs: plan(graph.num_tiles), **attributes)


def with_own_native():
    policy = own(place=lambda self, view, tile: 0)
    policy.native = "earliest finish"
    return policy


def with_own_place():
    policy = own()
    policy.place = lambda view, tile: 1
    return policy


def with_unrelated_classes():
    mixin = type("Mixin", (sched.Policy,), {"place": lambda self, view, tile: 0})
    return type("Mine", (mixin, sched.Dmda), {})()


PLACES, PRIORITIES = lambda n: sched.Plan(np.zeros(n, int)), lambda n: sched.Plan(None, np.arange(n))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (own(native="earliest finish", place=lambda self, view, tile: 0), "Mine has a `place` and native = 'earliest finish'"),
        (with_unrelated_classes(), "Mine has a `place` and native = 'earliest finish'"),
        (with_own_native(), "Mine has a `place` and native = 'earliest finish'"),
        (with_plan(PLACES, place=lambda self, view, tile: 0), "Mine: its plan gives places, and `place` or `native`"),
        (with_plan(PLACES, native="earliest finish"), "Mine: its plan gives places, and `place` or `native`"),
        (with_plan(PRIORITIES, order="single queue"), "Mine: its plan gives priorities, and its order 'single queue'"),
        (own(native=True), "Mine: native is True"),
        (own(native=1.5), "Mine: native is 1.5"),
        (own(native=b"earliest finish"), "Mine: native is b'earliest finish'"),
        (own(native=12345), "Mine: 12345 is not the address of a function"),
        (own(native=0), "Mine: 0 is not the address of a function"),
        (own(native=-1), "Mine: -1 is not the address of a function"),
        (own(native=1 << 70), "is not the address of a function"),
        (own(native=id(TWO)), "is not the address of a function"),
        (own(native="latest finish"), "tiles are placed by 'earliest finish'"),
        (own(order=12345), "Mine: 12345 is not the address of an order"),
        (own(order=id(TWO)), "is not the address of an order"),
        (own(order=True), "Mine: order is True"),
        (own(order=None), "Mine: order is None"),
        (own(order="by chance"), "there is no order 'by chance'"),
        (own(place=lambda self, view, tile: tile == 0), "`place` answered .* for tile"),
        (own(place=lambda self, view, tile: 1.0), r"`place` answered 1\.0 for tile"),
        (own(place=lambda self, view, tile: np.zeros(2, int)), "`place` answered array|only .*arrays can be converted"),
        (own(place=lambda self, view, tile: 1 << 80), "placed on resource"),
    ],
)
def test_what_a_policy_says_twice_or_cannot_mean_is_refused(graph, costs, policy, message):
    for found in outcomes(graph, costs, policy):
        assert isinstance(found, str), found
        with pytest.raises(InputError, match=message):
            raise InputError(found)


def test_a_place_of_one_policy_alone_and_numbers_of_numpy_count(graph, costs):
    for policy in (with_own_place(), own(place=lambda self, view, tile: np.int64(1))):
        assert list(outcomes(graph, costs, policy)) == [[1] * graph.num_tiles] * 2


def test_classes_and_functions_in_place_of_what_they_make_are_named(graph, costs):
    def function(x):
        return x

    for arguments, message in (
        ((graph, TWO, costs, sched.Dmda), "the policy is the class Dmda itself"),
        ((graph, sched.Machine, costs), "the machine is the class Machine itself"),
        ((graph, TWO, sched.Costs), "the costs is the class Costs itself"),
        ((graph, TWO, None), "the costs is of type NoneType"),
        ((graph, TWO, costs, "Dmda"), "the policy is of type str"),
        ((aspen(function), TWO, costs), "give the graph of its arguments"),
        ((function, TWO, costs), "the graph is of type function"),
    ):
        with pytest.raises(InputError, match=message):
            sched.simulate(*arguments)
    for named, message in (
        ({"policy": sched.Dmda}, "the policy is the class Dmda itself"),
        ({"machine": sched.Machine}, "the machine is the class Machine itself"),
        ({"costs": sched.Costs}, "the costs is the class Costs itself"),
    ):
        with pytest.raises(InputError, match=message):
            sched.run(graph, *random_inputs(graph), **named)
    for resources, message in (
        ([sched.Cpu], "the class Cpu itself is none"),
        ([4], "4 is none"),
        ([sched.Cpu(True)], "lanes of True"),
        ([sched.Cpu("2")], "lanes of '2'"),
        ([sched.Cpu(1, cores=(0.5,))], "cores of 0.5"),
        ([sched.Fake(1, repeat=True)], "runs a tile True times"),
    ):
        with pytest.raises(InputError, match=message):
            sched.Machine(resources)
    with pytest.raises(InputError, match="the class Link itself is none"):
        sched.Machine([sched.Cpu(1)], [sched.Link])


def test_an_exception_in_a_compiled_function_ends_the_run(graph, costs):
    pytest.importorskip("numba")

    def refuses(tile, now, earliest_finish, num_resources):
        if tile == 1:
            raise ValueError("no")
        return 0

    for found in outcomes(graph, costs, sched.Compiled(refuses)):
        assert "raised an exception at tile 1" in found


# C++


SOURCE = """
#include "aspen_jax/engine/place.h"
#include "where.h"
int32_t aspen_place(int64_t, int64_t, const int64_t*, int64_t) { return kWhere; }
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_an_edited_header_is_seen(graph, costs, tmp_path, monkeypatch):
    monkeypatch.setenv("ASPEN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "far").mkdir()
    (tmp_path / "mine.cc").write_text(SOURCE)
    (tmp_path / "where.h").write_text('#include "far/there.h"\n')
    library = tmp_path / "cache" / "libraries"
    for number, kept in ((0, 1), (1, 2), (0, 2)):
        (tmp_path / "far" / "there.h").write_text(f"constexpr int kWhere = {number};\n")
        for found in outcomes(graph, costs, sched.NativePolicy(tmp_path / "mine.cc")):
            assert found == [number] * graph.num_tiles
        assert len(list(library.iterdir())) == kept
    # A header that comes before another on the way is seen too.
    monkeypatch.setenv("CPATH", str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    (tmp_path / "mine.cc").write_text(SOURCE.replace('"where.h"', "<where.h>"))
    (tmp_path / "other" / "where.h").write_text("constexpr int kWhere = 1;\n")
    for found in outcomes(graph, costs, sched.NativePolicy(tmp_path / "mine.cc")):
        assert found == [1] * graph.num_tiles


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_compiler_that_cannot_be_run_is_named(tmp_path, monkeypatch):
    (tmp_path / "mine.cc").write_text(SOURCE)
    monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
    with pytest.raises(InputError, match="no-compiler cannot be run"):
        sched.NativePolicy(tmp_path / "mine.cc")
    with pytest.raises(OSError, match="absent"):
        sched.NativePolicy(tmp_path / "absent.cc")


# Interrupts

INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
import aspen_jax.schedule as sched
from aspen_jax import aspen

x = np.ones((256, 256), np.float32)
graph = aspen(lambda x: ((x @ x) @ x).sum(axis=0), strict=True).graph(x)
slow = sched.Link("host", "fake", 10**12, 1e9), sched.Link("fake", "host", 10**12, 1e9)
fast = sched.Link("host", "fake", 0, 1e9), sched.Link("fake", "host", 0, 1e9)
two = sched.Machine([sched.Cpu(1), sched.Fake(2)], fast)


def spin(tile):
    while True:
        pass


def swallow(tile):
    try:
        time.sleep(1e6)
    except KeyboardInterrupt:
        return "interrupted"


def lock(tile):
    held = threading.Lock()
    held.acquire()
    held.acquire()


def late(tile):
    return spin(tile) if tile > graph.num_tiles // 2 else tile % 2


class Mine(sched.Policy):
    def place(self, view, tile):
        return globals()[asked](tile)


def never(tile, now, earliest_finish, num_resources):
    step = tile
    while step >= 0:
        step = (step + now) % 1000003
    return 0


def interrupted(what):
    global asked
    asked = what
    machine, policy = two, Mine()
    if what == "tiles":
        machine, policy = sched.Machine([sched.Fake(2, repeat=1_000_000)]), sched.ReadyPool()
    if what == "copies":
        machine = sched.Machine([sched.Cpu(1), sched.Fake(2)], slow)
        policy = sched.Static(graph.tile_ops % 2)
    if what == "compiled":
        policy = sched.Compiled(never)
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        sched.run(graph, x, machine=machine, policy=policy)
    except BaseException as error:
        print(what, type(error).__name__, *getattr(error, "__notes__", ()))
    again = sched.run(graph, x, machine=two, policy=sched.Dmda()).results[0]
    assert (again == graph.run(x)[0]).all()


for what in sys.argv[1:]:
    interrupted(what)
"""


def lines_of_interrupted(*what):
    command = [sys.executable, "-P", "-c", INTERRUPTED, *what]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (found.stderr, found.returncode) == ("", 0)
    return found.stdout.splitlines()


def test_an_interrupt_ends_a_run_wherever_it_is():
    where = ["spin", "lock", "late", "tiles", "copies"]
    assert lines_of_interrupted(*where, "swallow") == [*(f"{what} KeyboardInterrupt" for what in where), "swallow EngineError"]


def test_an_interrupt_gives_up_a_compiled_function_that_never_returns():
    pytest.importorskip("numba")
    (line,) = lines_of_interrupted("compiled")
    assert line.startswith("compiled KeyboardInterrupt a lane of the run is still in the policy's compiled function")
