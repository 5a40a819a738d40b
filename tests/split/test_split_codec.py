"""Messages of tensors: what comes back, what is refused, and that no message does harm."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from aspen_jax.errors import InputError
from aspen_jax.split import codec as codec_module
from aspen_jax.split.codec import Limits, pack, unpack
from aspen_jax.split.codec_choice import Cost, quickest
from aspen_jax.split.payload import CODECS, packed_codes, unpacked_codes
from aspen_jax.split.quantise import dequantise, quantise
from tests.content import generator

RNG = generator(__name__)
# `ASPEN_HOSTILE_MESSAGES=100000 pytest tests/split/test_split_codec.py` sends more.
HOSTILE_MESSAGES = int(os.environ.get("ASPEN_HOSTILE_MESSAGES", "10000"))
DTYPES = [
    *map(np.dtype, ("bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")),
    np.dtype(ml_dtypes.bfloat16),
]


def values(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    x = np.maximum(RNG.normal(size=shape), 0) * 9
    return np.asarray(x > 1 if dtype == np.bool_ else x).astype(dtype)


@pytest.mark.parametrize("codec", [*CODECS, "auto"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unpack_gives_what_was_packed(dtype, codec):
    arrays = [values(dtype, shape) for shape in [(), (0, 4), (1,), (3, 5, 7), (64, 301)]]
    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
    for x, y in zip(arrays, unpack(pack(arrays, None, codec), avals), strict=True):
        assert (y.dtype, y.shape, y.tobytes()) == (x.dtype, x.shape, x.tobytes())
    for bits in (1, 3, 4, 6, 11, 16):
        for x, y in zip(arrays, unpack(pack(arrays, bits, codec), arrays), strict=True):
            expected = dequantise(quantise(x, bits))
            assert (y.dtype, y.shape, y.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_arrays_of_any_order_and_of_jax():
    x = values(np.dtype(np.float32), (6, 40, 5))
    for array in (x[::-1, ::2].T, np.asfortranarray(x), jax.numpy.asarray(x), x[:, 1]):
        for bits in (None, 16):
            (y,) = unpack(pack([array], bits), [array])
            assert y.tobytes() == dequantise(quantise(np.ascontiguousarray(array), bits)).tobytes()


def test_not_a_number_and_infinities_stay():
    x = RNG.normal(size=500).astype(np.float32)
    x[[3, 77, 200]] = np.nan, np.inf, -np.inf
    (y,) = unpack(pack([x], 4), [x])
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_share_bytes(bits):
    for size in (1, 2, 7, 8, 9, 1000):
        codes = RNG.integers(0, 2**bits, size).astype(np.uint8)
        packed = packed_codes(codes, bits)
        assert packed.size == -(-size * {1: 1, 2: 2, 3: 4, 4: 4}.get(bits, 8) // 8)
        np.testing.assert_array_equal(unpacked_codes(packed, bits, size), codes)


def test_a_message_is_never_much_longer_than_its_codes():
    x = RNG.normal(size=4096).astype(np.float32)
    for codec in CODECS:
        assert len(pack([x], None, codec)) <= x.nbytes + 64
        assert len(pack([x], 4, codec)) <= x.size // 2 + 64
        assert len(pack([np.full(4096, 2.5)], 4, codec)) <= 64


def test_the_codec_is_chosen_by_time_and_bandwidth():
    costs = {"none": Cost(1e-6, 1000), "lz4": Cost(1e-4, 500), "zstd": Cost(1e-3, 300)}
    assert quickest(costs, 1e9) == "none"
    assert quickest(costs, 2e6) == "lz4"
    assert quickest(costs, 1e5) == "zstd"
    for bandwidth in (1.0, 10.0, 1e4):  # every second a byte: the shortest wins, whatever the machine does
        x = np.maximum(RNG.normal(size=20000), 0).astype(np.float32)
        assert len(pack([x], 4, bandwidth=bandwidth)) < len(pack([x], 4, "none"))


@pytest.mark.parametrize(
    "options", [{"bits": 0}, {"codec": "gzip"}, {"bandwidth": 0}, {"bandwidth": np.nan}, {"bandwidth": np.inf}]
)
def test_bad_options_are_refused(options):
    with pytest.raises(InputError):
        pack([np.ones(3)], **options)


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([object()]), np.ones(3, ml_dtypes.float8_e4m3fn)], ids=["text", "objects", "float8"]
)
def test_dtypes_that_no_message_holds_are_refused(array):
    with pytest.raises(InputError, match="cannot be sent"):
        pack([array])


# --- Messages that are not what they should be ---

X = np.maximum(RNG.normal(size=(4, 500)) - 1, 0).astype(np.float32)
TENSOR = 8  # where the first tensor's header begins
PAYLOAD = TENSOR + 24 + 8


def edited(message: bytes, at: int, form: str, *new: float) -> bytes:
    out = bytearray(message)
    struct.pack_into("<" + form, out, at, *new)
    return bytes(out)


PACKED = {codec: pack([X], 4, codec) for codec in CODECS}
LZ4 = PACKED["shuffle-lz4"]
assert LZ4[TENSOR + 3] == CODECS.index("shuffle-lz4")
HOSTILE = {
    "empty": b"",
    "half a header": LZ4[:5],
    "magic": edited(LZ4, 0, "4s", b"GIF8"),
    "version": edited(LZ4, 4, "H", 2),
    "count": edited(LZ4, 6, "H", 2),
    "no tensors": LZ4[:6] + b"\0\0",
    "dtype": edited(LZ4, TENSOR, "B", 12),
    "unknown dtype": edited(LZ4, TENSOR, "B", 200),
    "rank": edited(LZ4, TENSOR + 1, "B", 255),
    "no bits": edited(LZ4, TENSOR + 2, "B", 0),
    "other bits": edited(LZ4, TENSOR + 2, "B", 8),
    "bits of raw": edited(LZ4, TENSOR + 2, "B", 32),
    "too many bits": edited(LZ4, TENSOR + 2, "B", 17),
    "other codec": edited(LZ4, TENSOR + 3, "B", 1),
    "unknown codec": edited(LZ4, TENSOR + 3, "B", 5),
    "scale is NaN": edited(LZ4, TENSOR + 4, "d", np.nan),
    "scale is negative": edited(LZ4, TENSOR + 4, "d", -1.0),
    "scale is infinite": edited(LZ4, TENSOR + 4, "d", np.inf),
    "scale is too large": edited(LZ4, TENSOR + 4, "d", 1e38),
    "scale is 0": edited(LZ4, TENSOR + 4, "d", 0.0),
    "minimum is NaN": edited(LZ4, TENSOR + 12, "d", np.nan),
    "minimum is infinite": edited(LZ4, TENSOR + 12, "d", -np.inf),
    "size beyond the end": edited(LZ4, TENSOR + 20, "I", 2**32 - 1),
    "size 0": edited(LZ4, TENSOR + 20, "I", 0)[:PAYLOAD],
    "a dimension": edited(LZ4, TENSOR + 24, "I", 5),
    "a huge dimension": edited(LZ4, TENSOR + 24, "II", 2**32 - 1, 2**32 - 1),
    "truncated": LZ4[:-1],
    "trailing": LZ4 + b"\0",
    "two messages": LZ4 + LZ4,
    "none, too short": edited(PACKED["none"], TENSOR + 20, "I", 999)[:-1],
    "chunk says more": edited(LZ4, PAYLOAD + 4, "i", 2**31 - 1),
    "chunk says less": edited(LZ4, PAYLOAD + 4, "i", 1),
    "chunk's size is negative": edited(LZ4, PAYLOAD + 4, "i", -1),
    "chunk's blocks are tiny": edited(LZ4, PAYLOAD + 8, "i", 1),
    "chunk's blocks are negative": edited(LZ4, PAYLOAD + 8, "i", -5),
    "chunk is longer": edited(LZ4, PAYLOAD + 12, "i", 2**30),
    "chunk has another filter": edited(LZ4, PAYLOAD + 16, "B", 4),
    "chunk has a dictionary": edited(LZ4, PAYLOAD + 31, "B", 1),
    "chunk is lazy": edited(LZ4, PAYLOAD + 31, "B", 8),
    "chunk says it is a copy": edited(LZ4, PAYLOAD + 2, "B", LZ4[PAYLOAD + 2] | 2),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_message_is_refused(name):
    with pytest.raises(InputError):
        unpack(HOSTILE[name], [X])


def test_bools_and_codes_are_in_range():
    bools = pack([np.array([True, False, True])], codec="none")
    with pytest.raises(InputError, match="neither 0 nor 1"):
        unpack(bools[:-1] + b"\2", [np.zeros(3, bool)])
    codes = pack([np.arange(5.0)], 5, "none")
    with pytest.raises(InputError, match="a code of 5 bits is 255"):
        unpack(codes[:-1] + b"\xff", [np.zeros(5)])


def test_a_message_for_other_tensors_is_refused():
    for aval in (np.zeros((4, 500), np.float16), np.zeros((500, 4), np.float32), np.zeros(2000, np.float32)):
        with pytest.raises(InputError, match="is expected"):
            unpack(LZ4, [aval])


def test_limits_are_kept():
    for limits in (Limits(message_bytes=len(LZ4) - 1), Limits(tensor_bytes=X.nbytes - 1), Limits(tensors=0)):
        with pytest.raises(InputError, match="limit"):
            unpack(LZ4, [X], limits)
    unpack(LZ4, [X], Limits(message_bytes=len(LZ4), tensor_bytes=X.nbytes, tensors=1))


def test_no_memory_is_taken_for_a_message_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(codec_module.np, "empty", lambda *_: pytest.fail("memory was taken"))
    for message in (HOSTILE["a huge dimension"], HOSTILE["truncated"], HOSTILE["trailing"]):
        with pytest.raises(InputError):
            unpack(message, [X])


def mutated(message: bytes) -> bytes:
    """A message with a few bytes changed, cut off, put in or taken out."""
    out = bytearray(message)
    kind = RNG.integers(4)
    for _ in range(RNG.integers(1, 5)):
        at = int(RNG.integers(len(out)))
        if kind == 0:
            out[at] = RNG.integers(256)
        elif kind == 1:
            out[min(at, int(RNG.integers(90)))] = RNG.integers(256)
        elif kind == 2:
            del out[at + 1 :]
        else:
            out[at : at + RNG.integers(9)] = RNG.bytes(RNG.integers(9)) + b"\0"
    return bytes(out)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_mutated_messages_neither_crash_nor_leak():
    arrays = [X, RNG.normal(size=1000), np.arange(300), np.zeros(900, np.int8), RNG.normal(size=(5, 5)) > 0]
    messages = [pack(arrays, bits, codec) for bits in (1, 4, 8, 12, None) for codec in CODECS]
    refused = 0
    before = 0
    for index in range(HOSTILE_MESSAGES):
        if index == HOSTILE_MESSAGES // 4:
            before = resident_bytes()
        try:
            found = unpack(mutated(messages[RNG.integers(len(messages))]), arrays)
        except InputError:
            refused += 1
        else:
            assert [(y.shape, y.dtype) for y in found] == [(x.shape, x.dtype) for x in arrays]
    assert HOSTILE_MESSAGES / 2 < refused < HOSTILE_MESSAGES
    assert resident_bytes() - before < 2**24  # a leak of one message in ten would be more
