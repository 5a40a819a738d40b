"""Tensors as the bytes of one message, and back without believing the message. docs/reference/split.md has the format."""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from aspen_jax import forks
from aspen_jax.errors import AspenError, InputError
from aspen_jax.ir.dtypes import DTYPES
from aspen_jax.split.quantise import MAX_BITS, RAW, Quantised, checked_bits, code_dtype, computed_in, dequantise, quantise

MAGIC = b"ASPT"
VERSION = 1

CodecName = Literal["none", "lz4", "shuffle-lz4", "zstd", "shuffle-zstd"]
Auto = Literal["auto"]

_MESSAGE = struct.Struct("<4sHH")  # magic, version, number of tensors
_TENSOR = struct.Struct("<BBBBddI")  # dtype, rank, bits, codec, scale, minimum, bytes of the payload; then the dimensions
_DIMENSION = struct.Struct("<I")
_DTYPES = (*DTYPES, np.dtype(np.complex64), np.dtype(np.complex128))
_DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(_DTYPES)}
_ONE_THREAD: Any = {"nthreads": 1}
_MAX_PAYLOAD = 2**31 - 1 - 32  # C-Blosc2's

# Number in messages, whether bits are shuffled, C-Blosc2's number of the compressor, its bits in a chunk's flags, the level.
# Higher levels of zstd take ten times the time for a few percent.
_CODECS: dict[CodecName, tuple[int, bool, int, int, int]] = {
    "none": (0, False, 0, 0, 0),
    "lz4": (1, False, 1, 0x20, 5),
    "shuffle-lz4": (2, True, 1, 0x20, 5),
    "zstd": (3, False, 5, 0x80, 1),
    "shuffle-zstd": (4, True, 5, 0x80, 1),
}
CODECS: tuple[CodecName, ...] = tuple(_CODECS)


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


# --- Bytes of one tensor ---


def field_width(bits: int) -> int:
    """Bits that a code takes in a payload: 1, 2, 4, 8 or 16."""
    return 1 << (bits - 1).bit_length()


def packed_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes side by side, the first in the lowest bits of a byte. Up to 4 bits, several share a byte, padded with zeros."""
    codes, width = np.ascontiguousarray(codes).reshape(-1), field_width(bits)
    if width >= 8:
        return codes
    each = 8 // width
    if codes.size % each:
        codes = np.concatenate([codes, np.zeros(-codes.size % each, codes.dtype)])
    words = codes.view(f"<u{each}")  # all codes of a byte in one word: pairs move together, then pairs of pairs
    for shift in _shifts(width):
        moved = words >> shift
        moved |= words
        words = moved
    return words.astype(np.uint8)


def unpacked_codes(packed: np.ndarray, bits: int, size: int) -> np.ndarray:
    """The first `size` codes of what `packed_codes` gave."""
    width = field_width(bits)
    if width >= 8:
        return packed
    words = packed.astype(f"<u{8 // width}")
    for shift in reversed(_shifts(width)):
        words |= words << shift
    codes = words.view(np.uint8)
    codes &= 2**width - 1
    return codes[:size]


def _shifts(width: int) -> list[int]:
    return [(8 - width) << step for step in range((8 // width).bit_length() - 1)]


def compress(payload: np.ndarray, codec: CodecName) -> bytes:
    """One C-Blosc2 chunk of a contiguous array. Its bytes as they are for "none"."""
    if codec == "none":
        return payload.tobytes()
    import blosc2

    data = blosc2.compress2(payload, **_options(codec, payload.itemsize))
    assert isinstance(data, bytes)
    return data


@functools.cache
def _options(codec: CodecName, itemsize: int) -> Any:
    """C-Blosc2's, which take a while to make."""
    import blosc2

    _, shuffled, compressor, _, level = _CODECS[codec]
    return {
        "codec": blosc2.Codec(compressor),
        "clevel": level,
        "typesize": itemsize,
        "filters": [blosc2.Filter.BITSHUFFLE if shuffled else blosc2.Filter.NOFILTER],
        "filters_meta": [0],
        "nthreads": 1,  # a message is small, and the other cores compute
    }


def decompress(data: memoryview, codec: CodecName, out: np.ndarray) -> None:
    """Fills `out` from what `compress` gave.

    Raises:
        InputError: The bytes are not such a chunk of exactly `out.nbytes` bytes.
    """
    if codec == "none":
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
        return
    import blosc2

    _check_chunk(data, codec, out)
    try:
        blosc2.decompress2(data, dst=out, **_ONE_THREAD)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"a compressed tensor is corrupt: {error}. Ask the peer to send the message again") from None


def _check_chunk(data: memoryview, codec: CodecName, out: np.ndarray) -> None:
    """C-Blosc2's header, which could ask for dictionaries, other filters or other sizes, is the one that `compress` writes."""
    _, shuffled, compressor, flags, _ = _CODECS[codec]
    if len(data) < 32:
        raise InputError("a compressed tensor ends within its header. Ask the peer to send the message again")
    block, size = struct.unpack_from("<ii", data, 8)
    expected = bytearray(data[:32])
    # Flags: 0x15 is written always, with the compressor's own bits. 2 would mean a chunk that is not compressed.
    struct.pack_into("<BBBBiii", expected, 0, 5, 1, flags | 0x15, out.itemsize, out.nbytes, block, len(data))
    expected[16:31] = bytes([2 if shuffled else 0, 0, 0, 0, 0, 0, compressor, 0, 0, 0, 0, 0, 0, 0, 0])
    # The last byte is 0x10 for zeros alone, which need no blocks.
    if bytes(data[:32]) != expected or expected[31] not in (0, 0x10) or not min(out.nbytes, 256) <= block <= out.nbytes:
        raise InputError(
            f"a tensor of {out.nbytes} bytes comes with a chunk of C-Blosc2 for {size} bytes in blocks of {block}, or of another "
            f"kind. Use the same versions of aspen_jax and blosc2 on both sides"
        )


# --- Which codec ---


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a codec takes for one payload: seconds to compress and decompress it, bytes on the link."""

    seconds: float
    bytes: int


def measured_costs(payload: np.ndarray) -> dict[CodecName, Cost]:
    """Every codec on one payload, run twice, since the first call is slower. One that makes it no shorter is left out."""
    costs: dict[CodecName, Cost] = {}
    for codec in CODECS * 2:
        start = time.perf_counter()
        data = compress(payload, codec)
        if codec == "none" or len(data) < payload.nbytes:
            decompress(memoryview(data), codec, np.empty_like(payload))
            costs[codec] = Cost(time.perf_counter() - start, len(data))
    return costs


def quickest(costs: dict[CodecName, Cost], bandwidth: float) -> CodecName:
    """The codec with the least time: its own, and its bytes' at `bandwidth` bytes a second."""
    return min(costs, key=lambda codec: costs[codec].seconds + costs[codec].bytes / bandwidth)


class _Measured:
    """What `measured_costs` gave last for tensors of about one size and of one kind. It is measured again now and then."""

    AGAIN_AFTER = 256

    def __init__(self) -> None:
        self._lock = forks.Lock()
        self._costs: dict[tuple[int, int, int], tuple[int, dict[CodecName, Cost]]] = {}

    def choose(self, payload: np.ndarray, bits: int, bandwidth: float) -> CodecName:
        key = (payload.nbytes.bit_length(), payload.itemsize, bits)
        with self._lock:
            uses, costs = self._costs.get(key, (self.AGAIN_AFTER, {}))
        if uses >= self.AGAIN_AFTER:
            uses, costs = 0, measured_costs(payload)
        with self._lock:
            self._costs[key] = (uses + 1, costs)
        return quickest(costs, bandwidth)


_measured = _Measured()


# --- Messages ---


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
    if codec != "auto" and codec not in _CODECS:
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
        used = _measured.choose(payload, q.bits, bandwidth) if codec == "auto" else codec
        data = compress(payload, used)
        if used != "none" and len(data) >= payload.nbytes:
            data, used = payload.tobytes(), "none"
    head = _TENSOR.pack(number, len(shape), q.bits, _CODECS[used][0], q.scale, q.minimum, len(data))
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


def require_blosc2() -> None:
    """Raises AspenError where the extra that brings C-Blosc2 is not installed."""
    try:
        import blosc2  # noqa: F401
    except ImportError:
        raise AspenError("compressed tensors need the package blosc2. Install aspen_jax[split], or use codec='none'") from None
