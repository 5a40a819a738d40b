"""Trace files, read with Perfetto's own messages."""

from __future__ import annotations

import collections

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

Slice = collections.namedtuple("Slice", "track begin end name categories facts flows")


class Decoded:
    """A trace file as its tracks, slices and counters; nothing in it is left out silently."""

    def __init__(self, data: bytes):
        self.tracks: dict[int, str] = {}
        self.order: dict[int, int] = {}
        self.counters: dict[str, list[tuple[int, int]]] = {}
        self.slices: list[Slice] = []
        open_slices: dict[int, list] = collections.defaultdict(list)
        for packet in pb.Trace.FromString(data).packet:
            assert packet.trusted_packet_sequence_id
            if packet.HasField("track_descriptor"):
                self._describe(packet.track_descriptor)
                continue
            event = packet.track_event
            if event.type == event.TYPE_SLICE_BEGIN:
                facts = {item.name: getattr(item, item.WhichOneof("value")) for item in event.debug_annotations}
                opened = packet.timestamp, event.name, list(event.categories), facts, list(event.flow_ids)
                open_slices[event.track_uuid].append(opened)
            elif event.type == event.TYPE_SLICE_END:
                begin, *rest = open_slices[event.track_uuid].pop()
                assert not open_slices[event.track_uuid], "slices of a row follow one another"
                self.slices.append(Slice(self.tracks[event.track_uuid], begin, packet.timestamp, *rest))
            else:
                assert event.type == event.TYPE_COUNTER
                self.counters[self.tracks[event.track_uuid]].append((packet.timestamp, event.counter_value))
        assert not any(open_slices.values())

    def _describe(self, track) -> None:
        assert track.uuid not in self.tracks
        if track.HasField("process"):
            self.tracks[track.uuid] = self.process = track.process.process_name
            assert track.process.pid
            assert track.child_ordering == track.EXPLICIT
            return
        assert self.tracks[track.parent_uuid] == self.process
        self.tracks[track.uuid] = track.name
        self.order[track.sibling_order_rank] = track.uuid
        if track.HasField("counter"):
            self.counters[track.name] = []

    def names(self) -> list[str]:
        return [self.tracks[self.order[rank]] for rank in sorted(self.order)]
