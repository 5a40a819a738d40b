"""Graph files: the bytes of a graph, then the arrays of its constants (docs/graph_format.md, "Files")."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aspen_jax.errors import GraphFormatError, InputError
from aspen_jax.files import read_file
from aspen_jax.graph.graph_format import graph_size

_MAGIC = b"ASPENTC\0"
_HEADER = struct.Struct("<8sIIQ")
_ALIGNMENT = 64
_REMEDY = "save the graph again with this version of aspen_jax"


class GraphFile(NamedTuple):
    """The bytes of a graph file, in parts.

    Attributes:
        graph: the graph's bytes.
        num_constants: how many of the last operands have an array.
        arrays: the bytes of the arrays.
        offset: where `arrays` begins in the file.
    """

    graph: bytes
    num_constants: int
    arrays: memoryview
    offset: int

    def constants(self, kinds: Sequence[tuple[tuple[int, ...], np.dtype]]) -> tuple[np.ndarray, ...]:
        """The arrays of these shapes and dtypes, read-only.

        Raises:
            GraphFormatError: the file does not hold exactly these.
        """
        result: list[np.ndarray] = []
        position = self.offset
        for shape, dtype in kinds:
            start = _aligned(position) - self.offset
            size = int(np.prod(shape, dtype=object)) * dtype.itemsize
            if start + size > len(self.arrays):
                raise GraphFormatError(f"constant {len(result)} of the graph file is cut short; {_REMEDY}")
            data = self.arrays[start : start + size]
            if dtype == np.bool_ and (np.frombuffer(data, np.uint8) > 1).any():
                raise GraphFormatError(f"constant {len(result)} of the graph file holds bools that are not 0 or 1; {_REMEDY}")
            result.append(np.frombuffer(data, dtype).reshape(shape))
            position = self.offset + start + size
        if position - self.offset != len(self.arrays):
            raise GraphFormatError(f"{self.offset + len(self.arrays) - position} bytes follow the graph file's end; {_REMEDY}")
        return tuple(result)


def write(path: str | os.PathLike[str], graph: bytes, constants: Sequence[np.ndarray]) -> None:
    """Write a graph file, which appears whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    offset = position = len(graph) + _HEADER.size
    chunks: list[bytes | memoryview] = []
    for array in constants:
        chunks += [bytes(_aligned(position) - position), np.ascontiguousarray(array).reshape(-1).view(np.uint8).data]
        position = _aligned(position) + array.nbytes
    checksum = 0
    for chunk in chunks:
        checksum = zlib.crc32(chunk, checksum)
    header = _HEADER.pack(_MAGIC, len(constants), checksum, position - offset)

    with _appearing(path) as temporary, open(temporary, "wb") as file:
        file.writelines([graph, header, *chunks])


def write_weights(path: str | os.PathLike[str], weights: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file, which appears whole or not at all.

    Raises:
        InputError: safetensors is not installed.
        OSError: it cannot be written.
    """
    try:
        from safetensors.numpy import save_file
    except ModuleNotFoundError:
        raise InputError("weights are written by the package safetensors, which is missing; pip install safetensors") from None
    with _appearing(Path(path)) as temporary:
        save_file(dict(weights), temporary)


@contextlib.contextmanager
def _appearing(path: Path) -> Iterator[str]:
    """A file beside `path` that takes its place, with the permissions of a new file, unless something is raised."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    os.close(descriptor)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: str | os.PathLike[str]) -> GraphFile:
    """Read what `write` wrote; the graph's own bytes are not looked into.

    Raises:
        GraphFormatError: the file is truncated, damaged, or no graph file of this version.
        OSError: the file cannot be read.
    """
    data = read_file(path)
    size = graph_size(data)
    offset = size + _HEADER.size
    if len(data) < offset or not data.startswith(_MAGIC, size):
        raise GraphFormatError(f"the graph file is truncated behind its graph; {_REMEDY}")
    _, count, checksum, length = _HEADER.unpack_from(data, size)
    arrays = memoryview(data)[offset:]
    if length != len(arrays):
        raise GraphFormatError(f"the graph file holds {len(arrays)} of {length} bytes of constants; {_REMEDY}")
    if zlib.crc32(arrays) != checksum:
        raise GraphFormatError(f"the graph file's constants are damaged: their checksum does not match; {_REMEDY}")
    return GraphFile(data[:size], count, arrays, offset)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT
