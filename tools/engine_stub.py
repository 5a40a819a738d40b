"""Writes aspen_jax/_engine.pyi from the extension module, whose sources hold signatures and docstrings."""

from __future__ import annotations

from pathlib import Path

from nanobind.stubgen import StubGen

from aspen_jax import _engine

STUB = Path(__file__).resolve().parents[1] / "aspen_jax/_engine.pyi"


def stub() -> str:
    """The text of the stub, without values, which differ between builds."""
    generator = StubGen(_engine, max_expr_length=0)
    generator.put(_engine)
    return f"# Written by tools/engine_stub.py from the built module; change that module's sources instead.\n{generator.get()}"


if __name__ == "__main__":
    STUB.write_text(stub())
