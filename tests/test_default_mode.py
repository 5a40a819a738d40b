"""What users write, tested as users run it: the chooser decides what becomes tiles, and XLA optimises its code.

The files run again in a process of their own (`modes.py`). ASPEN_TEST_SWEEPS=all runs all of their cases.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = (
    "benchmarks/test_client_programs.py",
    "lowering/test_control_flow.py",
    "api/test_day_one.py",
    "api/test_nnx.py",
    "primitive/test_readers.py",
    "primitive/test_sharding.py",
    "primitive/test_transformations.py",
)
FORCING = ("XLA_FLAGS", "ASPEN_DISABLE_PASSES")  # which conftest.py sets


def run_in_default_mode(folder: Path, *arguments: str, code: int = 0, **environment: str) -> list[str]:
    """Lines that pytest prints, started elsewhere than in the checkout, which would shadow the installed package.

    What the chooser decides depends on the number of workers, so that is the same on all machines.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=0", "-p", "no:cacheprovider", *arguments]
    kept = {name: value for name, value in os.environ.items() if name not in FORCING}
    environment = {**kept, "ASPEN_TEST_MODE": "default", "ASPEN_NUM_WORKERS": "2", **environment}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    assert result.returncode == code, result.stdout[-6000:] + result.stderr[-2000:]
    return result.stdout.splitlines()


def test_what_users_write_in_the_default_mode(tmp_path, record_property):
    lines = run_in_default_mode(tmp_path, *(str(TESTS / name) for name in FILES))
    said = [line for line in lines if line.startswith("default mode: ")]
    assert len(said) == len(FILES) + 1
    record_property("summary", "\n".join([*said, f"default mode: {lines[-1]}"]))


CASES = """
import os
import jax.numpy as jnp
import pytest
from aspen_jax import aspen

def test_nothing_forces():
    assert "ASPEN_DISABLE_PASSES" not in os.environ
    assert "optimization_level" not in os.environ["XLA_FLAGS"]
    assert not aspen(jnp.sin).explain(jnp.ones(3)).parts

def test_tiles():
    aspen(jnp.sin, strict=True)(jnp.ones(3))

@pytest.mark.one_mode("fails")
def test_of_another_mode():
    raise AssertionError
"""


FEW = """
import jax.numpy as jnp
import pytest
from aspen_jax import aspen

@pytest.mark.parametrize("case", range(8))
def test_case(case):
    if case < {tiled}:
        aspen(jnp.sin, strict=True)(jnp.ones(3))
"""


def test_cases_that_run_tiles_are_counted_and_a_file_of_few_fails(tmp_path):
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_cases.py").write_text(CASES)
    (tmp_path / "test_half.py").write_text(FEW.format(tiled=4))
    (tmp_path / "test_less.py").write_text(FEW.format(tiled=3))
    # Packages come from where they come from here; the copied conftest.py does not know the checkout.
    environment = {"ASPEN_TEST_SWEEPS": "all", "PYTHONPATH": os.pathsep.join(sys.path)}
    lines = run_in_default_mode(tmp_path, ".", code=pytest.ExitCode.TESTS_FAILED, **environment)
    said = [line for line in lines if line.startswith(("default mode: ", "FAILED"))]
    assert said[:4] == [
        "default mode: test_cases.py: 1 of 2 cases ran tiles",
        "default mode: test_half.py: 4 of 8 cases ran tiles",
        "default mode: test_less.py: 3 of 8 cases ran tiles",
        "default mode: 8 of 18 cases ran tiles",
    ]
    (failed,) = said[4:]
    assert failed.startswith("FAILED test_less.py: tiles run in fewer than half of its cases")
