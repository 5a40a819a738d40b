"""`python -m benchmarks clients` and `chooser`: what is wrong, slower or missing is told."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.clients import command
from benchmarks.clients.program import CLIENTS, Client, normal
from benchmarks.models import zoo
from benchmarks.models.model import Size


@pytest.fixture
def few(monkeypatch):
    """A register of our own, and no networks."""
    programs: dict[str, Client] = {}
    monkeypatch.setattr(command, "CLIENTS", programs)
    monkeypatch.setattr(zoo, "NETWORKS", {})
    return programs


def products(batch):
    def apply(x, w):
        for _ in range(4):
            x = jnp.tanh(x @ w)
        return x

    return apply, (normal(0, 64 * batch, 256), normal(1, 256, 256))


def test_programs_are_compared_and_timed(few, capsys):
    few["products"] = Client("products", products, is_faster=True)
    few["absent"] = Client("absent", products, ("a_module_that_nobody_has",))
    assert main(["clients", "--rounds", "2"]) == 0
    captured = capsys.readouterr()
    (row,) = [line for line in captured.out.splitlines() if line.startswith("| products ")]
    assert "| 100% |" in row
    assert "skipped: absent needs a_module_that_nobody_has" in captured.err
    assert main(["clients", "nobody"]) == 2
    assert "no program is called nobody" in capsys.readouterr().err


def test_a_wrong_result_fails(few, capsys, monkeypatch):
    few["products"] = Client("products", products)
    monkeypatch.setattr(command, "aspen", lambda function: lambda *arguments: function(*arguments) * 1.1)
    monkeypatch.setattr(command, "_share", lambda *_: 1.0)
    assert main(["clients", "--rounds", "1"]) == 1
    assert "FAILED: products: results differ" in capsys.readouterr().err


def test_the_guard_tells_what_is_slower_and_what_left_the_tiles(few, capsys, monkeypatch):
    few["products"] = Client("products", products, is_faster=True)
    monkeypatch.setattr(command, "_LEAST_RATIO", 1e9)
    shares = iter((0.5, 1.0))
    monkeypatch.setattr(command, "_share", lambda *_: next(shares))
    assert main(["clients", "--rounds", "1", "--guard"]) == 1
    told = capsys.readouterr().err
    assert "FAILED: products: decorated it is slower" in told
    assert "FAILED: products: 50% of its flops run in tiles, of 100% that could" in told


def test_the_guard_looks_at_networks(few, capsys, monkeypatch):
    small = zoo.build("squeezenet1_1", Size(image_size=32))
    monkeypatch.setattr(zoo, "NETWORKS", {"squeezenet1_1": None})
    monkeypatch.setattr(zoo, "build", lambda _: small)
    assert main(["clients", "--guard"]) == 0
    monkeypatch.setattr(command, "_share_without_choice", lambda *_: 1.1)
    assert main(["clients", "--guard"]) == 1
    assert "FAILED: squeezenet1_1: 100% of its flops run in tiles, of 110% that could" in capsys.readouterr().err


def test_every_program_without_libraries_can_be_made():
    made = 0
    for program in CLIENTS.values():
        if not program.needs and not program.name.startswith(("cumulative-sum", "roll", "causal")):
            function, arguments = program.make(1)
            assert callable(function)
            assert arguments
            made += 1
    assert made > 20


def test_the_choosers_figures(tmp_path, capsys):
    record, rates = tmp_path / "parts.jsonl", tmp_path / "rates.json"
    assert main(["chooser", "--parts", "4", "--seed", "3", "--record", str(record), "--fit", str(rates)]) == 0
    samples = [json.loads(line) for line in record.read_text().splitlines()]
    assert samples
    assert all(sample["xla_ns"] > 0 and sample["tiles_ns"] > 0 and sample["difference"] < 1e-2 for sample in samples)
    fitted = json.loads(rates.read_text())
    assert all(np.isfinite(rate) and rate >= 0 for side in ("xla", "tiles") for rate in fitted[side].values())
    assert f"| all | {len(samples)} |" in capsys.readouterr().out
    assert main(["chooser", "--parts", "0", "--record", str(record)]) == 0
    assert f"| all | {len(samples)} |" in capsys.readouterr().out
