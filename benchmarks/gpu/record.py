"""What a run has found: a file of all figures (gpu.json) and a page of tables (gpu.md), written again after each step."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aspen_jax.errors import InputError
from aspen_jax.report.machine import machine
from aspen_jax.report.record import write_record
from benchmarks.gpu.row import Row
from benchmarks.gpu.tables import tables
from benchmarks.page import lines

_ROOT = Path(__file__).resolve().parents[2]


class Record:
    """Figures by row, and those of programs.

    Attributes:
        machine: where, by which device and versions.
        programs: what each program said.
        remarks: what is absent, and what failed.
    """

    def __init__(self, folder: Path, rows: Sequence[Row], device: Mapping[str, Any], settings: Mapping[str, Any]):
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
        self.machine: dict[str, Any] = {
            **machine(),
            "gpu": device["name"],
            "device": device,
            "commit": _said_by("git", "-C", str(_ROOT), "rev-parse", "--short", "HEAD"),
            "driver": _said_by("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
        self.programs: dict[str, Any] = {}
        self.remarks: list[str] = []
        self._content = {"benchmark": "gpu", "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "settings": settings}

    def __getitem__(self, row: Row) -> dict[str, Any]:
        """The figures of a row, to be added to."""
        return self._rows[row]

    def remark(self, text: str) -> None:
        """Say something once: what is absent, and what failed."""
        if text not in self.remarks:
            self.remarks.append(text)
            print(text, flush=True)

    def write(self) -> None:
        """Bring both files up to date.

        Raises:
            InputError: they cannot be written.
        """
        write_record(self._figures, self._record)
        self._page.write_text(self.page)

    @property
    def page(self) -> str:
        """The tables as Markdown."""
        return "\n".join(lines(self._record)).rstrip() + "\n"

    @property
    def _record(self) -> dict[str, Any]:
        found = tables(list(self._rows.values()), self.programs, self.remarks)
        return {**self._content, "machine": self.machine, "results": [table.to_json() for table in found]}


def _entry(row: Row) -> dict[str, Any]:
    return {**row.to_json(), "times": {}, "errors": {}, "kernels": []}


def _said_by(*command: str) -> str | None:
    """The first line of a program's output; None where it is absent or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if not done.returncode and done.stdout.strip() else None
