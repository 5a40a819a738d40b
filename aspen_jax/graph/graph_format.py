"""The bytes of a graph: a checked header and integer arrays, delta coded in varints (docs/graph_format.md, "Bytes")."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from aspen_jax.errors import GraphFormatError

VERSION = 1

_MAGIC = b"ASPENTG\0"
_HEADER = struct.Struct("<8sIIQ")
_LONGEST_VARINT = 10
_REMEDY = "save the graph again with this version of aspen_jax"


def encode(arrays: Sequence[tuple[np.ndarray, Sequence[int]]]) -> bytes:
    """Header and payload; each array comes with the lags to try, of which the one that takes the fewest bytes is written."""
    parts: list[bytes] = []
    for array, lags in arrays:
        array = np.asarray(array, np.int64).reshape(-1)
        coded = [(lag, _zigzag(array, lag)) for lag in lags]
        lag, words = min(coded, key=lambda item: int(_lengths(item[1]).sum()))
        parts.append(_varints(np.concatenate([np.array([array.size, lag], np.uint64), words])))
    payload = b"".join(parts)
    return _HEADER.pack(_MAGIC, VERSION, zlib.crc32(payload), len(payload)) + payload


def graph_size(data: bytes) -> int:
    """Size in bytes of header and payload, from the header.

    Raises:
        GraphFormatError: these are not the first bytes of a graph of this version, or some are missing.
    """
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        raise GraphFormatError(f"this is no graph: it does not begin with {_MAGIC!r} and a header; {_REMEDY}")
    _, version, _, size = _HEADER.unpack_from(data)
    if version != VERSION:
        raise GraphFormatError(f"the graph has format version {version} and this aspen_jax reads version {VERSION}; {_REMEDY}")
    if size > len(data) - _HEADER.size:
        held = len(data) - _HEADER.size
        raise GraphFormatError(f"the graph is truncated: {held} of {size} payload bytes are there; {_REMEDY}")
    return _HEADER.size + size


def decode(data: bytes, num_arrays: int) -> list[np.ndarray]:
    """The arrays that `encode` wrote, as int64.

    Raises:
        GraphFormatError: the bytes are not those of a graph of this version, damaged, or not `num_arrays` arrays.
    """
    size = graph_size(data)
    if size != len(data):
        raise GraphFormatError(f"{len(data) - size} bytes follow the graph's payload; {_REMEDY}")
    payload = memoryview(data)[_HEADER.size :]
    if zlib.crc32(payload) != _HEADER.unpack_from(data)[2]:
        raise GraphFormatError(f"the graph is damaged: its checksum does not match; {_REMEDY}")
    words = _read_varints(np.frombuffer(payload, np.uint8))
    arrays: list[np.ndarray] = []
    position = 0
    for index in range(num_arrays):
        if position + 2 > words.size or int(words[position]) > words.size - position - 2:
            raise GraphFormatError(f"array {index} of the graph ends early; {_REMEDY}")
        count, lag = int(words[position]), int(words[position + 1])
        arrays.append(_unzigzag(words[position + 2 : position + 2 + count], lag))
        position += 2 + count
    if position != words.size:
        raise GraphFormatError(f"{words.size - position} numbers follow the graph's last array; {_REMEDY}")
    return arrays


def _zigzag(array: np.ndarray, lag: int) -> np.ndarray:
    difference = array.copy()
    if lag:
        difference[lag:] -= array[:-lag]
    return ((difference << 1) ^ (difference >> 63)).view(np.uint64)


def _unzigzag(words: np.ndarray, lag: int) -> np.ndarray:
    difference = (words >> np.uint64(1)).view(np.int64) ^ -(words & np.uint64(1)).view(np.int64)
    if not 0 < lag < difference.size:
        return difference
    padded = np.zeros(-(-difference.size // lag) * lag, np.int64)
    padded[: difference.size] = difference
    return padded.reshape(-1, lag).cumsum(axis=0).reshape(-1)[: difference.size]


def _lengths(words: np.ndarray) -> np.ndarray:
    """Bytes of each varint."""
    lengths = np.ones(words.size, np.int64)
    for k in range(1, _LONGEST_VARINT):
        longer = words >= np.uint64(1 << 7 * k)
        if not longer.any():
            break
        lengths += longer
    return lengths


def _varints(words: np.ndarray) -> bytes:
    lengths = _lengths(words)
    starts = lengths.cumsum() - lengths
    result = np.empty(int(lengths.sum()), np.uint8)
    for k in range(int(lengths.max(initial=0))):
        present = lengths > k
        septet = (words[present] >> np.uint64(7 * k)).astype(np.uint8) & 0x7F
        result[starts[present] + k] = septet | (lengths[present] > k + 1).astype(np.uint8) << 7
    return result.tobytes()


def _read_varints(data: np.ndarray) -> np.ndarray:
    ends = np.flatnonzero(data < 0x80)
    starts = np.concatenate([[0], ends[:-1] + 1])[: ends.size]
    lengths = ends - starts + 1
    longest = int(lengths.max(initial=0))
    if data.size and (not ends.size or ends[-1] != data.size - 1 or longest > _LONGEST_VARINT):
        raise GraphFormatError(f"the graph holds a number that does not end; {_REMEDY}")
    words = np.zeros(ends.size, np.uint64)
    for k in range(longest):
        present = lengths > k
        septet = (data[starts[present] + k] & 0x7F).astype(np.uint64)
        if k == _LONGEST_VARINT - 1 and (septet > 1).any():
            raise GraphFormatError(f"the graph holds a number of more than 64 bits; {_REMEDY}")
        words[present] |= septet << np.uint64(7 * k)
    return words
