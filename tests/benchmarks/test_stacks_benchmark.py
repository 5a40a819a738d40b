"""BrainSlug's experiments: the paper's counts, and small sizes of what is timed."""

from __future__ import annotations

import json
import os

import pytest

from aspen_jax.passes import stacks
from benchmarks.__main__ import main
from benchmarks.stacks.blocks import STEPS
from benchmarks.stacks.counts import PAPER, count


def tables(record):
    """The rows of each table of a record."""
    return [table["rows"] for table in json.loads(record.read_text())["results"]]


@pytest.mark.parametrize("name", PAPER)
def test_counts_are_the_papers(name):
    ours, theirs = count(name), PAPER[name].counts
    assert (ours.layers, ours.optimisable) == (theirs.layers, theirs.optimisable)
    assert ours.stacks == theirs.stacks or (name, ours.stacks) == ("inception_v3", 106)


def test_networks_are_counted_and_timed(record, capsys):
    options = ["--models", "squeezenet1_1", "--image-size", "32", "--batches", "1", "2", "--rounds", "1"]
    assert main(["stacks", "--parts", "counts", "networks", *options, "--json", str(record)]) == 0
    (counts,), networks = tables(record)
    assert all(counts[what] == counts[f"{what}, paper"] for what in ("layers", "optimisable", "stacks"))
    assert counts["ops here"] == 4  # three pools and the mean of all pixels
    assert [row["batch"] for row in networks] == [1, 2]
    assert all(0 < row["optimisable"] < 1 for row in networks)
    # No value here is large enough for a stack, so there is nothing to compare.
    assert all(row["times as fast"] is None and list(row["samples_s"]) == ["no stacks"] for row in networks)
    assert "the same" in capsys.readouterr().out


def test_networks_with_stacks_are_compared(record, capsys, monkeypatch):
    monkeypatch.setattr(stacks, "_SMALLEST_BETWEEN", 0)
    monkeypatch.setattr(stacks, "_HELD", float("inf"))
    options = ["--models", "densenet121", "--image-size", "32", "--batches", "1", "--rounds", "1", "--json", str(record)]
    assert main(["stacks", "--parts", "networks", *options]) == 0
    ((row,),) = tables(record)
    assert row["times as fast"] > 0
    assert row["in stacks"] > 0


def test_blocks_are_timed_and_their_bytes_counted(record, tmp_path, monkeypatch, capsys):
    valgrind = tmp_path / "valgrind"
    # The second of two runs misses 1,000 lines.
    valgrind.write_text('#!/bin/sh\nfor word in "$@"; do runs=$last; last=$word; done; echo "LLd misses: $runs,000 (" >&2\n')
    valgrind.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    pictures = tmp_path / "times.svg", tmp_path / "bytes.svg"
    options = ["--blocks", "1", "7", "--extent", "24", "--channels", "16", "--rounds", "1", "--cache-kib", "64"]
    files = [
        "--program",
        str(valgrind),
        "--json",
        str(record),
        "--picture",
        str(pictures[0]),
        "--bytes-picture",
        str(pictures[1]),
    ]
    assert main(["stacks", "--parts", "blocks", *options, *files]) == 0
    ((one, seven),) = tables(record)
    assert set(STEPS) <= set(seven["samples_s"])
    assert one["1 step, MB"] == one["any, MB"]
    assert all(seven[f"{name}, MB past 64 KiB"] == 0.064 for name in STEPS)
    assert all(path.stat().st_size for path in pictures)
    assert "MB past 64 KiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", "vit_b16"], "'vit_b16' is not in the paper; take some of alexnet"),
        (["--cache-kib", "100"], "take powers of two"),
        (["--rounds", "0"], "the number of rounds is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, message, capsys):
    assert main(["stacks", *options]) == 2
    assert message in capsys.readouterr().err
