"""What a run draws follows from the content of the checkout, on any day: sweeps, examples of Hypothesis, random numbers.

    ASPEN_TEST_CONTENT=0123456789ab pytest     # draws what a run drew that printed this content

The same sources draw the same, before a commit and after it. Git is not asked.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
# The files that git tracks, found without git: folders of sources, and the kinds of files that people write there.
_FOLDERS = ("aspen_jax", "benchmarks", "capi", "cpu", "cuda", "tests", "tools")
_KINDS = {".c", ".cc", ".cu", ".h", ".inc", ".js", ".json", ".proto", ".py", ".pyi", ".toml"}
# A build copies headers to here.
_BUILT = tuple(ROOT / "aspen_jax" / name for name in ("include", "targets/cuda/include"))

_generators: list[np.random.Generator] = []


def content() -> str:
    """A hash of all sources in hexadecimal digits, or what ASPEN_TEST_CONTENT says."""
    return os.environ.get("ASPEN_TEST_CONTENT") or _hash()


def seed_of(name: str) -> int:
    """A number of 32 bits for each name."""
    return int.from_bytes(hashlib.sha256(f"{content()} {name}".encode()).digest()[:4], "little")


def generator(name: str) -> np.random.Generator:
    """Draws for the tests of a module. Each test begins anew, whatever ran before it."""
    made = np.random.default_rng(seed_of(name))
    _generators.append(made)
    return made


def begin(test: str) -> None:
    """Sets all generators to what the name of a test gives, those of libraries as well."""
    seed = seed_of(test)
    for made in _generators:
        made.bit_generator.state = np.random.PCG64(seed).state
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what other code draws from
    if hasattr(keras := sys.modules.get("keras"), "utils"):
        keras.utils.set_random_seed(seed)  # weights of a model that is not told its seed


def sources() -> Iterator[Path]:
    """Files that people write, in the order of their names."""
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in _KINDS and not any(path.is_relative_to(built) for built in _BUILT):
                yield path


@functools.cache
def _hash() -> str:
    digest = hashlib.sha256()
    for path in sources():
        digest.update(f"{path.relative_to(ROOT).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]
