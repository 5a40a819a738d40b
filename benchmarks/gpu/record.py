"""What a run has found: a file of all figures (gpu.json) and a page of tables (gpu.md), written again after each step."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jaxlib

import aspen_jax
from aspen_jax.errors import InputError
from aspen_jax.report.record import write_record
from benchmarks.gpu.page import page
from benchmarks.gpu.row import Row

_ROOT = Path(__file__).resolve().parents[2]


class Record:
    """Figures by row, and those of programs.

    Attributes:
        content: plain data, as it is written.
    """

    def __init__(self, folder: Path, rows: Sequence[Row], device: dict[str, Any], call: str):
        """Makes the folder.

        Raises:
            InputError: it cannot be made, or holds figures already.
        """
        self._figures, self._page = folder / "gpu.json", folder / "gpu.md"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"the folder {str(folder)!r} cannot be made: {error.strerror}; name another one") from error
        if self._figures.exists():
            raise InputError(f"{str(self._figures)!r} holds the figures of another run; name another folder")
        self._rows = {row: _entry(row) for row in rows}
        versions = {
            "aspen_jax": aspen_jax.__version__,
            "commit": _said_by("git", "-C", str(_ROOT), "rev-parse", "--short", "HEAD"),
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "driver": _said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
        self.content: dict[str, Any] = {
            "benchmark": "gpu",
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "call": call,
            "device": device,
            "versions": versions,
            "rows": list(self._rows.values()),
            "programs": {},
            "remarks": [],
        }

    def __getitem__(self, row: Row) -> dict[str, Any]:
        """The figures of a row, to be added to."""
        return self._rows[row]

    def remark(self, text: str) -> None:
        """Say something once: what is absent, and what failed."""
        if text not in self.content["remarks"]:
            self.content["remarks"].append(text)
            print(text, flush=True)

    def write(self) -> None:
        """Bring both files up to date.

        Raises:
            InputError: they cannot be written.
        """
        write_record(self._figures, self.content)
        self._page.write_text(self.page)

    @property
    def page(self) -> str:
        """The tables as Markdown."""
        return page(self.content)


def _entry(row: Row) -> dict[str, Any]:
    return {**row.to_json(), "times": {}, "errors": {}, "kernels": []}


def _said_by(*command: str) -> str | None:
    """The first line of a program's output; None where it is absent or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if not done.returncode and done.stdout.strip() else None
