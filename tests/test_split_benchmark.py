"""The benchmark `split` in small: tables, files, options that do not fit."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.split import trained
from benchmarks.split.trained import Trained

RNG = np.random.default_rng()


@pytest.fixture
def small(monkeypatch):
    """A network that takes no training, in the place of one that does; its own answers are right."""
    w, v = RNG.normal(size=(12, 40)).astype(np.float32), RNG.normal(size=(40, 5)).astype(np.float32)
    images = RNG.normal(size=(60, 12)).astype(np.float32)

    def apply(x):
        return jax.nn.relu(x @ w) @ v

    network = Trained(apply, images, np.asarray(apply(images)).argmax(-1))
    monkeypatch.setitem(trained.NETWORKS, "digits", lambda: network)


@pytest.mark.usefixtures("small")
def test_all_parts_give_tables_and_a_record(tmp_path, capsys):
    record, picture = tmp_path / "split.json", tmp_path / "split.png"
    options = ["--trained.networks", "digits", "--trained.images", "2", "--trained.bits", "3", "8", "--trained.cuts", "2"]
    assert main(["split", *options, "--trained.rounds", "1", "--json", str(record), "--picture", str(picture)]) == 0
    content = json.loads(record.read_text())
    assert content["codec"]["sizes"]["digits"]["tensors"] == 1
    assert all(entropy > 1 for entropy in content["codec"]["sizes"]["digits"]["entropy"].values())
    assert content["accuracy"]["digits"]["exact"] == 1
    assert content["accuracy"]["digits"]["values"][-1] == [1, 1]
    assert content["schedule"]["choose"]["min_s"] > 0
    assert [item["cut"] for item in content["schedule"]["predictions"]["digits"]][-1] == 3
    assert picture.stat().st_size > 0
    out = capsys.readouterr().out
    assert "| digits | 1 | 0.2 | 0.2 |" in out
    assert "worst cut" in out


@pytest.mark.parametrize(
    "options",
    [
        ["--parts", "none"],
        ["--trained.networks", "none"],
        ["--trained.images", "0"],
        ["--trained.cuts", "0"],
        ["--trained.rounds", "0"],
    ],
)
def test_options_that_do_not_fit_are_refused(options, capsys):
    assert main(["split", *options]) == 2
    assert "benchmarks: " in capsys.readouterr().err
