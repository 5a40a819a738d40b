"""The scheduling lab: simulations against independent answers, policies, costs, machines, and what is refused."""

from __future__ import annotations

import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspen_jax.schedule as sched
from aspen_jax import AspenError, EngineError, InputError, UnsupportedError, aspen
from aspen_jax.cli import main
from aspen_jax.schedule.costs import random_inputs, tile_classes
from aspen_jax.schedule.result import bounds
from tests.report.decoded_trace import Decoded
from tests.schedule.test_simulation import tiles
from tests.tile_graphs import random_graph

LINKS = [sched.Link("host", "gpu", 100, 1e9), sched.Link("gpu", "host", 50, 2e9)]
MIXED = sched.Machine([sched.Cpu(2), sched.Gpu()], LINKS)
KINDS = "ReadyPool FirstReadyFirst ChildCache Importance AllThroughPool SingleQueue CpuOnly GpuOnly LayerCut Dmda Heft Shares"
ALL = [getattr(sched, kind)() for kind in KINDS.split()]


def model(x, w):
    for _ in range(3):
        x = jax.nn.relu(x @ w) + x
    return x


@pytest.fixture(scope="module")
def graph():
    x, w = np.ones((512, 256), np.float32), np.ones((256, 256), np.float32) / 256
    return aspen(model).graph(x, w)


@pytest.fixture(scope="module")
def costs(graph):
    random = np.random.default_rng(3)
    return sched.Costs(random.integers(1_000, 90_000, (graph.num_tiles, 2)))


def random_case(random, size):
    parents, children = random.integers(0, size, (2, 2 * size))
    forward = parents < children
    graph, dag = tiles(size, np.stack([parents[forward], children[forward]], axis=1))
    vars(graph)["tile_bytes"] = np.zeros(size, np.int64)
    return graph, dag, random.integers(1, 50, (size, 2)).astype(float)


def best_span(dag, ns):
    """The shortest makespan of all schedules on two lanes of different speed, by trying every order and every place."""
    size = len(ns)
    parents = [[] for _ in range(size)]
    for parent, child in zip(*(array.tolist() for array in dag.edges()), strict=True):
        parents[child].append(parent)
    best = np.inf

    def place(done, ends, free):
        nonlocal best
        if max(free) >= best:
            return
        if len(done) == size:
            best = max(free)
            return
        for tile in range(size):
            if tile in done or any(parent not in done for parent in parents[tile]):
                continue
            ready = max((ends[parent] for parent in parents[tile]), default=0)
            for lane in (0, 1):
                end = max(ready, free[lane]) + ns[tile, lane]
                place(done | {tile}, ends | {tile: end}, [end if each == lane else time for each, time in enumerate(free)])

    place(frozenset(), {}, [0, 0])
    return best


def test_no_policy_beats_brute_force_and_bounds_hold():
    machine = sched.Machine([sched.Cpu(1), sched.Cpu(1, "slow")])
    random = np.random.default_rng(7)
    for _ in range(25):
        graph, dag, ns = random_case(random, 6)
        costs = sched.Costs(ns)
        best = best_span(dag, ns)
        assert bounds(graph, machine, costs).best <= best * (1 + 1e-9)
        policies = [sched.ReadyPool(), sched.Dmda(), sched.Heft()]
        policies += [sched.Static(place) for place in itertools.product((0, 1), repeat=6)]
        spans = [sched.simulate(graph, machine, costs, policy).makespan for policy in policies]
        assert min(spans) >= best
        assert min(spans) <= 1.25 * best  # some placement is near it, whatever the order


def test_the_area_bound_is_what_fluid_tiles_would_take():
    graph, _ = tiles(4, [])
    machine = sched.Machine([sched.Cpu(2), sched.Cpu(1, "slow")])
    # Two lanes at 10 and one at 20: 4 tiles in T = 4 / (2/10 + 1/20).
    assert bounds(graph, machine, sched.Costs(np.tile([10.0, 20.0], (4, 1)))).area == pytest.approx(16)
    # Where the slow one has no kernel it does not count.
    assert bounds(graph, machine, sched.Costs(np.tile([10.0, np.inf], (4, 1)))).area == pytest.approx(20)
    with pytest.raises(InputError, match="tile 0 has a kernel on no resource"):
        bounds(graph, machine, sched.Costs(np.full((4, 2), np.inf)))


@pytest.mark.parametrize("policy", ALL, ids=lambda policy: policy.name)
def test_every_policy_keeps_the_order_of_the_arrows_and_copies_what_is_missing(graph, costs, policy):
    schedule = sched.simulate(graph, MIXED, costs, policy)
    parents, children = graph.dag.edges()
    assert (schedule.begin[children] >= schedule.end[parents]).all()
    assert (schedule.end - schedule.begin == costs.ns[np.arange(graph.num_tiles), schedule.resources]).all()
    assert schedule.makespan >= schedule.bounds().best
    there = {(tile, memory): end for tile, _, memory, _, end in schedule.copies.tolist()}
    for parent, child in zip(parents[graph.carries_data].tolist(), children[graph.carries_data].tolist(), strict=True):
        memory = int(schedule.resources[child])  # one memory each
        if memory != schedule.resources[parent]:
            assert there[parent, memory] <= schedule.begin[child]
    assert schedule.moved_bytes == graph.tile_bytes[[tile for tile, _ in there]].sum()
    again = sched.simulate(graph, MIXED, costs, policy)
    assert (again.timeline == schedule.timeline).all()


def test_policies_use_what_is_fast(graph, costs):
    fast_gpu = sched.Costs(costs.ns * [1, 0.001])
    near = sched.Machine([sched.Cpu(2), sched.Gpu()], [sched.Link("host", "gpu", 0, 1e15), sched.Link("gpu", "host", 0, 1e15)])
    spans = {policy.name: sched.simulate(graph, near, fast_gpu, policy).makespan for policy in ALL}
    for name in ("Dmda", "Heft", "LayerCut"):
        assert spans[name] <= 1.05 * spans["GpuOnly"]
    assert spans["CpuOnly"] > 10 * spans["GpuOnly"]
    assert spans["ReadyPool"] > 10 * spans["GpuOnly"]  # it does not see who is slow


def test_a_policy_that_plans_and_one_that_places_agree(graph, costs):
    class Planned(sched.Policy):
        def plan(self, graph, machine, costs):
            return sched.Plan(graph.tile_ops % 2)

    class Placed(sched.Policy):
        def __init__(self):
            self.seen = []

        def place(self, view, tile):
            ends = view.earliest_finish(tile)
            assert ends.shape == (2,) == (view.num_resources,)
            assert (ends > view.now).all()
            self.seen.append(tile)
            return int(graph.tile_ops[tile] % 2)

    placed = Placed()
    one, other = sched.simulate(graph, MIXED, costs, Planned()), sched.simulate(graph, MIXED, costs, placed)
    np.testing.assert_array_equal(one.timeline, other.timeline)
    np.testing.assert_array_equal(one.copies, other.copies)
    assert sorted(placed.seen) == list(range(graph.num_tiles))


def test_places_by_earliest_finish_are_dmda(graph, costs):
    class Mine(sched.Policy):
        def place(self, view, tile):
            return int(view.earliest_finish(tile).argmin())

    mine, theirs = sched.simulate(graph, MIXED, costs, Mine()), sched.simulate(graph, MIXED, costs, sched.Dmda())
    assert (mine.timeline == theirs.timeline).all()


def test_priorities_order_what_is_ready():
    graph, _ = tiles(6, [])
    costs, one = sched.Costs(np.ones((6, 1))), sched.Machine([sched.Cpu(1)])
    schedule = sched.simulate(graph, one, costs, sched.Static(np.zeros(6, int), [3, -1, 9, 0, -np.inf, np.inf]))
    assert np.argsort(schedule.begin).tolist() == [5, 2, 0, 3, 1, 4]


def test_measured_costs_are_those_of_the_classes(graph):
    costs = sched.measure(graph, rounds=3)
    classes = tile_classes(graph)
    assert costs.ns.shape == (graph.num_tiles, 1)
    assert (costs.ns > 0).all()
    for number in np.unique(classes):
        same = classes == number
        assert len(np.unique(costs.ns[same])) == 1
        assert (costs.samples[same] == 3 * same.sum()).all()
    assert len(np.unique(classes)) < graph.num_tiles
    simulated = sched.simulate(graph, sched.Machine([sched.Cpu(1)]), costs)
    assert simulated.makespan == pytest.approx(costs.ns.sum(), rel=1e-3)


def test_a_real_run_says_who_ran_what(graph):
    schedule = sched.run(graph, *random_inputs(graph), machine=sched.Machine([sched.Cpu(2)]))
    assert schedule.is_real
    assert schedule.makespan > 0 == schedule.begin.min()
    assert (schedule.lanes < 2).all()
    with pytest.raises(InputError, match="knows no costs"):
        schedule.bounds()
    with pytest.raises(UnsupportedError, match="gpu can only be simulated"):
        sched.run(graph, *random_inputs(graph), machine=MIXED)


def test_pictures_and_tables(graph, costs, tmp_path):
    both = sched.compare([sched.simulate(graph, MIXED, costs, policy) for policy in (sched.Dmda(), sched.CpuOnly())])
    lines = str(both).splitlines()
    assert len(lines) == 3
    assert [lines[1].split()[0], lines[2].split()[4]] == ["Dmda", "0.0"]
    both.picture(tmp_path / "gantt.svg")
    assert (tmp_path / "gantt.svg").read_text().count("<path") > graph.num_tiles
    with pytest.raises(InputError, match="cannot be written"):
        both[0].picture(tmp_path / "gantt.nothing")
    with pytest.raises(InputError, match="nothing to compare"):
        sched.compare([])


def test_machines_and_costs_are_saved_and_read_again(graph, costs, tmp_path):
    MIXED.save(tmp_path / "machine.json")
    assert sched.Machine.load(tmp_path / "machine.json") == MIXED == pickle.loads(pickle.dumps(MIXED))
    assert MIXED.scaled(cpu=64).lane_names[1:] == [*(f"cpu {lane}" for lane in range(1, 64)), "gpu 0"]
    some = costs.ns.copy()
    some[3, 1] = np.inf
    sched.Costs(some, np.full(some.shape, 5)).save(tmp_path / "costs.csv", graph, MIXED)
    read = sched.Costs.load(tmp_path / "costs.csv", graph, MIXED)
    np.testing.assert_array_equal(read.ns, some)
    assert (read.samples == 5).all()


CPU = '{"kind": "cpu", "workers": 1}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "\x00",
        "[" * 5000,
        '{"resources": [], "links": []}',
        '{"resources": [{"kind": "tpu"}], "links": []}',
        '{"resources": [{"kind": "cpu", "workers": 0}], "links": []}',
        '{"resources": [{"kind": "cpu", "workers": "2"}], "links": []}',
        '{"resources": [' + CPU + '], "links": [{"source": "host"}]}',
        '{"resources": [' + CPU + "," + CPU + '], "links": []}',
    ],
)
def test_hostile_machine_files(text, tmp_path):
    (tmp_path / "machine.json").write_text(text)
    with pytest.raises(InputError, match=r"machine.json describes no machine"):
        sched.Machine.load(tmp_path / "machine.json")


HEADER = "tile,resource,ns,samples,spread\n"


@pytest.mark.parametrize(
    "row", ["0,cpu,-1,0,0", "0,cpu,nan,0,0", "999999,cpu,1,0,0", "-1,cpu,1,0,0", "0,moon,1,0,0", "0", "a,b,c,d,e"]
)
def test_hostile_cost_files(graph, row, tmp_path):
    (tmp_path / "costs.csv").write_text(HEADER + row + "\n")
    with pytest.raises(InputError, match=r"costs.csv holds no costs"):
        sched.Costs.load(tmp_path / "costs.csv", graph, MIXED)


def test_machines_that_cannot_be():
    with pytest.raises(InputError, match="at least one resource"):
        sched.Machine([])
    with pytest.raises(InputError, match="0 lanes"):
        sched.Machine([sched.Cpu(0)])
    with pytest.raises(InputError, match="have one name"):
        sched.Machine([sched.Cpu(1), sched.Cpu(2)])
    for link in (
        sched.Link("host", "host", -1, 1),
        sched.Link("host", "host", 0, 0),
        sched.Link("host", "host", 0, float("nan")),
    ):
        with pytest.raises(InputError, match="latency"):
            sched.Machine([sched.Cpu(1)], [link])


def planning(plan):
    return type("Mine", (sched.Policy,), {"plan": lambda self, graph, machine, costs: plan(graph)})()


def placing(place):
    return type("Mine", (sched.Policy,), {"place": lambda self, view, tile: place(view, tile)})()


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (planning(lambda graph: None), "Mine.plan returned NoneType"),
        (planning(lambda graph: sched.Plan([0])), r"Mine: place has shape \[1\]"),
        (planning(lambda graph: sched.Plan(np.zeros(graph.num_tiles))), "Mine: place holds float64"),
        (planning(lambda graph: sched.Plan(np.full(graph.num_tiles, 2))), "Mine: tile 0 is placed on resource 2 of 2"),
        (planning(lambda graph: sched.Plan(np.full(graph.num_tiles, -1))), "Mine: tile 0 is placed on resource -1 of 2"),
        (planning(lambda graph: sched.Plan(None, np.full(graph.num_tiles, np.nan))), "Mine: the priority of tile 0 is NaN"),
        (planning(lambda graph: sched.Plan(None, [1.0])), r"Mine: priority has shape \[1\]"),
        (placing(lambda view, tile: 7), "tile .* is placed on resource 7 of 2"),
        (placing(lambda view, tile: -1), "tile .* is placed on resource -1 of 2"),
    ],
)
def test_policies_that_decide_wrongly_are_named(graph, costs, policy, message):
    with pytest.raises(InputError, match=message):
        sched.simulate(graph, MIXED, costs, policy)


@pytest.mark.parametrize("answer", [lambda view, tile: 1 / 0, lambda view, tile: "gpu", lambda view, tile: None])
@pytest.mark.parametrize("kind", [planning, placing])
def test_a_policy_that_raises_ends_the_simulation_alone(graph, costs, kind, answer):
    policy = placing(answer) if kind is placing else planning(lambda graph: 1 / 0)
    with pytest.raises(EngineError, match="the policy Mine raised") as caught:
        sched.simulate(graph, MIXED, costs, policy)
    assert caught.value.__cause__ is not None
    assert sched.simulate(graph, MIXED, costs).makespan > 0


def test_tiles_without_a_kernel(graph, costs):
    partial = costs.ns.copy()
    partial[5, 1] = np.inf
    partial = sched.Costs(partial)
    for policy in (sched.GpuOnly(), sched.ReadyPool()):
        with pytest.raises(InputError, match="has no kernel for"):
            sched.simulate(graph, MIXED, partial, policy)
    for policy in (sched.Dmda(), sched.Heft(), sched.LayerCut(), sched.Shares(), sched.CpuOnly()):
        assert np.isfinite(sched.simulate(graph, MIXED, partial, policy).makespan)
    placed = placing(lambda view, tile: 1)
    with pytest.raises(InputError, match=r"^Mine: .*no kernel for tile 5"):
        sched.simulate(graph, MIXED, partial, placed)


def test_costs_that_cannot_be(graph, costs):
    for wrong in ([[-1.0]], [[np.nan]], [1.0], [[[1.0]]]):
        with pytest.raises(InputError, match="cost"):
            sched.Costs(wrong)
    with pytest.raises(InputError, match="the costs are of"):
        sched.simulate(graph, sched.Machine([sched.Cpu(1)]), costs)
    with pytest.raises(InputError, match="only CPU workers"):
        sched.measure(graph, MIXED)
    with pytest.raises(InputError, match="0 rounds"):
        sched.measure(graph, rounds=0)
    for error in (InputError, EngineError, UnsupportedError):
        assert issubclass(error, AspenError)


def test_state_refuses_orders_that_the_arrows_forbid(graph, costs):
    state = sched.State(graph, MIXED, costs)
    last = int(np.flatnonzero(graph.parent_counts > 0)[0])
    with pytest.raises(InputError, match="is not assigned yet"):
        state.assign(last, 0)
    first = int(np.flatnonzero(graph.parent_counts == 0)[0])
    state.assign(first, 1)
    with pytest.raises(InputError, match="is assigned already"):
        state.assign(first, 1)
    for tile, resource in ((-1, 0), (graph.num_tiles, 0), (first, 2)):
        with pytest.raises(InputError, match="there is no tile"):
            state.earliest_finish(tile) if resource == 0 else state.assign(tile, resource)


def test_arrows_that_carry_data_are_those_of_regions():
    graph = aspen(lambda x: jnp.cumsum(x * 2, axis=1) + 1).graph(np.ones((64, 64), np.float32))
    assert graph.carries_data.shape == (graph.num_edges,)
    # A long chain reuses memory: some arrows only order.
    x, w = np.ones((256, 256), np.float32), np.ones((256, 256), np.float32)

    def long(x, w):
        for _ in range(6):
            x = jax.nn.softmax(x @ w, axis=-1)
        return x

    reused = aspen(long).graph(x, w)
    assert reused.carries_data.any()
    assert reused.tile_bytes.sum() >= 256 * 256 * 4


def test_upward_ranks_are_longest_paths():
    random = np.random.default_rng(2)
    for size in (1, 5, 40):
        graph, dag, ns = random_case(random, size)
        ranks = graph.upward_rank(ns[:, 0])
        for tile in range(size):
            _, children = dag.step(np.array([tile]))
            assert ranks[tile] == ns[tile, 0] + max(ranks[children].tolist(), default=0)
        assert ranks.max() == dag.finish_times(ns[:, 0].astype(np.int64)).max()


def test_the_command_line_compares_policies_on_a_saved_graph(graph, costs, tmp_path, capsys):
    graph.save(tmp_path / "graph.aspen")
    MIXED.save(tmp_path / "machine.json")
    costs.save(tmp_path / "costs.csv", graph, MIXED)
    files = ["--machine", str(tmp_path / "machine.json"), "--costs", str(tmp_path / "costs.csv")]
    outputs = ["--picture", str(tmp_path / "lanes.png"), "--output", str(tmp_path / "run.perfetto-trace")]
    assert main(["lab", str(tmp_path / "graph.aspen"), "--policy", "Dmda", "GpuOnly", *files, *outputs]) == 0
    printed = capsys.readouterr().out
    assert f"{graph.num_tiles} tiles on 2 x cpu, 1 x gpu" in printed
    expected = sched.compare([sched.simulate(graph, MIXED, costs, policy) for policy in (sched.Dmda(), sched.GpuOnly())])
    assert str(expected) in printed
    assert (tmp_path / "lanes.png").stat().st_size > 1000
    trace = Decoded((tmp_path / "run.perfetto-trace").read_bytes())
    assert sum("tile" in item.categories for item in trace.slices) == graph.num_tiles
    assert set(trace.names()) <= {*MIXED.lane_names, "host to gpu", "gpu to host", "bytes in flight", "ready tiles"}
    assert main(["lab", str(tmp_path / "graph.aspen"), "--workers", "64"]) == 0
    assert "64 x cpu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "Static"], "there is no policy 'Static'; there are AllThroughPool, ChildCache, CpuOnly, Dmda"),
        (["--workers", "0"], "0 lanes"),
        (["--workers", "2", "--machine", "machine.json"], "take --machine or --workers"),
        (["--policy", "GpuOnly"], "the machine has no Gpu"),
    ],
)
def test_the_command_line_says_what_is_wrong(graph, options, message, tmp_path, capsys):
    graph.save(tmp_path / "graph.aspen")
    assert main(["lab", str(tmp_path / "graph.aspen"), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(6))
def test_a_trace_shows_copies_where_they_come_from_and_who_reads_them(seed, tmp_path):
    graph = random_graph(seed)
    costs = sched.Costs(np.random.default_rng(seed).integers(1_000, 50_000, (graph.num_tiles, 2)))
    place = np.random.default_rng(seed).integers(0, 2, graph.num_tiles)
    schedule = sched.simulate(graph, MIXED, costs, sched.Static(place))
    path = tmp_path / "run.perfetto-trace"
    schedule.trace(path)
    decoded = Decoded(path.read_bytes())
    of_tile = {item.facts["tile"]: item for item in decoded.slices if "tile" in item.categories}
    copies = [item for item in decoded.slices if "copy" in item.categories]
    memories = MIXED.memories
    assert sorted((item.facts["tile"], item.track.partition(" (")[0], item.begin, item.end) for item in copies) == sorted(
        (tile, f"{memories[source]} to {memories[target]}", begin, end)
        for tile, source, target, begin, end in schedule.copies.tolist()
    )
    starts = np.concatenate([[0], np.cumsum(graph.child_counts)])
    for item in copies:
        (flow,) = item.flows
        tile = item.facts["tile"]
        assert item.facts["bytes"] == graph.tile_bytes[tile]
        assert flow in of_tile[tile].flows
        assert of_tile[tile].end <= item.begin
        readers = [reader for reader, other in of_tile.items() if flow in other.flows and reader != tile]
        assert readers
        for reader in readers:
            edges = slice(starts[tile], starts[tile + 1])
            assert reader in graph.children[edges][graph.carries_data[edges]]
            assert schedule.resources[reader] != schedule.resources[tile]
            assert of_tile[reader].begin >= item.end
    if copies:
        times, in_flight = zip(*decoded.counters["bytes in flight"], strict=True)
        assert list(times) == sorted(times)
        assert in_flight[-1] == 0
        assert min(in_flight) >= 0
        assert max(in_flight) > 0


@pytest.mark.parametrize("seed", range(4))
def test_search_is_never_behind_what_it_begins_with_and_repeats_itself(seed):
    graph = random_graph(seed)
    costs = sched.Costs(np.random.default_rng(seed).integers(1_000, 50_000, (graph.num_tiles, 2)))
    found = sched.simulate(graph, MIXED, costs, sched.Search(rounds=300, seed=seed))
    for policy in (sched.Heft(), sched.Dmda(), sched.Shares()):
        assert (
            found.makespan
            <= sched.simulate(graph, MIXED, costs, sched.Static(sched.simulate(graph, MIXED, costs, policy).resources)).makespan
        )
    again = sched.simulate(graph, MIXED, costs, sched.Search(rounds=300, seed=seed))
    np.testing.assert_array_equal(found.timeline, again.timeline)
    assert found.makespan <= sched.simulate(graph, MIXED, costs, sched.Search(rounds=0)).makespan


def test_search_puts_no_tile_where_there_is_no_kernel():
    graph = random_graph(2)
    ns = np.random.default_rng(2).integers(1_000, 50_000, (graph.num_tiles, 2)).astype(float)
    ns[::3, 1] = np.inf
    found = sched.simulate(graph, MIXED, sched.Costs(ns), sched.Search(rounds=200))
    assert not found.resources[::3].any()
    with pytest.raises(InputError, match="-1 rounds of search"):
        sched.Search(rounds=-1)
