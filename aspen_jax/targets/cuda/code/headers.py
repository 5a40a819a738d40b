"""The texts of the headers that kernels stand on."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def header_texts() -> dict[str, str]:
    """The headers of `cuda/kernels/` by the names under which they are included: in full, and beside each other."""
    installed = Path(__file__).parents[1] / "include"
    folder = installed if installed.is_dir() else Path(__file__).parents[4]  # a checkout
    texts = {file.name: file.read_text() for file in sorted((folder / "cuda" / "kernels").glob("*.h"))}
    return {**{f"cuda/kernels/{name}": text for name, text in texts.items()}, **texts}
