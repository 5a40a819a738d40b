"""Where what was found or compiled once is kept for later processes."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import platformdirs

CACHE_VARIABLE = "ASPEN_CACHE_DIR"


def cache_folder() -> Path:
    """The folder named by ASPEN_CACHE_DIR, or else the user's cache directory; it need not exist."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("aspen_jax", appauthor=False))


def write(file: Path, content: bytes) -> None:
    """Writes a file so that others see all of it or nothing.

    Raises:
        OSError: it cannot be written.
    """
    partial = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
    file.parent.mkdir(parents=True, exist_ok=True)
    partial.write_bytes(content)
    partial.replace(file)
