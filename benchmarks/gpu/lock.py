"""One process at a time has the GPU for its times, so that many may compile and build beside it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aspen_jax.errors import AspenError


@contextlib.contextmanager
def timing() -> Iterator[None]:
    """Waits for whoever takes times on this machine, and keeps others waiting.

    Raises:
        AspenError: the file of the lock cannot be opened.
    """
    file = Path(tempfile.gettempdir()) / "aspen_jax_gpu_times.lock"
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise AspenError(f"the lock {str(file)!r} cannot be opened: {error.strerror}; set TMPDIR to a folder of yours") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # By hand: a process that was forked meanwhile shares the file and would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
