"""The table of the engine's policies, with a program and a valgrind that answer at once."""

from __future__ import annotations

import json
import os

import pytest

from aspen_jax.errors import AspenError
from benchmarks import policies
from benchmarks.__main__ import main


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_each_policy_is_timed_simulated_and_counted(tmp_path, monkeypatch, capsys):
    program = script(tmp_path / "policies", 'shift 3; for policy in "$@"; do echo "9000000 3000000 5000000"; done')
    # The second of two runs misses 1,000 lines.
    script(tmp_path / "valgrind", 'for word in "$@"; do runs=$last; last=$word; done; echo "==7== LLd misses: $runs,000 (" >&2')
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    record = tmp_path / "record.json"
    options = ["--models", "squeezenet1_1", "--image-size", "32", "--rounds", "2", "--beyond", "4", "--cache-mib", "1"]
    assert main(["policies", *options, "--program", str(program), "--json", str(record)]) == 0
    (found,) = json.loads(record.read_text())["results"]
    assert [row["policy"] for row in found["rows"]] == list(policies.NAMES)
    for row in found["rows"]:
        assert row["samples_ns"] == [3_000_000, 5_000_000]
        assert row["4 simulated, ms"] > 0
        assert row["1 MiB, MB"] == 0.064
    table = capsys.readouterr().out
    assert "1 MiB, MB" in table
    assert "child cache of 16" in table


def test_what_a_program_says_when_it_fails_is_said(tmp_path, capsys):
    program = script(tmp_path / "policies", 'echo "no such thing" >&2; exit 3')
    assert main(["policies", "--models", "squeezenet1_1", "--image-size", "32", "--beyond", "--program", str(program)]) == 2
    assert "no such thing" in capsys.readouterr().err


def test_misses_are_found():
    assert policies.misses("==1== LLd misses:        1,234,567  (  1 rd   +  2 wr)") == 1_234_567
    with pytest.raises(AspenError, match="no misses"):
        policies.misses("nothing")
