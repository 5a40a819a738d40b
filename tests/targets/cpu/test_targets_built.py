"""Which CPU targets a build has: what cmake takes when nobody says, and what is told where a processor could run more."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from aspen_jax import _engine, aspen, runtime
from aspen_jax.cli import main
from aspen_jax.report.machine import machine

ROOT = Path(__file__).parents[3]
ALL = ["portable", "avx2", "avx512", "amx"]
SEARCH_PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
COMPILER, CMAKE, NINJA = (shutil.which(tool, path=SEARCH_PATH) for tool in (os.environ.get("CXX", "c++"), "cmake", "ninja"))
OPTION = "-Ccmake.define.ASPEN_CPU_TARGETS=all"


@pytest.fixture
def configured(tmp_path):
    """Configures the C++ part with options, by a compiler that is given more options; gives what cmake says."""
    if None in (COMPILER, CMAKE, NINJA):
        pytest.skip("no compiler, cmake or ninja")
    if platform.machine() != "x86_64":
        pytest.skip("there is one target alone")

    def configured(*options: str, compiler_line: str = 'exec "$COMPILER" "$@"') -> str:
        wrapper = tmp_path / "compiler"
        wrapper.write_text(f"#!/bin/sh\n{compiler_line}\n")
        wrapper.chmod(0o755)
        command = [str(CMAKE), "-S", str(ROOT), "-B", str(tmp_path / "build"), "-G", "Ninja", "-DASPEN_BUILD_MODULE=OFF"]
        own = {"PATH": SEARCH_PATH, "COMPILER": str(COMPILER), "CXX": str(wrapper)}
        result = subprocess.run([*command, *options], capture_output=True, text=True, env=os.environ | own)
        return result.stdout + " ".join(result.stderr.split())

    return configured


# __builtin_cpu_supports, as the check sees it: all, what has no 5 as in avx512, nothing. And a check that does not compile.
@pytest.mark.parametrize(
    ("compiler_line", "expected"),
    [
        ('exec "$COMPILER" \'-D__builtin_cpu_supports(x)=true\' "$@"', "portable;avx2;avx512"),
        ('exec "$COMPILER" \'-D__builtin_cpu_supports(x)=(x[3]!=53)\' "$@"', "portable;avx2"),
        ('exec "$COMPILER" \'-D__builtin_cpu_supports(x)=false\' "$@"', "portable"),
        ('case "$*" in *processor_targets*) exit 1;; esac; exec "$COMPILER" "$@"', "portable;avx2;avx512"),
    ],
)
def test_a_build_takes_the_targets_that_the_machine_runs_or_all(configured, compiler_line, expected):
    assert f"Kernels are compiled for {expected}:" in configured(compiler_line=compiler_line)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-DASPEN_CPU_TARGETS=portable"], "portable"),
        (["-DASPEN_CPU_TARGETS=portable;avx2"], "portable;avx2"),
        (["-DASPEN_CPU_TARGETS=all"], "portable;avx2;avx512"),
        (["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=x86_64"], "portable;avx2;avx512"),
        (["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"], "portable"),
    ],
)
def test_a_build_takes_the_targets_that_it_is_told_and_all_for_another_machine(configured, options, expected):
    assert f"Kernels are compiled for {expected}:" in configured(*options)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("portable;sse9", "names sse9; take native, all, or"),
        ("avx2", "must begin with portable"),
        ("", "must begin with portable"),
    ],
)
def test_a_build_refuses_targets_that_it_does_not_know(configured, targets, message):
    assert message in configured(f"-DASPEN_CPU_TARGETS={targets}")


def test_the_module_knows_what_it_has_and_what_runs_here():
    compiled, runnable = _engine.cpu_targets_compiled(), _engine.cpu_targets_runnable()
    assert compiled == [target for target in ALL if target in compiled]
    assert runnable == [target for target in ALL if target in runnable]
    assert _engine.cpu_targets() == [target for target in compiled if target in runnable]
    assert runtime.targets_left_out() == [target for target in runnable if target not in compiled]


@pytest.mark.parametrize("target", runtime.targets_left_out())  # none in a build for this machine
def test_a_target_that_was_left_out_is_refused_with_the_option_to_have_it(target, tmp_path):
    command = [sys.executable, "-P", "-c", "from aspen_jax import _engine; _engine.cpu_target()"]
    environment = os.environ | {"ASPEN_CPU_TARGET": target}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert f"ASPEN_CPU_TARGET is '{target}'" in result.stderr
    assert "ASPEN_CPU_TARGETS=all" in result.stderr


@pytest.fixture
def built(monkeypatch):
    """Pretends that the module was compiled for some targets, and runs on a processor that has all or some."""

    def built(*compiled: str, runnable: list[str] = ALL) -> None:
        monkeypatch.setattr(_engine, "cpu_targets_compiled", lambda: list(compiled))
        monkeypatch.setattr(_engine, "cpu_targets_runnable", lambda: runnable)

    monkeypatch.setattr(runtime, "_untold", [None])
    monkeypatch.delenv("ASPEN_CPU_TARGET", raising=False)
    return built


def test_info_names_what_was_left_out_and_how_to_have_it(built, capsys):
    built("portable", "avx2")
    assert machine()["cpu targets compiled"] == ["portable", "avx2"]
    assert machine()["cpu targets left out"] == ["avx512", "amx"]
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert "This processor also runs avx512, amx." in out
    assert OPTION in out


@pytest.mark.parametrize(("compiled", "runnable"), [(ALL, ALL), (ALL, ALL[:2]), (ALL[:2], ALL[:2])])
def test_info_has_no_advice_where_nothing_is_left_out(built, capsys, compiled, runnable):
    built(*compiled, runnable=runnable)
    assert main(["info"]) == 0
    assert OPTION not in capsys.readouterr().out


def run_all_ways():
    x = np.ones((256, 256), np.float32)
    for _ in range(2):
        decorated = aspen(lambda x: x @ x, strict=True)
        decorated(x)
        decorated.graph(x).run(x)


@pytest.mark.parametrize("compiled", [ALL[:1], ALL[:2]])
def test_a_better_target_that_was_left_out_is_told_once(built, caplog, compiled):
    caplog.set_level(logging.WARNING, "aspen_jax")
    built(*compiled)
    run_all_ways()
    (message,) = caplog.messages
    assert "this processor runs the CPU target amx" in message
    assert f"kernels for {', '.join(compiled)} alone" in message
    assert OPTION in message
    assert 'setLevel("ERROR")' in message


def test_a_graph_that_was_made_before_tells_it_too(built, caplog):
    x = np.ones((8, 8), np.float32)
    graph = aspen(lambda x: x @ x, strict=True).graph(x)
    caplog.set_level(logging.WARNING, "aspen_jax")
    built("portable")
    graph.run(x)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("compiled", "runnable", "named"),
    [
        (ALL, ALL, ""),
        (ALL, ALL[:2], ""),  # kernels for better processors than this one
        (["portable", "avx512", "amx"], ALL, ""),  # what was left out would not be used
        (ALL[:1], ALL, "portable"),  # who says which target, knows
    ],
)
def test_nothing_is_told_where_no_better_target_was_left_out_or_one_was_named(
    built, caplog, monkeypatch, compiled, runnable, named
):
    caplog.set_level(logging.WARNING, "aspen_jax")
    built(*compiled, runnable=runnable)
    monkeypatch.setenv("ASPEN_CPU_TARGET", named)
    runtime.tell_of_targets_left_out()
    assert not caplog.messages
