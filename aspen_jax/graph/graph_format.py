"""The bytes of a graph: a checked header and integer arrays, delta coded in varints (docs/graph_format.md, "Bytes").

Version 1 holds the arrays alone. Version 2 adds named fields; a graph without any is written as version 1.
"""

from __future__ import annotations

import struct
import types
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from aspen_jax.errors import GraphFormatError, InputError

VERSIONS = (1, 2)

# A reader that does not know such a field must refuse the graph; it may leave out any other.
REQUIRED = "!"

# The fields of that kind that this build knows: outputs of ops beside their first.
OUTPUTS = "!outputs"

NO_FIELDS: Mapping[str, np.ndarray] = types.MappingProxyType({})

_MAGIC = b"ASPENTG\0"
_HEADER = struct.Struct("<8sIIQ")
_LONGEST_VARINT = 10
_REMEDY = "save the graph again with this version of aspen_jax"


def encode(arrays: Sequence[tuple[np.ndarray, Sequence[int]]], fields: Mapping[str, np.ndarray] = NO_FIELDS) -> bytes:
    """Header and payload.

    Args:
        arrays: each with the lags to try, of which the one that takes the fewest bytes is written.
        fields: integer arrays by name.

    Raises:
        InputError: a field's name is empty, or no text without zero bytes, or its array does not hold integers of 64 bits.
    """
    parts: list[bytes] = []
    named = [(_checked_field(name, fields[name]), (0, 1)) for name in sorted(fields)]
    names = "".join(f"{name}\0" for name in sorted(fields)).encode()
    for array, lags in (*arrays, *([(np.frombuffer(names, np.uint8), (0,)), *named] if fields else ())):
        array = np.asarray(array, np.int64).reshape(-1)
        coded = [(lag, _zigzag(array, lag)) for lag in lags]
        lag, words = min(coded, key=lambda item: int(_lengths(item[1]).sum()))
        parts.append(_varints(np.concatenate([np.array([array.size, lag], np.uint64), words])))
    payload = b"".join(parts)
    return _HEADER.pack(_MAGIC, 2 if fields else 1, zlib.crc32(payload), len(payload)) + payload


def graph_size(data: bytes) -> int:
    """Size in bytes of header and payload, from the header.

    Raises:
        GraphFormatError: these are not the first bytes of a graph of this version, or some are missing.
    """
    if len(data) < _HEADER.size or data[: len(_MAGIC)] != _MAGIC:
        raise GraphFormatError(f"this is no graph: it does not begin with {_MAGIC!r} and a header; {_REMEDY}")
    _, version, _, size = _HEADER.unpack_from(data)
    if version not in VERSIONS:
        raise GraphFormatError(
            f"the graph has format version {version} and this aspen_jax reads versions {VERSIONS[0]} to {VERSIONS[-1]}; {_REMEDY}"
        )
    if size > len(data) - _HEADER.size:
        held = len(data) - _HEADER.size
        raise GraphFormatError(f"the graph is truncated: {held} of {size} payload bytes are there; {_REMEDY}")
    return _HEADER.size + size


def decode(data: bytes, num_arrays: int) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The arrays and the fields that `encode` wrote, as int64.

    Raises:
        GraphFormatError: the bytes are not those of a graph of a known version, damaged, or not `num_arrays` arrays and fields;
            or a field must be known and is not.
    """
    size = graph_size(data)
    if size != len(data):
        raise GraphFormatError(f"{len(data) - size} bytes follow the graph's payload; {_REMEDY}")
    payload = memoryview(data)[_HEADER.size :]
    if zlib.crc32(payload) != _HEADER.unpack_from(data)[2]:
        raise GraphFormatError(f"the graph is damaged: its checksum does not match; {_REMEDY}")
    words = _read_varints(np.frombuffer(payload, np.uint8))
    position = 0

    def next_array(what: str) -> np.ndarray:
        nonlocal position
        if position + 2 > words.size or int(words[position]) > words.size - position - 2:
            raise GraphFormatError(f"{what} of the graph ends early; {_REMEDY}")
        count, lag = int(words[position]), int(words[position + 1])
        position += 2 + count
        return _unzigzag(words[position - count : position], lag)

    arrays = [next_array(f"array {index}") for index in range(num_arrays)]
    fields: dict[str, np.ndarray] = {}
    if _HEADER.unpack_from(data)[1] > 1:
        for name in strings(next_array("the list of fields"), "the graph's fields"):
            if not name or name in fields:
                raise GraphFormatError(f"the graph has a field without a name, or two called {name!r}; {_REMEDY}")
            if name.startswith(REQUIRED) and name != OUTPUTS:
                raise GraphFormatError(f"the graph needs its field {name!r}, which this aspen_jax does not know; use a newer one")
            fields[name] = next_array(f"field {name!r}")
    if position != words.size:
        raise GraphFormatError(f"{words.size - position} numbers follow the graph's last array; {_REMEDY}")
    return arrays, fields


def strings(data: np.ndarray, what: str) -> list[str]:
    """Texts, each ended by a zero byte.

    Raises:
        GraphFormatError: the numbers are no such bytes.
    """
    try:
        if not ((data >= 0) & (data < 256)).all() or (data.size and data[-1] != 0):
            raise ValueError
        return data.astype(np.uint8).tobytes().decode().split("\0")[:-1]
    except ValueError:
        raise GraphFormatError(f"the names of {what} are no UTF-8 text ended by a zero byte; {_REMEDY}") from None


def _checked_field(name: str, given: np.ndarray) -> np.ndarray:
    array = np.asarray(given)
    if not name or "\0" in name:
        raise InputError(f"a field of a graph is called {name!r}; give it a name without zero bytes")
    if name.startswith(REQUIRED) and name != OUTPUTS:
        raise InputError(f"field {name!r} begins with {REQUIRED!r}, as only fields that readers must know do; rename it")
    if array.ndim != 1 or array.dtype.kind not in "iub" or array.dtype == np.uint64:
        raise InputError(f"field {name!r} is {array.dtype}{list(array.shape)}; a field is a vector of integers of up to 64 bits")
    return array


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
