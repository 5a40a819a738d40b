"""The paper's experiments run and write what they measured, on the smallest sizes; nothing here holds a time to anything."""

from __future__ import annotations

import json
import os

import pytest

from aspen_jax.errors import InputError
from benchmarks import layers, paper
from benchmarks.__main__ import main
from benchmarks.peers.case import read_case
from benchmarks.picture import save_curves
from benchmarks.scaling import parallel_fraction
from benchmarks.zoo.model import Size

SMALL = ["--models", "VGG16", "--image-size", "32"]


def results(record):
    return json.loads(record.read_text())["results"]


def rows(record, table=0):
    return results(record)[table]["rows"]


def test_tiles_a_layer(record, tmp_path):
    picture = tmp_path / "tiles.png"
    options = ["--counts", "1", "8", "--rounds", "2", "--json", str(record), "--picture", str(picture)]
    assert main(["tiles", *SMALL, *options]) == 0
    tiles = {row["tiles a layer"]: row["tiles"] for row in rows(record)}
    assert tiles["1"] < tiles["8"]
    assert set(tiles) == {"1", "8", "as chosen"}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_scaling(record, capsys):
    picture = record.with_name("scaling.png")
    options = ["--rounds", "2", "--beyond", "8", "--json", str(record), "--picture", str(picture)]
    assert main(["scaling", *SMALL, *options]) == 0
    found = {row["workers"]: row for row in rows(record, 1)}
    timed = {count: row for count, row in found.items() if row["min"]}
    assert {*timed, 8} == set(found)
    assert [count for count, row in timed.items() if row["fraction"] is None] == [1]
    # A limit of memory makes nothing faster.
    assert all(0 < row["simulated"] <= row["simulated, with a limit of memory"] for row in found.values())
    shown = capsys.readouterr().out
    assert "GB/s for 8 workers" in shown
    assert "with a limit of memory: error" in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["scaling", *SMALL, "--beyond", "0"]) == 2
    assert "0 workers are to be simulated" in capsys.readouterr().err
    assert main(["scaling", *SMALL, "--bandwidth", "-1"]) == 2
    assert "a memory of -1.0 GB/s" in capsys.readouterr().err


@pytest.mark.parametrize(("speedup", "workers", "fraction"), [(4.0, 4, 1.0), (1.0, 8, 0.0), (2.0, 3, 0.75)])
def test_karp_and_flatts_fraction(speedup, workers, fraction):
    # Of fraction p in parallel, Amdahl's speed-up is 1 / (1 - p + p / workers).
    assert parallel_fraction(speedup, workers) == pytest.approx(fraction)
    assert 1 / (1 - fraction + fraction / workers) == pytest.approx(speedup)


def test_weights(record, capsys):
    assert main(["weights", *SMALL, "--rounds", "2", "--json", str(record)]) == 0
    ratios = {row[""]: row["times as fast as plain tracers"] for row in rows(record)}
    assert set(ratios) == {"jax.jit", "plain tracers", "prepared", "closed over"}
    assert ratios["plain tracers"] == 1
    assert "times as fast as plain tracers" in capsys.readouterr().out


def test_layers(record, monkeypatch):
    monkeypatch.setattr(layers, "SWEEPS", {"layers": (1, 2), "size": (7,), "channels": (8,)})
    assert main(["layers", "--rounds", "1", "--json", str(record)]) == 0
    found = [(row["name"], row["agrees"]) for table in range(3) for row in rows(record, table)]
    assert found == [("layers 1", True), ("layers 2", True), ("size 7", True), ("channels 8", True)]


@pytest.mark.sweep
def test_unequal_cores(record):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    picture = record.with_name("unequal.png")
    options = ["--rounds", "1", "--seconds", "0.2", "--json", str(record), "--picture", str(picture)]
    assert main(["unequal", "--models", "llama-small", *options]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert all(rate > 0 for row in rows(record) for rates in row["samples"].values() for rate in rates)


def test_cores_of_two_speeds(record, capsys):
    picture = record.with_name("hybrid.png")
    options = ["--rounds", "2", "--performance", "2", "--efficiency", "2", "--slower", "2"]
    assert main(["hybrid", *SMALL, *options, "--json", str(record), "--picture", str(picture)]) == 0
    assert [row["sum of the cores"] for row in rows(record)] == [1, 2, 2.5, 3]
    for row in rows(record):
        for scheduler in ("equal shares and barriers", "Algorithm 1", "Dmda"):
            assert 0 < row[scheduler] <= row["sum of the cores"] * (1 + 1e-6)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["hybrid", *SMALL, "--efficiency", "0"]) == 2
    assert "take 1 or more of each kind" in capsys.readouterr().err
    assert main(["hybrid", *SMALL, "--slower", "0.5"]) == 2
    assert "0.5 times as slow" in capsys.readouterr().err


@pytest.mark.sweep
def test_two_models_together(record):
    assert main(["together", "--models", "llama-small", "--rounds", "2", "--json", str(record)]) == 0
    (pair,) = results(record)
    assert pair["title"] == "llama-small and llama-small"
    assert [row[""] for row in pair["rows"]] == ["in turn", "at once"]


@pytest.mark.sweep
def test_the_paper_goes_on_where_it_was_interrupted(tmp_path, capsys):
    folder = tmp_path / "paper"
    command = ["paper", "--models", "squeezenet1_1", "--image-size", "32", "--rounds", "1", "--output", str(folder)]
    assert main([*command, "--experiments", "scaling"]) == 0
    figures = folder / "scaling-squeezenet1_1.json"
    before = figures.read_bytes()
    assert main([*command, "--experiments", "scaling", "tiles"]) == 0
    assert figures.read_bytes() == before
    page = (folder / "paper.md").read_text()
    for experiment, shows in (("scaling", "parallel fraction"), ("tiles", "as chosen")):
        assert (folder / f"{experiment}-squeezenet1_1.png").read_bytes().startswith(b"\x89PNG")
        assert f"({experiment}-squeezenet1_1.png)" in page
        assert shows in page
    assert main([*command, "--batch", "2"]) == 2
    assert "was measured with another size" in capsys.readouterr().err


@pytest.mark.sweep
def test_latencies_of_several_sizes_make_one_table_and_picture(tmp_path):
    folder = tmp_path / "paper"
    command = ["paper", "--experiments", "latency", "--image-size", "32", "--rounds", "1", "--peers", "jax.jit"]
    command += ["--output", str(folder)]
    assert main([*command, "--latency", "squeezenet1_1:B1"]) == 0
    (first,) = results(folder / "latency" / "answers.json").values()
    assert main([*command, "--latency", "squeezenet1_1:B1", "squeezenet1_1:B2"]) == 0
    assert results(folder / "latency" / "answers.json")["squeezenet1_1:B1"] == first
    page = (folder / "paper.md").read_text()
    assert page.count("(latency/speedups.png)") == page.count("Times as fast as jax.jit") == 1
    assert "| squeezenet1_1:B2 |" in page


def test_the_papers_models_have_the_sizes_of_figure_6():
    assert set(paper.SIZES) == set(paper.MODELS)
    names = list(paper.figure_6(("bert-base", "squeezenet1_1", "gpt2")))
    assert names[-3:] == ["bert-base:S480B8", "squeezenet1_1", "gpt2:S1024B1"]
    for name in paper.figure_6(paper.MODELS):
        read_case(name, Size())


@pytest.mark.sweep
def test_an_experiment_that_fails_is_reported_and_tried_again(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "paper"
    command = ["paper", "--models", "squeezenet1_1", "--image-size", "32", "--rounds", "1", "--output", str(folder)]
    command += ["--experiments", "scaling"]
    monkeypatch.setenv("ASPEN_NUM_WORKERS", "none")
    assert main(command) == 1
    assert "`python -m benchmarks scaling` ended with status" in capsys.readouterr().err
    monkeypatch.delenv("ASPEN_NUM_WORKERS")
    assert main(command) == 0


def test_a_picture_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot be written as a picture"):
        save_curves(tmp_path / "curves.nonsense", "title", "x", "y", {"curve": [(1, 1)]})
