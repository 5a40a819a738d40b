"""The kernel tests again, in a process of its own for each CPU target that the machine has and this process does not use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aspen_jax import _engine

OTHERS = [target for target in _engine.cpu_targets() if target != _engine.cpu_target()]


@pytest.mark.parametrize("target", OTHERS)
def test_kernels_on_target(target):
    tests = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(tests / "test_kernels.py")]
    result = subprocess.run(command, env={**os.environ, "ASPEN_CPU_TARGET": target}, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


def test_the_target_is_the_one_that_was_asked_for():
    code = "from aspen_jax import _engine; print(_engine.cpu_target())"
    for target in _engine.cpu_targets():
        environment = {**os.environ, "ASPEN_CPU_TARGET": target}
        result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert result.stdout.strip() == target
