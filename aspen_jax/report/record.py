"""Files that the user asked for: measurements as JSON, with the machine that they were made on, and others as bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aspen_jax.errors import InputError
from aspen_jax.report.machine import machine


def write_record(path: Path, content: dict[str, Any]) -> None:
    """Write plain data to a file.

    Raises:
        InputError: the file cannot be written.
    """
    write_file(path, (json.dumps({"machine": machine(), **content}, indent=2) + "\n").encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file that the user named.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        path.write_bytes(content)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written: {error.strerror}; name a file in a directory that exists") from error
