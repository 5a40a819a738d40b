"""Measurements as a JSON file, with the machine that they were made on."""

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
    try:
        path.write_text(json.dumps({"machine": machine(), **content}, indent=2) + "\n")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be written: {error.strerror}; name a file in a directory that exists") from error
