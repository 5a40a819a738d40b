"""Our virtual clock beside SimGrid's, where that is installed; and what SimGrid is told."""

from __future__ import annotations

import importlib.util
import json

import pytest

from benchmarks import beside_simgrid
from benchmarks.__main__ import main
from benchmarks.lab import graph_of
from benchmarks.zoo.model import Size

IS_THERE = importlib.util.find_spec("simgrid") is not None


@pytest.mark.skipif(not IS_THERE, reason="simgrid is not installed")
def test_makespans_are_simgrids(record, capsys):
    assert main(["simgrid", "--image-size", "32", "--times", "3", "--json", str(record)]) == 0
    (table,) = json.loads(record.read_text())["results"]
    assert [row["SimGrid, ns"] for row in table["rows"]] == pytest.approx([row["ours, ns"] for row in table["rows"]], abs=1)
    assert "ns apart" in capsys.readouterr().out


@pytest.mark.skipif(IS_THERE, reason="simgrid is installed")
def test_without_simgrid_it_is_said_what_to_install(capsys):
    assert main(["simgrid"]) == 2
    assert "python3-simgrid" in capsys.readouterr().err


def test_all_but_times_is_told():
    graph = graph_of("squeezenet1_1", Size(image_size=32))
    schedule = beside_simgrid.random_schedule(graph, 0)
    told = beside_simgrid.describe(schedule)
    assert sorted(tile for order in told["orders"] for tile in order) == list(range(graph.num_tiles))
    assert len(told["copies"]) == len(schedule.copies) > 0
    for tile, source, target, size, latency in told["copies"]:
        assert tile in told["orders"][source]
        assert target != source
        assert size == graph.tile_bytes[tile]
        assert latency in (0, 10_000, 20_000)
    assert {latency for *_, latency in told["copies"]} > {0}
