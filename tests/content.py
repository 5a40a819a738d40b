"""The content of the checkout as one number: the seed of what is drawn at random. The same sources draw the same, on any day."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The files that git tracks, found without git: folders of sources, and the kinds of files that people write there.
_FOLDERS = ("aspen_jax", "benchmarks", "capi", "cpu", "cuda", "tests", "tools")
_KINDS = {".c", ".cc", ".cu", ".h", ".inc", ".js", ".json", ".proto", ".py", ".pyi", ".toml"}
# A build copies headers to here.
_BUILT = tuple(ROOT / "aspen_jax" / name for name in ("include", "cuda/include"))


@functools.cache
def content() -> str:
    """A hash of all sources, in hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.relative_to(ROOT).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def first_seed() -> int:
    """A number that follows from the content."""
    return int(content()[:8], 16) * 1_000_000


def sources() -> Iterator[Path]:
    """Files that people write, in the order of their names."""
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in _KINDS and not any(path.is_relative_to(built) for built in _BUILT):
                yield path
