"""What was measured on this machine: for an op, the tiles that were fastest. It is kept on disk (Bolt, section 3.2.2).

The file belongs to one processor, one build of the kernels and one number of workers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aspen_jax
from aspen_jax import forks
from aspen_jax.cache.measurement_file import MeasurementFile
from aspen_jax.ir.program import Op
from aspen_jax.ops.family import version_of

_VERSION = 1
_MOST_PARTS = 2**31 - 1  # as many as the engine can count


@dataclasses.dataclass(frozen=True)
class Measured:
    """What is known of an op.

    Attributes:
        parts: into how many parts each dimension of its output is cut.
        nanoseconds: of the op alone, so cut, from its first tile to its last.
    """

    parts: tuple[int, ...]
    nanoseconds: float


class Measurements:
    """Measured ops, for one number of workers; immutable. An op counts as another one if its kernel could tell the difference."""

    def __init__(self, entries: Mapping[str, Measured] = MappingProxyType({})):
        self.entries = MappingProxyType(dict(entries))

    def of(self, op: Op) -> Measured | None:
        """What is known of the op; nothing where it keeps a part of an operand, for alone it would have to copy."""
        return self.entries.get(key(op)) if self.entries and not op.family.keeps_rest(op) else None

    def updated(self, entries: Mapping[str, Measured]) -> Measurements:
        """Add entries to these; where an op is in both, the added entry counts."""
        return Measurements({**self.entries, **entries})


def key(op: Op) -> str:
    """A key that is equal for ops that are the same work for a kernel."""
    inputs = [(str(item.dtype), item.shape, item.view.strides(), item.view.offset()) for item in op.inputs]
    dtypes = " ".join(str(value.dtype) for value in op.outputs)
    kernel = op.family.kernel + version_of(op.family)
    text = repr((kernel, op.family.params(op), inputs, op.output.shape, dtypes, op.exact))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


_known: dict[int, Measurements] = {}
_lock = forks.Lock()


def measurements(num_workers: int) -> Measurements:
    """What is known for this number of workers; read from disk once."""
    with _lock:
        if num_workers not in _known:
            _known[num_workers] = _read(num_workers)
        return _known[num_workers]


def remember(num_workers: int, entries: Mapping[str, Measured]) -> Path | None:
    """Use the entries from now on, in this process and in later ones.

    Returns:
        the file, or None where it could not be written, of which a warning tells.
    """
    with _lock:
        known = _known.get(num_workers, Measurements())
    kept, path = _file(num_workers).update(entries, _measured, _to_json, known.entries)
    with _lock:
        _known[num_workers] = _known.get(num_workers, known).updated(kept)
    return path


def forget() -> None:
    """Read from disk again when asked next."""
    with _lock:
        _known.clear()


def _file(num_workers: int) -> MeasurementFile:
    return MeasurementFile("measured", identity(num_workers))


def identity(num_workers: int) -> dict[str, Any]:
    """What a measurement depends on: the processor, the build of the kernels, the number of workers."""
    from aspen_jax import _engine

    return {"version": _VERSION, "workers": num_workers, "target": _engine.cpu_target(), **_build_and_processor()}


@functools.cache
def _build_and_processor() -> dict[str, str]:
    from aspen_jax import _engine

    fields = processor()
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "cache size", "flags")
    kernels = hashlib.sha256(Path(_engine.__file__).read_bytes()).hexdigest()
    return {
        "aspen_jax": aspen_jax.__version__,
        "kernels": kernels,
        "processor": "/".join(fields.get(name, "") for name in wanted),
    }


def processor() -> dict[str, str]:
    """What the system tells about its last core, by name, such as "model name"."""
    with open("/proc/cpuinfo") as file:
        lines = (line.partition(":") for line in file)
        return {name.strip(): text.strip() for name, _, text in lines}


def _read(num_workers: int) -> Measurements:
    return Measurements(_file(num_workers).read(_measured))


def _measured(entry: Any) -> Measured:
    parts, nanoseconds = entry
    if not all(type(count) is int and 1 <= count <= _MOST_PARTS for count in parts) or not 0 < float(nanoseconds) < float("inf"):
        raise ValueError(f"an entry is {entry!r}")
    return Measured(tuple(parts), float(nanoseconds))


def _to_json(entry: Measured) -> Any:
    return [entry.parts, max(round(entry.nanoseconds), 1)]
