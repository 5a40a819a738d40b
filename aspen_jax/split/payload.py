"""The bytes of one tensor: codes side by side, compressed by C-Blosc2."""

from __future__ import annotations

import functools
import struct
from typing import Any, Literal

import numpy as np

from aspen_jax.errors import AspenError, InputError

CodecName = Literal["none", "lz4", "shuffle-lz4", "zstd", "shuffle-zstd"]

_ONE_THREAD: Any = {"nthreads": 1}

# In the order of their numbers in messages: whether bits are shuffled, C-Blosc2's number of the compressor, its bits in a chunk's
# flags, the level. Higher levels of zstd take ten times the time for a few percent.
_CODECS: dict[CodecName, tuple[bool, int, int, int]] = {
    "none": (False, 0, 0, 0),
    "lz4": (False, 1, 0x20, 5),
    "shuffle-lz4": (True, 1, 0x20, 5),
    "zstd": (False, 5, 0x80, 1),
    "shuffle-zstd": (True, 5, 0x80, 1),
}
CODECS: tuple[CodecName, ...] = tuple(_CODECS)


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

    shuffled, compressor, _, level = _CODECS[codec]
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
    shuffled, compressor, flags, _ = _CODECS[codec]
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


def require_blosc2() -> None:
    """Raises AspenError where the extra that brings C-Blosc2 is not installed."""
    try:
        import blosc2  # noqa: F401
    except ImportError:
        raise AspenError("compressed tensors need the package blosc2. Install aspen_jax[split], or use codec='none'") from None
