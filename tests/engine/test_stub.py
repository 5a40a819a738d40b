"""What type checkers and editors read of the extension module is what the module says of itself."""

from __future__ import annotations

import runpy
from pathlib import Path

import aspen_jax

TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "engine_stub.py"))
STUB: Path = TOOL["STUB"]


def test_the_stub_is_that_of_the_built_module() -> None:
    assert STUB.read_text() == TOOL["stub"](), "run `python tools/engine_stub.py`"


def test_the_stub_is_installed_beside_the_module() -> None:
    assert (Path(aspen_jax.__file__).parent / "_engine.pyi").read_text() == STUB.read_text()
