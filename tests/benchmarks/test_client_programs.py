"""`python -m benchmarks clients` and `chooser`: what is wrong, slower or missing is told."""

import json
import os
import re

import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax.cost.timing import Timing
from benchmarks import zoo
from benchmarks.__main__ import main
from benchmarks.clients import command
from benchmarks.clients.program import CLIENTS, Client, library, normal
from benchmarks.zoo import squeezenet
from benchmarks.zoo.model import Size, of_network


@pytest.fixture
def few(monkeypatch):
    """A register of our own, and no networks; this process is left on its cores."""
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    programs: dict[str, Client] = {}
    monkeypatch.setattr(command, "CLIENTS", programs)
    monkeypatch.setattr(zoo, "NETWORKS", {})
    monkeypatch.setattr(zoo, "FUNCTIONS", {})
    return programs


def products(batch):
    def apply(x, w):
        for _ in range(4):
            x = jnp.sin(x @ w)
        return x

    return apply, (normal(0, 64 * batch, 256), normal(1, 256, 256) / 16)


def test_programs_are_compared_and_timed(few, capsys):
    few["products"] = Client("products", products, is_faster=True)
    few["absent"] = Client("absent", products, ("a_module_that_nobody_has",))
    assert main(["clients", "--rounds", "2"]) == 0
    captured = capsys.readouterr()
    (row,) = [line for line in captured.out.splitlines() if line.startswith("| products ")]
    assert "| 1 | 100% |" in row
    assert "skipped: absent needs a_module_that_nobody_has" in captured.err


@pytest.mark.one_mode("`aspen` is replaced")
@pytest.mark.parametrize("fault", [1.001, np.nan])
def test_a_wrong_result_fails(few, capsys, monkeypatch, fault):
    few["products"] = Client("products", products)
    monkeypatch.setattr(command, "aspen", lambda function: lambda *arguments: function(*arguments) * fault)
    monkeypatch.setattr(command, "_share", lambda *_: 1.0)
    assert main(["clients", "--rounds", "1"]) == 1
    assert "FAILED: products: results differ" in capsys.readouterr().err
    if np.isfinite(fault):
        few["products"] = Client("products", products, tolerance=1e-2)
        assert main(["clients", "--rounds", "1"]) == 0


def test_a_program_that_fails_does_not_end_the_others(few, capsys):
    def broken(batch):
        raise ValueError(f"made for another jax, batch {batch}")

    def incomplete(batch):
        return products(library("a_module_that_nobody_has").SIZE * batch)

    few["broken"] = Client("broken", broken)
    few["incomplete"] = Client("incomplete", incomplete)
    few["products"] = Client("products", products)
    assert main(["clients", "--rounds", "1", "--batch", "2"]) == 1
    captured = capsys.readouterr()
    assert "skipped: incomplete: a library that it needs lacks another: No module named" in captured.err
    assert "FAILED: incomplete" not in captured.err
    assert "FAILED: broken: ValueError: made for another jax, batch 2" in captured.err
    assert "| products |" in captured.out


def test_seconds_choose_the_rounds(few, monkeypatch):
    few["products"] = Client("products", products)
    asked = []
    timed = command.interleaved
    monkeypatch.setattr(command, "interleaved", lambda calls, rounds: asked.append(rounds) or timed(calls, min(rounds, 2)))
    assert main(["clients", "--seconds", "1e-9"]) == 0
    assert main(["clients", "--seconds", "1e9"]) == 0
    assert asked == [1, 5, 1, 200]


@pytest.mark.one_mode("asserts errors")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nobody"], "no program is called nobody"),
        (["--rounds", "0"], "the number of rounds is 0"),
        (["--batch", "0"], "the batch is 0"),
        (["--seconds", "0"], "0.0 seconds are asked for"),
        (["--workers", "0"], "0 workers are asked for"),
    ],
)
def test_what_cannot_be_measured_is_refused(few, capsys, words, message):
    assert main(["clients", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_guard_tells_what_is_slower_and_what_left_the_tiles(few, capsys, monkeypatch):
    few["products"] = Client("products", products, is_faster=True)
    shares = iter((0.5, 1.0))
    monkeypatch.setattr(command, "_share", lambda *_: next(shares))
    slow, equal = ({"jit": Timing((jit,)), "decorated": Timing((1.0,))} for jit in (0.5, 1.0))
    timed = [slow, slow]
    monkeypatch.setattr(command, "interleaved", lambda *_: timed.pop(0))
    assert main(["clients", "--rounds", "1", "--guard"]) == 1
    told = capsys.readouterr().err
    assert "FAILED: products: decorated it is slower" in told
    assert "FAILED: products: 50% of its flops run in tiles, of 100% that could" in told

    # A neighbour slowed the first times. Without the guard nobody asks.
    monkeypatch.setattr(command, "_share", lambda *_: 1.0)
    timed += [slow, equal]
    assert main(["clients", "--rounds", "1", "--guard"]) == 0
    timed += [slow]
    assert main(["clients", "--rounds", "1"]) == 0


@pytest.mark.one_mode("is in the default mode itself, and asserts that nothing is tiled")
def test_the_guard_sees_what_is_left_to_xla_by_choice(few, capsys, choosing):
    def small(batch):
        return lambda x: jnp.tanh(x) + 1, (normal(0, 8 * batch),)

    few["small"] = Client("small", small, is_faster=True)
    assert main(["clients", "--rounds", "1", "--guard"]) == 1
    assert "FAILED: small: 0% of its flops run in tiles, of 100% that could" in capsys.readouterr().err


def test_the_guard_looks_at_networks(few, capsys, monkeypatch):
    small = of_network("squeezenet1_1", squeezenet.NETWORKS["squeezenet1_1"](Size(image_size=32)))
    monkeypatch.setattr(zoo, "NETWORKS", {"squeezenet1_1": None})
    monkeypatch.setattr(zoo, "build", lambda _: small)
    assert main(["clients", "--guard"]) == 0
    monkeypatch.setattr(command, "_share_without_choice", lambda *_: 1.1)
    assert main(["clients", "--guard"]) == 1
    assert "FAILED: squeezenet1_1: 100% of its flops run in tiles, of 110% that could" in capsys.readouterr().err


WITHOUT_LIBRARIES = [
    program.name
    for program in CLIENTS.values()
    if not program.needs and not program.name.startswith(("cumulative-sum", "roll", "causal"))
]


@pytest.mark.one_mode("runs nothing")
def test_most_programs_need_no_libraries():
    assert len(WITHOUT_LIBRARIES) > 20


@pytest.mark.one_mode("runs nothing")
@pytest.mark.sweep
@pytest.mark.parametrize("name", WITHOUT_LIBRARIES)
def test_a_program_without_libraries_can_be_made(name):
    function, arguments = CLIENTS[name].make(1)
    assert callable(function)
    assert arguments


def test_the_choosers_figures(tmp_path, capsys):
    record, rates = tmp_path / "parts.jsonl", tmp_path / "rates.json"
    assert main(["chooser", "--parts", "4", "--seed", "3", "--record", str(record), "--fit", str(rates)]) == 0
    samples = [json.loads(line) for line in record.read_text().splitlines()]
    assert samples
    assert all(sample["xla_ns"] > 0 and sample["tiles_ns"] > 0 and sample["difference"] < 1e-2 for sample in samples)
    (fitted,) = json.loads(rates.read_text()).values()
    assert all(np.isfinite(rate) and rate >= 0 for side in ("xla", "tiles") for rate in fitted[side].values())
    assert re.search(rf"^all +{len(samples)} ", capsys.readouterr().out, re.MULTILINE)
    page = tmp_path / "chooser.json"
    assert main(["chooser", "--parts", "0", "--record", str(record), "--json", str(page)]) == 0
    assert re.search(rf"^all +{len(samples)} ", capsys.readouterr().out, re.MULTILINE)
    assert main(["page", str(page)]) == 0
    assert f"| all | {len(samples)} |" in capsys.readouterr().out
