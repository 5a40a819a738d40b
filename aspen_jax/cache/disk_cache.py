"""Where what was found or compiled once is kept for later processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from aspen_jax.files import read_file

CACHE_VARIABLE = "ASPEN_CACHE_DIR"

# Seconds that a lock is waited for: much longer than a file is read and written.
_PATIENCE = 10.0


def cache_folder() -> Path:
    """The folder named by ASPEN_CACHE_DIR, or else the user's cache directory; it need not exist."""
    named = os.environ.get(CACHE_VARIABLE)
    # `~` as in a shell, which leaves it alone in quotes and in files of settings.
    return Path(os.path.expanduser(named) if named else platformdirs.user_cache_dir("aspen_jax", appauthor=False))


def read(file: Path, largest: int, *, ours: bool = False) -> bytes:
    """Reads a file that others may have laid there: neither a link nor a pipe or device, and not more than `largest` bytes.

    Args:
        file: what to read.
        largest: the most bytes that it may have.
        ours: whether it must belong to this user, and nobody else may write it, as for code that is going to run.

    Raises:
        OSError: it cannot be read, or is no such file.
    """
    return read_file(file, largest, follow_links=False, ours=ours)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other threads and processes that ask for the same out of a folder, which is made if it is not there.

    Whoever may read the folder can hold its lock. So it is waited for only so long, and then done without.

    Raises:
        OSError: the folder cannot be made or opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # A lock belongs to what was opened, so each thread has its own.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        end = time.monotonic() + _PATIENCE
        while not _taken(descriptor) and time.monotonic() < end:
            time.sleep(0.01)
        yield
    finally:
        with contextlib.suppress(OSError):  # a child that was forked meanwhile would keep it
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    """Whether the lock is ours now; also where the file system has none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def write(file: Path, content: bytes) -> None:
    """Writes a file so that others see all of it or nothing.

    Raises:
        OSError: it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # Where others can write the folder, they could lay a link at a name that they can guess.
    partial = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(content)
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
