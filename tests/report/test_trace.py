"""Trace files, decoded with Perfetto's own messages: every slice, nesting, flow and counter against the timeline."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import aspen_jax.schedule as sched
from aspen_jax import set_num_workers
from aspen_jax.errors import InputError
from aspen_jax.report import trace
from aspen_jax.report.labels import LONGEST_NAME, Labels, bounded
from aspen_jax.report.timeline import Timeline
from tests.report.decoded_trace import Decoded
from tests.tile_graphs import random_graph, small_net
from tests.timelines import random_timeline

LINKS = [sched.Link("host", "gpu", 10, 1e9), sched.Link("gpu", "host", 5, 2e9)]

HOSTILE = (
    "",
    "\0\n\x1b[31m",
    "half of a pair: \ud800",
    "</script><script>alert(1)",
    '"quoted" \\ & <b>',
    "scope/" * 10_000,
    "\N{FACE WITH TEARS OF JOY}" * 999,
    "\u202eright to left",
)


def check(data: bytes, graph, timeline: np.ndarray, lane_names) -> Decoded:
    """All of a file, against the timeline itself and what follows from it (tests/report/test_timeline.py)."""
    decoded, run, labels = Decoded(data), Timeline(graph, timeline, lane_names), Labels(graph)
    of_tile = {item.facts["tile"]: item for item in decoded.slices if trace.TILE in item.categories}
    assert sorted(of_tile) == list(range(graph.num_tiles))
    names = dict(run.lanes)
    for tile, item in of_tile.items():
        lane, begin, end = timeline[tile].tolist()
        assert (item.begin, item.end, item.name) == (begin, end, labels.ops[graph.tile_ops[tile]])
        assert item.track == bounded(names[lane]) + (f" ({run.row[tile] + 1})" if run.row[tile] else "")
        number = int(graph.tile_ops[tile])
        own, boxes = graph.tiles_of(number)
        box = boxes[own.tolist().index(tile)]
        op = graph.program().ops[number]
        estimated = int(graph.costs[tile])
        assert item.facts == {
            "tile": tile,
            "box": ", ".join(f"{lo}:{hi}" for lo, hi in box),
            "bytes": int(op.family.work(op, box[None]).bytes[0]),
            "measured_ns": end - begin,
            "estimated_ns": estimated,
            **({"measured_over_estimated": (end - begin) / estimated} if estimated else {}),
        }
        assert (trace.CRITICAL_PATH in item.categories) == bool(item.flows)
    assert {tile for tile, item in of_tile.items() if item.flows} == set(run.critical_path)
    on_path = [of_tile[tile] for tile in run.critical_path]
    assert len({flow for item in on_path for flow in item.flows}) == (1 if on_path else 0)
    assert all(a.end <= b.begin for a, b in itertools.pairwise(on_path))
    gaps = [(item.track, item.begin, item.end, item.name) for item in decoded.slices if item.categories == [trace.IDLE]]
    assert sorted(gaps) == sorted((bounded(names[gap.lane]), gap.begin, gap.end, labels.gap(gap)) for gap in run.gaps)
    assert len(gaps) + len(of_tile) == len(decoded.slices)
    assert decoded.counters == {"ready tiles": list(zip(*(array.tolist() for array in run.ready_counts), strict=True))}
    return decoded


@pytest.mark.parametrize("seed", range(30))
def test_files_say_what_the_timeline_says(seed, tmp_path):
    graph = random_graph(seed)
    num_lanes, width = 1 + seed % 4, 1 + seed // 20
    timeline = random_timeline(graph, seed, num_lanes, width)
    names = [f"core {lane}" for lane in range(num_lanes)]
    path = tmp_path / "run.perfetto-trace"
    trace.write(path, graph, timeline, lane_names=names)
    decoded = check(path.read_bytes(), graph, timeline, names)
    rows = [name for name in decoded.names() if not name.endswith(")")]
    assert rows == [*names, "ready tiles"]


@pytest.mark.parametrize("workers", [1, 3])
def test_files_of_real_runs(workers, tmp_path):
    set_num_workers(workers)
    graph = small_net()
    timeline = graph.timeline(np.ones((1, 48, 32, 8), np.float32), np.zeros((3, 3, 8, 8), np.float32))
    path = tmp_path / "run.perfetto-trace"
    trace.write(path, graph, timeline)
    check(path.read_bytes(), graph, timeline, None)


def test_a_real_network(tmp_path):
    keras = pytest.importorskip("keras")
    from aspen_jax import aspen

    model = keras.applications.MobileNetV3Small(input_shape=(64, 64, 3), weights=None, classes=10)
    values = [variable.value for variable in model.trainable_variables], [v.value for v in model.non_trainable_variables]
    x = np.zeros((1, 64, 64, 3), np.float32)

    def predict(values, x):
        return model.stateless_call(*values, x, training=False)[0]

    graph = aspen(predict).graph(values, x)
    timeline = graph.timeline(values, x)
    path = tmp_path / "run.perfetto-trace"
    trace.write(path, graph, timeline)
    decoded = check(path.read_bytes(), graph, timeline, None)
    assert any("conv" in item.name for item in decoded.slices)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_names_never_break_the_format(hostile, tmp_path):
    graph = random_graph(3)
    graph = dataclasses.replace(graph, op_names=(hostile,) * graph.num_ops)
    timeline = random_timeline(graph, 3, 2)
    path = tmp_path / "run.perfetto-trace"
    trace.write(path, graph, timeline, lane_names=[hostile, "other"])
    decoded = check(path.read_bytes(), graph, timeline, [hostile, "other"])
    for item in decoded.slices:
        assert item.name
        assert item.name.isprintable()
        assert len(item.name) <= LONGEST_NAME + len("waits for  tile 12345")


def test_a_lane_that_ran_nothing_is_shown(tmp_path):
    graph = random_graph(2)
    timeline = random_timeline(graph, 2, 1)
    path = tmp_path / "run.perfetto-trace"
    trace.write(path, graph, timeline, lane_names=["busy", "idle"])
    (idle,) = [item for item in Decoded(path.read_bytes()).slices if item.track == "idle"]
    assert (idle.begin, idle.end, idle.name) == (timeline[:, 1].min(), timeline[:, 2].max(), "no tile was left")


def test_costs_may_be_others_than_the_graphs(tmp_path):
    graph = random_graph(4)
    costs = np.arange(graph.num_tiles)
    path = tmp_path / "run.perfetto-trace"
    trace.write(path, graph, random_timeline(graph, 4, 2), costs=costs)
    found = [item for item in Decoded(path.read_bytes()).slices if trace.TILE in item.categories]
    assert all(item.facts["estimated_ns"] == item.facts["tile"] for item in found)
    with pytest.raises(InputError, match="pass one for each"):
        trace.write(path, graph, random_timeline(graph, 4, 2), costs=costs[1:])


@pytest.mark.parametrize("policy", [sched.ReadyPool(), sched.Dmda(), sched.GpuOnly()], ids=lambda policy: type(policy).__name__)
def test_simulated_schedules_keep_the_names_of_their_lanes(policy, tmp_path):
    graph = random_graph(6)
    machine = sched.Machine([sched.Cpu(2), sched.Gpu()], LINKS)
    costs = sched.Costs(np.random.default_rng(6).integers(0, 90, (graph.num_tiles, 2)))
    run = sched.simulate(graph, machine, costs, policy)
    path = tmp_path / "run.perfetto-trace"
    trace.write(path, graph, run.timeline, lane_names=machine.lane_names)
    check(path.read_bytes(), graph, run.timeline, machine.lane_names)


def test_bytes_are_left_out_where_kernels_are_unknown(tmp_path):
    graph = random_graph(5)
    graph = dataclasses.replace(graph, kernels=tuple(f"simulated {name}" for name in graph.kernels))
    path = tmp_path / "run.perfetto-trace"
    trace.write(path, graph, random_timeline(graph, 5, 2))
    found = [item for item in Decoded(path.read_bytes()).slices if trace.TILE in item.categories]
    assert len(found) == graph.num_tiles
    assert not any("bytes" in item.facts for item in found)
