"""The kernel tests again, in a process of its own for each CPU target that the machine has and this process does not use.

A quarter of the files (`rotation.py`), other ones for each target.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aspen_jax import _engine
from tests.content import content
from tests.rotation import share

TESTS = Path(__file__).parents[2]
KERNEL_TESTS = [
    "ops/test_convolutions.py",
    "ops/test_kernels.py",
    "ops/test_products.py",
    "ops/test_ragged_dot.py",
    "ops/test_rows.py",
    "ops/test_indexing.py",
    "ops/test_along_axis.py",
    "ops/test_select_windows.py",
    "ops/test_attention.py",
    "ops/test_stacks.py",
    "ops/test_strassen.py",
    "ops/test_bf16x6.py",
    "ops/test_outliers.py",
    "ops/test_zeros.py",
    "passes/test_merge.py",
]
OTHERS = [target for target in _engine.cpu_targets() if target != _engine.cpu_target()]

# Two targets that share all kernels but one.
ALIKE = {"avx512", "amx"}


@pytest.mark.parametrize("target", OTHERS)
def test_kernels_on_target(target, tmp_path):
    names = ["ops/test_bf16x6.py"] if {target, _engine.cpu_target()} == ALIKE else share(KERNEL_TESTS, target)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--numprocesses=0",  # the cores have the other tests to run
        "-p",
        "no:cacheprovider",
        *(str(TESTS / name) for name in names),
    ]
    # Other cases than in this process.
    environment = {**os.environ, "ASPEN_CPU_TARGET": target, "ASPEN_TEST_CONTENT": f"{content()}-{target}"}
    # Elsewhere than in the checkout, which would shadow the installed package.
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]


def test_files_that_say_that_they_run_again_do():
    files = TESTS.rglob("test_*.py")  # this one among them
    says_so = {
        file.relative_to(TESTS).as_posix() for file in files if "`test_targets.py` runs this file again" in file.read_text()
    }
    assert says_so <= {*KERNEL_TESTS, "targets/cpu/test_targets.py"}


def test_the_target_is_the_one_that_was_asked_for(tmp_path):
    code = "from aspen_jax import _engine; print(_engine.cpu_target())"
    for target in _engine.cpu_targets():
        environment = {**os.environ, "ASPEN_CPU_TARGET": target}
        command = [sys.executable, "-P", "-c", code]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert result.stdout.strip() == target
