"""The benchmark `split` in small: tables, pictures, records, options that do not fit."""

from __future__ import annotations

import json
import os

import jax
import numpy as np
import pytest

from aspen_jax.split import num_cuts
from benchmarks.__main__ import main
from benchmarks.split import energy, link, networks, trained
from benchmarks.split.over_links import Options
from benchmarks.split.trained import Trained
from tests.content import generator

RNG = generator(__name__)


@pytest.fixture
def small(monkeypatch):
    """A network that takes no training, in the place of one that does; its own answers are right."""
    w, v = RNG.normal(size=(12, 40)).astype(np.float32), RNG.normal(size=(40, 5)).astype(np.float32)
    images = RNG.normal(size=(60, 12)).astype(np.float32)

    def apply(x):
        return jax.nn.relu(x @ w) @ v

    network = Trained(apply, images, np.asarray(apply(images)).argmax(-1))
    monkeypatch.setitem(trained.NETWORKS, "digits", lambda: network)


def run(folder, *options):
    """The record that the command writes."""
    record = folder / "split.json"
    assert main(["split", *options, "--json", str(record), "--pictures", str(folder)]) == 0
    return json.loads(record.read_text())["results"]


@pytest.mark.usefixtures("small")
def test_parts_of_trained_networks_give_tables_and_a_record(tmp_path, capsys):
    options = ["--trained.networks", "digits", "--trained.images", "2", "--trained.bits", "3", "8", "--trained.rounds", "1"]
    content = run(tmp_path, *options)
    assert content["codec"]["sizes"]["digits"]["tensors"] == 1
    assert all(entropy > 1 for entropy in content["codec"]["sizes"]["digits"]["entropy"].values())
    assert content["accuracy"]["digits"]["exact"] == 1
    assert content["accuracy"]["digits"]["values"][-1] == [1, 1]
    assert content["schedule"]["choose"]["min_s"] > 0
    assert len(content["range"]["digits"]["largest"]) == 60
    assert 0 < content["range"]["digits"]["beyond"][0] < 1
    assert all((tmp_path / f"{part}.png").stat().st_size > 0 for part in ("range", "codec"))
    out = capsys.readouterr().out
    assert "| digits | 1 | 0.2 | 0.2 |" in out
    assert "worst cut" in out


@pytest.mark.usefixtures("small")
def test_predicted_times_of_heads_stand_beside_measured_ones(tmp_path, capsys):
    content = run(tmp_path, "--parts", "heads", "--heads.networks", "digits", "--heads.cuts", "2", "--heads.rounds", "2")
    items = content["heads"]["digits"]
    assert items[-1]["cut"] == 3
    assert all(item["predicted"] > 0 and item["measured"] > 0 for item in items)
    error = np.median([abs(item["predicted"] / item["measured"] - 1) for item in items])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| all |")]
    assert f"| {error:.1%} |" in line
    assert (tmp_path / "heads.png").stat().st_size > 0


# --- A device and a server, in processes of their own, over a shaped link ---


def check_link(rows, last):
    assert {row["side"] for row in rows} == set(link.SIDES)
    for row in rows:
        assert row["latency"] > 0
        assert row["throughput"] > 0
        is_exact = row["side"] in (link.DEVICE, link.RAW_INPUT, link.NEUROSURGEON)
        assert row["difference"] < (1e-4 if is_exact else 0.5), row


def check_stages(rows, last):
    assert [row["cut"] for row in rows] == sorted({row["cut"] for row in rows})
    assert (rows[0]["cut"], rows[-1]["cut"]) == (0, last)
    for row in rows:
        is_local = row["cut"] == last
        assert (row["tail"] == 0) == (row["link_time"] == 0) == is_local, row
        assert min(row["latency"], row["predicted"], row["head"]) > 0


def check_load(rows, last):
    assert {(row["core"], row["others"]) for row in rows} == {("device", 0), ("device", 1), ("server", 1)}
    for row in rows:
        assert row["device_load"] > 0
        assert row["server_load"] > 0
        assert row["row"]["difference"] < (1e-4 if row["row"]["side"] == link.DEVICE else 0.5)
        assert row["row"]["configuration"]["cut"] <= last


def check_deadline(rows, last):
    for row in rows:
        if row["deadline"] < 1e-4:
            assert row["configuration"] is None, "nothing is so fast"
        else:
            assert row["configuration"]["cut"] == last, "the device alone is fast enough"
            assert (row["share"], row["predicted_share"]) == (1, 1)
            assert row["latency"] > 0
    assert len(rows) == 4


PARTS = {"link": check_link, "stages": check_stages, "load": check_load, "deadline": check_deadline}


@pytest.mark.sweep
@pytest.mark.parametrize("part", PARTS)
def test_parts_over_a_link(part, tmp_path, capsys):
    for module in ("blosc2", "grpc", "PIL", "sklearn"):
        pytest.importorskip(module)
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a device and a server need two cores")
    network = "squeezenet1_1_at_48"
    links = ["--over.links", "--over.mbps", "50"] if part == "link" else ["--over.links", "WiFi"]
    options = ["--over.network", network, *links, "--over.seconds", "0.05"]
    small = ["--loads.cuts", "3", "--loads.others", "0", "1", "--loads.deadlines", "1e-6", "1e6"]
    content = run(tmp_path, "--parts", part, *options, *small)[part]
    assert content["network"] == network
    function, args = networks.network(network)
    PARTS[part](content["rows"], num_cuts(function, *args) - 1)
    assert (tmp_path / f"{part}.png").stat().st_size > 0
    assert f"| {'50 Mbit/s' if part == 'link' else 'WiFi'} | " in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--parts", "none"],
        ["--trained.networks", "none"],
        ["--trained.images", "0"],
        ["--trained.examples", "19"],
        ["--trained.rounds", "0"],
        ["--parts", "heads", "--heads.cuts", "0"],
        ["--parts", "heads", "--heads.rounds", "0"],
        ["--parts", "heads", "--heads.networks", "none"],
        ["--parts", "link", "--over.links", "5G"],
        ["--parts", "link", "--over.sides", "nobody"],
        ["--parts", "stages", "--loads.cuts", "0"],
        ["--parts", "load", "--over.links", "5G"],
        ["--parts", "deadline", "--loads.deadlines", "0"],
    ],
)
def test_options_that_do_not_fit_are_refused(options, capsys):
    assert main(["split", *options]) == 2
    assert "benchmarks: " in capsys.readouterr().err


@pytest.fixture
def zones(tmp_path):
    """A package, a part of it, and a zone of another kind, as Linux shows them."""
    found = ("intel-rapl:0", "package-0", "990"), ("intel-rapl:0:0", "core", "5"), ("intel-rapl:1", "psys", "7")
    for folder, name, energy_uj in found:
        zone = tmp_path / folder
        zone.mkdir()
        for file, text in (("name", name), ("energy_uj", energy_uj), ("max_energy_range_uj", "999")):
            (zone / file).write_text(f"{text}\n")
    return tmp_path


def test_energy_is_that_of_packages_and_counters_begin_anew(zones):
    (package,) = energy.counters(zones)
    assert package.path.parent.name == "intel-rapl:0"
    assert energy.joules([package], lambda: package.path.write_text("15\n")) == pytest.approx(25e-6)


def test_energy_without_counters_is_said_to_be_not_measurable(zones, capsys):
    (zones / "intel-rapl:0" / "energy_uj").unlink()
    assert energy.run(("energy",), Options(), zones) == {"energy": None}
    assert "not measurable here" in capsys.readouterr().out
    assert energy.run(("link",), Options(), zones) == {}


def test_energy_of_a_call(zones, capsys):
    """Over a real link, by counters that stand still."""
    found = energy.run(("energy",), Options(network="squeezenet1_1_at_64", links=("WiFi",), seconds=0.1), zones)["energy"]
    assert {row["side"] for row in found["rows"]} == {link.DEVICE, link.PACKED_INPUT, link.OURS}
    assert all(row["joules"] == 0 and row["latency"] > 0 for row in found["rows"])
    assert "J a call" in capsys.readouterr().out
