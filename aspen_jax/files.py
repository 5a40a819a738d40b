"""Reads files that others may have made: regular ones alone, up to a size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

SMALL = 1 << 20
"""Bytes that suffice for what a person writes, such as a token or a certificate."""


def read_file(
    path: str | os.PathLike[str], largest: int | None = None, *, follow_links: bool = True, ours: bool = False
) -> bytes:
    """Reads a file that is neither a pipe nor a device nor a folder, and that ends where its size says.

    Opening a pipe never waits for a writer, and a file without an end is never read.

    Args:
        path: what to read.
        largest: the most bytes that it may have; any number if None.
        follow_links: whether it may be a symbolic link.
        ours: whether it must belong to this user, and nobody else may write it, as for code that is going to run.

    Raises:
        OSError: it cannot be read, or is no such file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow_links else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(status.st_mode):
            raise _refused(path, errno.EINVAL, "it is not a regular file, but a pipe or a device; name a file on disk")
        if ours and (status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise _refused(path, errno.EPERM, "others can write it")
        if largest is not None and status.st_size > largest:
            raise _refused(path, errno.EFBIG, f"it is too large: {status.st_size} bytes, more than {largest}")
        try:
            with open(descriptor, "rb", closefd=False) as opened:
                content = opened.read(status.st_size + 1)
        except MemoryError:
            raise _refused(path, errno.ENOMEM, f"it is too large for the memory: {status.st_size} bytes") from None
        except OSError as error:  # which does not say of what file
            raise _refused(path, error.errno or errno.EIO, str(error.strerror)) from None
    finally:
        os.close(descriptor)
    # Files of /proc have no size and any number of bytes; None stands for one that would let us wait.
    if content is None or len(content) > status.st_size:
        raise _refused(path, errno.EINVAL, "it holds more than its size says; copy it to a file on disk")
    return content


def _refused(path: str | os.PathLike[str], number: int, why: str) -> OSError:
    return OSError(number, why, os.fspath(path))


def read_text(path: str | os.PathLike[str], largest: int | None = None) -> str:
    """Reads a file as `read_file` does, as text in UTF-8.

    Raises:
        OSError: it cannot be read, or is no such file.
        UnicodeDecodeError: it is no such text.
    """
    return read_file(Path(path), largest).decode()
