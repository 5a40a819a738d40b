"""The C++ test programs (tests/cpp), built and run in their quick form. Sanitizer builds are .ci/run's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEARCH_PATH = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
TOOLS = {tool: shutil.which(tool, path=SEARCH_PATH) for tool in (os.environ.get("CXX", "c++"), "cmake", "ctest", "ninja")}


def run(*command: object) -> None:
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=os.environ | {"PATH": SEARCH_PATH})
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout[-20_000:]}\n{result.stderr[-20_000:]}"


@pytest.mark.skipif(None in TOOLS.values(), reason=f"not found: {', '.join(t for t, path in TOOLS.items() if path is None)}")
def test_cpp_programs_build_and_pass(tmp_path: Path) -> None:
    options = ["-DASPEN_BUILD_MODULE=OFF", "-DASPEN_BUILD_TESTS=ON", "-DCMAKE_BUILD_TYPE=Release"]
    run("cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", *options)
    run("cmake", "--build", tmp_path)
    run("ctest", "--test-dir", tmp_path, "--output-on-failure", "--no-tests=error", "--timeout", 300)
