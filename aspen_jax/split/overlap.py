"""Tile overlap: the head's results cross the link part by part as tiles end, and the tail's tiles begin as parts arrive.

With a split in the usual sense the head ends, its results are sent, and the tail begins. Here the three happen at once, each on
other parts (CoActo, MobiSys 2024). What each message holds is quantised and compressed by itself, so no part waits for the range
of the whole tensor.

    head, tail = cut(f, k, x)
    sending = Arrivals(head.graph_without_reuse(x), {})  # on the device
    tail = tail.graph_without_reuse(*crossing)  # on the server, which is told the parts
    receiving = Arrivals(tail, dict(enumerate(sending.parts)))
    send(sending.start(x).parts(), socket.sendall, bits=8)
    results = receive(receiving.start(*crossing), read)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.graph.arrivals import ArrivingRun, Part
from aspen_jax.split.codec import Limits, pack, unpack
from aspen_jax.split.payload import CodecName

_FRAME = struct.Struct("<II")  # bytes of the message behind the parts' numbers, number of parts
_PART = struct.Struct("<II")  # result, part

MESSAGE_BYTES = 1 << 16
"""A message holds parts of about so many bytes before they are packed: a larger one keeps the tail waiting for its end."""


def send(
    parts: Iterable[Sequence[tuple[Part, np.ndarray]]],
    write: Callable[[bytes], Any],
    bits: int | None = None,
    codec: CodecName | Any = "auto",
    *,
    bandwidth: float = 12.5e6,
    message_bytes: int = MESSAGE_BYTES,
) -> int:
    """Write the parts of what crosses.

    Args:
        parts: such as `ArrivingRun.parts` of the head's run, which gives parts of its results as they become final.
        write: takes bytes, such as `socket.sendall`. Parts that end while it blocks go into the next message.
        bits: as `pack` takes it.
        codec: as `pack` takes it.
        bandwidth: as `pack` takes it.
        message_bytes: of the parts in a message before they are packed, unless it is one part.

    Returns:
        How many bytes were written.

    Raises:
        EngineError: the run failed.
    """
    total = 0
    for some in parts:
        for message in _grouped(some, message_bytes):
            packed = pack([values for _, values in message], bits, codec, bandwidth=bandwidth)
            numbers = b"".join(_PART.pack(*part) for part, _ in message)
            frame = b"".join([_FRAME.pack(len(packed), len(message)), numbers, packed])
            write(frame)
            total += len(frame)
    return total


def receive(run: ArrivingRun, read: Callable[[int], bytes], limits: Limits | None = None) -> list[np.ndarray]:
    """Read the parts of what crosses, as `send` writes them, into the inputs of a run.

    The result `k` of the head is the input `k` of the tail, and the head's parts are the tail's pieces. Nothing in a message is
    believed. The run is cancelled where a message is wrong or `read` raises.

    Args:
        run: of the tail; it waits for all of its inputs.
        read: gives exactly so many bytes.
        limits: what a message may hold.

    Returns:
        The results of the run.

    Raises:
        InputError: a message is wrong.
        EngineError: the run failed.
    """
    limits = limits or Limits()
    missing = {Part(index, piece) for index, boxes in run.pieces.items() for piece in range(len(boxes))}
    try:
        while missing:
            length, count = _FRAME.unpack(read(_FRAME.size))
            if length > limits.message_bytes or not 0 < count <= len(missing):
                raise InputError(f"a message of {length} bytes brings {count} parts, and {len(missing)} are missing")
            parts = [Part(*numbers) for numbers in _PART.iter_unpack(read(count * _PART.size))]
            if unknown := set(parts) - missing:
                raise InputError(
                    f"a message brings part {min(unknown).part} of value {min(unknown).result}, which is not missing"
                )
            if len(set(parts)) < count:
                raise InputError("a message brings a part twice")
            expected = [run.kind_of_piece(*part) for part in parts]
            for part, values in zip(parts, unpack(read(length), expected, limits), strict=True):
                run.put(*part, values)
            missing.difference_update(parts)
    except BaseException as error:
        run.cancel(f"what crosses did not arrive: {error}")
        raise
    return run.results()


def _grouped(parts: Sequence[tuple[Part, np.ndarray]], message_bytes: int) -> Iterator[list[tuple[Part, np.ndarray]]]:
    """The parts in their order, a list a message."""
    message, size = [], 0
    for part, values in parts:
        if message and size + values.nbytes > message_bytes:
            yield message
            message, size = [], 0
        message.append((part, values))
        size += values.nbytes
    yield message
