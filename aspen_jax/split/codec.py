"""Tensors as the bytes of one message, and back without believing the message. docs/reference/split.md has the format."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from aspen_jax.errors import InputError
from aspen_jax.ir.dtypes import DTYPES
from aspen_jax.split import codec_choice
from aspen_jax.split.payload import (
    CODECS,
    CodecName,
    compress,
    decompress,
    field_width,
    packed_codes,
    require_blosc2,
    unpacked_codes,
)
from aspen_jax.split.quantise import MAX_BITS, RAW, Quantised, checked_bits, code_dtype, computed_in, dequantise, quantise

MAGIC = b"ASPT"
VERSION = 1

Auto = Literal["auto"]

_MESSAGE = struct.Struct("<4sHH")  # magic, version, number of tensors
_TENSOR = struct.Struct("<BBBBddI")  # dtype, rank, bits, codec, scale, minimum, bytes of the payload; then the dimensions
_DIMENSION = struct.Struct("<I")
_DTYPES = (*DTYPES, np.dtype(np.complex64), np.dtype(np.complex128))
_DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}
_MAX_PAYLOAD = 2**31 - 1 - 32  # C-Blosc2's


class Aval(Protocol):
    """What a receiver knows of a tensor: `jax.ShapeDtypeStruct`, and every array."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...


@dataclasses.dataclass(frozen=True)
class Limits:
    """What `unpack` accepts at most.

    Attributes:
        message_bytes: Length of a message.
        tensor_bytes: Bytes of all tensors of a message together, unpacked.
        tensors: Number of tensors.
    """

    message_bytes: int = 2**28
    tensor_bytes: int = 2**28
    tensors: int = 1024


def pack(
    arrays: Iterable[ArrayLike],
    bits: int | None = None,
    codec: CodecName | Literal["auto"] = "auto",
    *,
    bandwidth: float = 12.5e6,
) -> bytes:
    """Arrays as one message that says what it holds. docs/reference/split.md has the format.

    Args:
        arrays: Up to 65535 arrays of any shape, below 2 GiB each. Their dtypes: bool, integers of 8 to 64 bits, float16,
            bfloat16, float32, float64, complex64, complex128.
        bits: Bits of a float on the link, 1 to 16, as in `quantise`. `RAW` or None: exact.
        codec: How payloads are compressed. "auto" takes the one whose time and bytes over `bandwidth` are least, as measured on
            an earlier tensor of about that size. So the bytes may differ from call to call. What they unpack to does not.
        bandwidth: Of the link, in bytes a second. Only "auto" looks at it.

    Raises:
        InputError: A dtype, rank, size or option is none of these.
        AspenError: blosc2 is missing.
    """
    bits = checked_bits(bits)
    if codec != "auto" and codec not in CODECS:
        raise InputError(f"codec = {codec!r} is unknown. Use one of {', '.join(CODECS)}, auto")
    if not 0 < bandwidth < math.inf:
        raise InputError(f"bandwidth = {bandwidth!r} is not a positive number of bytes a second")
    if codec != "none":
        require_blosc2()
    parts = [_packed_tensor(quantise(array, bits), codec, bandwidth) for array in arrays]
    if len(parts) > 0xFFFF:
        raise InputError(f"{len(parts)} arrays are more than a message holds. Send at most 65535")
    return b"".join([_MESSAGE.pack(MAGIC, VERSION, len(parts)), *(piece for part in parts for piece in part)])


def _packed_tensor(q: Quantised, codec: CodecName | Auto, bandwidth: float) -> tuple[bytes, bytes]:
    number = _DTYPE_NUMBERS.get(q.dtype)
    if number is None:
        raise InputError(f"arrays of {q.dtype} cannot be sent. Convert them to one of {', '.join(map(str, _DTYPES))}")
    shape = q.codes.shape
    if any(n > 0xFFFFFFFF for n in shape) or q.codes.nbytes > _MAX_PAYLOAD:
        raise InputError(f"an array of shape {shape} is too large for a message. Send it in pieces below 2 GiB")
    payload = packed_codes(q.codes, q.bits)
    if q.bits != RAW and q.scale == 0:
        payload = payload[:0]  # the minimum says all
    data, used = b"", "none"
    if payload.size:
        used = codec_choice.measured.choose(payload, q.bits, bandwidth) if codec == "auto" else codec
        data = compress(payload, used)
        if used != "none" and len(data) >= payload.nbytes:
            data, used = payload.tobytes(), "none"
    head = _TENSOR.pack(number, len(shape), q.bits, CODECS.index(used), q.scale, q.minimum, len(data))
    return head + b"".join(map(_DIMENSION.pack, shape)), data


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A tensor as a message describes it."""

    dtype: np.dtype
    shape: tuple[int, ...]
    bits: int
    codec: CodecName
    scale: float
    minimum: float
    data: memoryview

    @property
    def payload(self) -> tuple[int, np.dtype]:
        """Number and dtype of the elements that `data` decompresses to."""
        size = math.prod(self.shape)
        if self.bits == RAW:
            return size, self.dtype
        if self.scale == 0:
            return 0, code_dtype(self.bits)
        return -(-size * field_width(self.bits) // 8) if self.bits <= 8 else size, code_dtype(self.bits)


def unpack(data: bytes | bytearray | memoryview, avals: Sequence[Aval], limits: Limits | None = None) -> list[np.ndarray]:
    """The arrays of a message, of which nothing is believed: all sizes are checked before memory is taken for any.

    Args:
        data: What `pack` gave, on this machine or another.
        avals: Shape and dtype of each array that is expected.
        limits: What is accepted at most; `Limits()` where None.

    Raises:
        InputError: The message is truncated, corrupt, too large, of another version, or not what is expected.
        AspenError: blosc2 is missing.
    """
    limits = limits or Limits()
    view = memoryview(data).cast("B")
    if len(view) > limits.message_bytes:
        raise InputError(
            f"a message of {len(view)} bytes is longer than the limit of {limits.message_bytes}. Raise message_bytes"
        )
    expected = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in avals]
    if len(expected) > limits.tensors:
        raise InputError(f"{len(expected)} tensors are more than the limit of {limits.tensors}. Raise the limit named tensors")
    total = sum(math.prod(shape) * dtype.itemsize for shape, dtype in expected)
    if total > limits.tensor_bytes:
        raise InputError(f"the expected tensors have {total} bytes, the limit is {limits.tensor_bytes}. Raise tensor_bytes")
    entries = list(_entries(view, expected))
    if any(entry.codec != "none" for entry in entries):
        require_blosc2()
    return [_unpacked_tensor(entry) for entry in entries]


def _entries(view: memoryview, expected: list[tuple[tuple[int, ...], np.dtype]]) -> Iterator[_Entry]:
    """Reads all headers of a message and compares them with what is expected. Raises InputError."""

    def take(count: int, what: str) -> memoryview:
        nonlocal view
        if count > len(view):
            raise InputError(f"a message ends within {what}: {count} bytes are due, {len(view)} are left. Send it whole")
        taken, view = view[:count], view[count:]
        return taken

    magic, version, count = _MESSAGE.unpack(take(_MESSAGE.size, "its header"))
    if magic != MAGIC:
        raise InputError(f"a message begins with {bytes(magic)!r}, not {MAGIC!r}. Send what aspen_jax.split's pack gives")
    if version != VERSION:
        raise InputError(f"a message has version {version}, not {VERSION}. Use the same version of aspen_jax on both sides")
    if count != len(expected):
        raise InputError(
            f"a message has {count} tensors where {len(expected)} are expected. Cut the same function at the same place"
        )
    for index, (shape, dtype) in enumerate(expected):
        number, rank, bits, codec, scale, minimum, size = _TENSOR.unpack(take(_TENSOR.size, f"the header of tensor {index}"))
        sent = tuple(int(n) for n in np.frombuffer(take(4 * rank, f"the dimensions of tensor {index}"), "<u4"))
        found = _DTYPES[number] if number < len(_DTYPES) else f"of dtype number {number}"
        if found != dtype or sent != shape:
            raise InputError(
                f"tensor {index} is {found}{list(sent)} where {dtype}{list(shape)} is expected. "
                f"Cut the same function in the same place"
            )
        computed = computed_in(dtype)
        if codec >= len(CODECS) or not (bits == RAW or (1 <= bits <= MAX_BITS and computed is not None)):
            raise InputError(f"tensor {index} ({dtype}) comes as {bits} bits by codec {codec}, which is not possible")
        _check_range(index, bits, scale, minimum, computed)
        entry = _Entry(dtype, shape, bits, CODECS[codec], scale, minimum, take(size, f"the payload of tensor {index}"))
        count, element = entry.payload
        if (count == 0 and size) or (entry.codec == "none" and size != count * element.itemsize):
            raise InputError(f"tensor {index} comes with {size} bytes where {count * element.itemsize} are expected")
        yield entry
    if len(view):
        raise InputError(f"{len(view)} bytes follow the last tensor of a message. Send each message by itself")


def _check_range(index: int, bits: int, scale: float, minimum: float, computed: np.dtype | None) -> None:
    """Scale and minimum are such as `quantise` gives: finite, with no code beyond the largest float."""
    if bits == RAW or computed is None:
        is_right = scale == 0 and minimum == 0
    else:
        most = float(np.finfo(computed).max) / 2
        is_right = 0 <= scale <= most and abs(minimum) <= most and scale * (2**bits - 1) <= most * (1 + 1e-6)
    if not is_right:
        raise InputError(f"tensor {index} comes with the scale {scale} and the minimum {minimum}, which no tensor has")


def _unpacked_tensor(entry: _Entry) -> np.ndarray:
    count, element = entry.payload
    if entry.bits != RAW and entry.scale == 0:
        return np.full(entry.shape, entry.minimum, entry.dtype)
    out = np.empty(count, element)
    if count:
        # bool and bfloat16 are bytes to C-Blosc2 and to NumPy's buffers.
        decompress(entry.data, entry.codec, out.view(f"u{element.itemsize}") if element.itemsize <= 8 else out)
    if entry.bits == RAW:
        if element == np.bool_ and out.view(np.uint8).max(initial=0) > 1:
            raise InputError("a tensor of bools holds a byte that is neither 0 nor 1. Send what pack gives")
        return out.reshape(entry.shape)
    codes = unpacked_codes(out, entry.bits, math.prod(entry.shape))
    if entry.bits < field_width(entry.bits) and codes.max(initial=0) >= 2**entry.bits:
        raise InputError(f"a code of {entry.bits} bits is {codes.max()}. Send what pack gives")
    return dequantise(Quantised(codes.reshape(entry.shape), entry.scale, entry.minimum, entry.bits, entry.dtype))
