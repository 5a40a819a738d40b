"""Perfetto's native trace format: protobuf messages of type TrackEvent, as far as timelines need them.

Field numbers are those of protos/perfetto/trace in Perfetto's repository. Chrome's JSON would do as well, but Perfetto calls it
legacy, and drops slices that overlap in it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Mapping
from typing import TypeAlias

Value: TypeAlias = str | int | float


class _Trace(enum.IntEnum):
    PACKET = 1


class _Packet(enum.IntEnum):
    TIMESTAMP = 8
    SEQUENCE = 10
    EVENT = 11
    TRACK = 60


class _Track(enum.IntEnum):
    UUID = 1
    NAME = 2
    PROCESS = 3
    PARENT = 5
    COUNTER = 8
    CHILD_ORDERING = 11
    RANK = 12


class _Event(enum.IntEnum):
    ANNOTATION = 4
    TYPE = 9
    TRACK = 11
    CATEGORY = 22
    NAME = 23
    COUNT = 30
    FLOW = 47


class _Annotation(enum.IntEnum):
    INTEGER = 4
    DOUBLE = 5
    STRING = 6
    NAME = 10


_BEGINS, _ENDS, _COUNTS = 1, 2, 4  # TrackEvent.Type
_BY_RANK = 3  # TrackDescriptor.ChildTracksOrdering.EXPLICIT
_PID, _PROCESS_PID, _PROCESS_NAME = 1, 1, 6
_VARINT, _FIXED_64, _LENGTH = 0, 1, 2


class PerfettoTrace:
    """A trace of one process that is written event by event. Events of a track are given in the order of their times."""

    def __init__(self, process: str):
        """Begin a trace.

        Args:
            process: what the process is called.
        """
        self._packets: list[bytes] = []
        self._num_tracks = 0
        descriptor = _number(_PROCESS_PID, _PID) + _text(_PROCESS_NAME, process)
        self._process = self._add_track(_message(_Track.PROCESS, descriptor) + _number(_Track.CHILD_ORDERING, _BY_RANK))

    def track(self, name: str) -> int:
        """A track for slices, below those that are there."""
        return self._add_track(self._child(name))

    def counter(self, name: str) -> int:
        """A track for numbers that change, below those that are there."""
        return self._add_track(self._child(name) + _message(_Track.COUNTER, b""))

    def slice(
        self,
        track: int,
        begin_ns: int,
        end_ns: int,
        name: str,
        categories: Iterable[str],
        facts: Mapping[str, Value] | None = None,
        flows: Iterable[int] = (),
    ) -> None:
        """A slice on a track.

        Args:
            track: where.
            begin_ns: nanoseconds.
            end_ns: nanoseconds.
            name: what is written on it.
            categories: by which it can be found.
            facts: what is shown when it is chosen.
            flows: numbers of flows. Arrows lead along the slices of a flow.
        """
        event = _text(_Event.NAME, name) + b"".join(_text(_Event.CATEGORY, category) for category in categories)
        event += b"".join(_message(_Event.ANNOTATION, _fact(*item)) for item in (facts or {}).items())
        event += b"".join(_tag(_Event.FLOW, _FIXED_64) + struct.pack("<Q", flow) for flow in flows)
        self._add_event(track, begin_ns, _BEGINS, event)
        self._add_event(track, end_ns, _ENDS)

    def count(self, track: int, time_ns: int, value: int) -> None:
        """A counter's value from a time on."""
        self._add_event(track, time_ns, _COUNTS, _number(_Event.COUNT, value))

    def to_bytes(self) -> bytes:
        """The file's content."""
        return b"".join(_message(_Trace.PACKET, packet + _number(_Packet.SEQUENCE, 1)) for packet in self._packets)

    def _child(self, name: str) -> bytes:
        return _text(_Track.NAME, name) + _number(_Track.PARENT, self._process) + _number(_Track.RANK, self._num_tracks)

    def _add_track(self, descriptor: bytes) -> int:
        self._num_tracks += 1
        self._packets.append(_message(_Packet.TRACK, _number(_Track.UUID, self._num_tracks) + descriptor))
        return self._num_tracks

    def _add_event(self, track: int, time_ns: int, kind: int, event: bytes = b"") -> None:
        event = _number(_Event.TYPE, kind) + _number(_Event.TRACK, track) + event
        self._packets.append(_number(_Packet.TIMESTAMP, time_ns) + _message(_Packet.EVENT, event))


def _fact(name: str, value: Value) -> bytes:
    named = _text(_Annotation.NAME, name)
    if isinstance(value, str):
        return named + _text(_Annotation.STRING, value)
    if isinstance(value, float):
        return named + _tag(_Annotation.DOUBLE, _FIXED_64) + struct.pack("<d", value)
    return named + _number(_Annotation.INTEGER, value)


def _number(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode(errors="replace"))


def _message(field: int, content: bytes) -> bytes:
    return _tag(field, _LENGTH) + _varint(len(content)) + content


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative ones in two's complement
    septets = bytearray()
    while value > 0x7F:
        septets.append(value & 0x7F | 0x80)
        value >>= 7
    septets.append(value)
    return bytes(septets)
