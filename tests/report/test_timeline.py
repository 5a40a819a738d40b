"""What follows from a timeline: against definitions that look at one tile at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aspen_jax.errors import InputError
from aspen_jax.report.timeline import CALLER, NO_TILE, Gap, Idle, Timeline
from tests.tile_graphs import random_graph, small_net
from tests.timelines import random_timeline

RUNS = [(seed, 1 + seed % 4, 1 if seed < 20 else 3) for seed in range(30)]


def parents_of(graph, tile: int) -> list[int]:
    parents, children = graph.dag.edges()
    return parents[children == tile].tolist()


@pytest.mark.parametrize(("seed", "num_lanes", "width"), RUNS)
def test_lanes_are_full_of_tiles_and_gaps(seed, num_lanes, width):
    graph = random_graph(seed)
    timeline = random_timeline(graph, seed, num_lanes, width)
    names = [f"core {lane}" for lane in range(num_lanes)]
    run = Timeline(graph, timeline, names)
    assert run.lanes == list(enumerate(names))
    lane, begin, end = timeline.T
    for number in range(num_lanes):
        own = np.flatnonzero(lane == number)
        gaps = [gap for gap in run.gaps if gap.lane == number]
        for time in range(run.start, run.stop):
            is_busy = ((begin[own] <= time) & (time < end[own])).any()
            assert is_busy + sum(gap.begin <= time < gap.end for gap in gaps) == 1
        for row in range(int(run.row[own].max(initial=0)) + 1):
            tiles = sorted(own[run.row[own] == row], key=lambda tile: (begin[tile], end[tile]))
            assert all(end[a] <= begin[b] for a, b in itertools.pairwise(tiles))
        assert run.busy(number) == run.stop - run.start - sum(gap.end - gap.begin for gap in gaps)
        assert width > 1 or not run.row[own].any()


@pytest.mark.parametrize(("seed", "num_lanes", "width"), RUNS)
def test_a_gap_says_what_its_lane_did(seed, num_lanes, width):
    graph = random_graph(seed)
    timeline = random_timeline(graph, seed, num_lanes, width)
    run = Timeline(graph, timeline, ["lane"] * num_lanes)
    lane, begin, end = timeline.T
    for gap in run.gaps:
        assert gap.begin < gap.end
        later = [tile for tile in range(graph.num_tiles) if lane[tile] == gap.lane and begin[tile] >= gap.end]
        if gap.why is Idle.DONE:
            assert (gap.tile, gap.end, later) == (NO_TILE, run.stop, [])
        elif gap.why is Idle.TAKES:
            assert (lane[gap.tile], begin[gap.tile]) == (gap.lane, gap.end)
            assert max((end[parent] for parent in parents_of(graph, gap.tile)), default=run.start) <= gap.begin
        else:
            assert end[gap.tile] == gap.end
            following = [tile for tile in later if begin[tile] == min(begin[later])]
            assert any(gap.tile in parents_of(graph, tile) for tile in following)


@pytest.mark.parametrize(("seed", "num_lanes", "width"), RUNS)
def test_the_critical_path_is_what_each_tile_came_after(seed, num_lanes, width):
    graph = random_graph(seed)
    timeline = random_timeline(graph, seed, num_lanes, width)
    run = Timeline(graph, timeline, ["lane"] * num_lanes)
    lane, begin, end = timeline.T
    path = run.critical_path
    assert len(path) == len(set(path))
    assert end[path[-1]] == end.max()
    for before, tile in itertools.pairwise(path):
        parents = parents_of(graph, tile)
        assert end[before] <= begin[tile]
        assert before in parents or lane[before] == lane[tile]
        assert end[before] >= max(end[parents], default=0)
    assert not parents_of(graph, path[0])


@pytest.mark.parametrize(("seed", "num_lanes", "width"), RUNS)
def test_ready_tiles_are_counted(seed, num_lanes, width):
    graph = random_graph(seed)
    timeline = random_timeline(graph, seed, num_lanes, width)
    run = Timeline(graph, timeline, ["lane"] * num_lanes)
    _, begin, end = timeline.T
    times, counts = run.ready_counts
    assert (np.diff(times) > 0).all()
    assert (np.diff(counts) != 0).all()
    ready = [max((end[parent] for parent in parents_of(graph, tile)), default=begin.min()) for tile in range(graph.num_tiles)]
    np.testing.assert_array_equal(run.ready, ready)
    for time in range(run.start, run.stop + 1):
        expected = sum(ready[tile] <= time < begin[tile] for tile in range(graph.num_tiles))
        assert counts[np.searchsorted(times, time, side="right") - 1] == expected


def test_a_waiting_lane_by_hand():
    graph = random_graph(1)
    parents, children = graph.dag.edges()
    child = int(children[0])
    own = parents[children == child]
    timeline = np.zeros((graph.num_tiles, 3), np.int64)
    depth = np.zeros(graph.num_tiles, np.int64)
    for number, tiles in enumerate(graph.dag.levels):
        depth[tiles] = number
    timeline[:, 1] = timeline[:, 2] = 100 * depth  # all on lane 0, each for no time at the beginning of its level
    timeline[:, 2] += 50
    timeline[child, 0] = 1
    run = Timeline(graph, timeline)
    last = max(timeline[own, 2])
    first, second, *rest = [gap for gap in run.gaps if gap.lane == 1]
    assert first == Gap(1, 0, last, Idle.WAITS, int(run.last_parent[child]))
    assert second == Gap(1, last, timeline[child, 1], Idle.TAKES, child)
    assert [gap.why for gap in rest] == [Idle.DONE] * int(timeline[child, 2] < run.stop)


def test_a_run_of_the_calling_thread_has_one_lane():
    graph = small_net()
    run = Timeline(graph, random_timeline(graph, 0, 1) - [1, 0, 0])
    assert run.lanes == [(CALLER, "caller")]
    assert {gap.why for gap in run.gaps} == {Idle.TAKES}
    assert len(run.critical_path) > graph.num_tiles // 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows, child: rows[1:], "has 1152 tiles"),
        (lambda rows, child: rows.astype(float), "is float64"),
        (lambda rows, child: np.where(rows == 0, -2, rows), "lanes from -1"),
        (lambda rows, child: rows - [0, 10**6, 10**6], "times from 0"),
        (lambda rows, child: rows[:, [0, 2, 1]], "the end not before the begin"),
        (lambda rows, child: rows + np.array([7, 0, 0]), "lane 8 and lane_names has 2 names"),
        (lambda rows, child: np.where(np.arange(len(rows))[:, None] == child, [0, 0, 10], rows), "before its parent"),
    ],
)
def test_what_is_no_timeline_of_the_graph_is_refused(change, message):
    graph = small_net()
    child = int(graph.children[0])
    rows = random_timeline(graph, 0, 2)
    with pytest.raises(InputError, match=message):
        Timeline(graph, change(rows, child), ["a", "b"])
