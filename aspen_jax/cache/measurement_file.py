"""What was measured on a machine, on disk: entries by name, in a file for each identity of what they were measured with.

The identity is in the file's name, and inside it once more, so that a file that was copied from elsewhere is not believed.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from aspen_jax.cache.disk_cache import CACHE_VARIABLE, cache_folder, locked, read, write

_LARGEST_FILE = 64 << 20

T = TypeVar("T")


class MeasurementFile:
    """Entries measured with the same machine and software; nothing is ever raised for a file, of which warnings tell instead."""

    def __init__(self, kind: str, machine: Mapping[str, Any]):
        """Names the file; it need not exist.

        Args:
            kind: what the file's name begins with.
            machine: whatever the entries depend on, for JSON.
        """
        name = hashlib.sha256(json.dumps(machine).encode()).hexdigest()[:16]
        self._path = cache_folder() / f"{kind}-{name}.json"
        self._machine = machine

    def read(self, parse: Callable[[Any], T]) -> dict[str, T]:
        """All entries, or none where the file is damaged or was measured elsewhere.

        Args:
            parse: makes an entry of what JSON holds, or raises ValueError, TypeError, KeyError, AttributeError or OverflowError.
        """
        try:
            content = json.loads(read(self._path, _LARGEST_FILE))
            if content["machine"] != self._machine:
                raise ValueError("it was measured elsewhere")
            return {name: parse(entry) for name, entry in content["measured"].items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            _warn(f"{str(self._path)!r} is ignored, as if nothing had been measured: {error}; delete it, or tune again")
            return {}

    def update(
        self,
        entries: Mapping[str, T],
        parse: Callable[[Any], T],
        to_json: Callable[[T], Any],
        known: Mapping[str, T] = MappingProxyType({}),
    ) -> tuple[dict[str, T], Path | None]:
        """Puts entries among those of the file, of which none is lost that another thread or process puts there meanwhile.

        Args:
            entries: they count where the file has the same.
            parse: as `read` takes it.
            to_json: makes of an entry what `parse` takes.
            known: more entries, which count where the file has none of the name.

        Returns:
            all entries, and the file, or None where it cannot be written.
        """
        merged = {**known, **entries}
        try:
            with locked(self._path.parent):
                merged = {**known, **self.read(parse), **entries}
                content = {"machine": self._machine, "measured": {name: to_json(entry) for name, entry in sorted(merged.items())}}
                write(self._path, json.dumps(content).encode())
        except OSError as error:
            _warn(f"{str(self._path)!r} cannot be written, so later processes must tune again: {error}; set {CACHE_VARIABLE}")
            return merged, None
        return merged, self._path


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
