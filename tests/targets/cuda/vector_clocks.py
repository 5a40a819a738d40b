"""What CUDA promises of commands given to streams: which launches are over before which begin."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

LAUNCH, RECORD, WAIT = range(3)


class Device:
    """Runs nothing and keeps a vector clock for each stream.

    Args:
        commands: (kind, stream, index) in the order in which they are issued.
        num_streams: stream 0 is the caller's.
        num_launches: launches are numbered below it.
    """

    def __init__(self, commands: Iterable[tuple[int, int, int]], num_streams: int, num_launches: int):
        now = np.zeros((num_streams, num_streams), np.int64)
        now[0, 0] = 1  # what the caller's stream was given before
        events: dict[int, np.ndarray] = {}
        self.stream_of = np.full(num_launches, -1)
        # Of each stream, how much is over once a launch is: its own one, and all that it waited for.
        self.over = np.zeros((num_launches, num_streams), np.int64)
        for kind, stream, index in commands:
            if kind == LAUNCH:
                assert self.stream_of[index] < 0, "launched twice"
                now[stream, stream] += 1
                self.stream_of[index] = stream
                self.over[index] = now[stream]
            elif kind == RECORD:
                assert index not in events, "recorded twice"
                events[index] = now[stream].copy()
            else:
                # Before it is recorded an event means nothing to CUDA: nobody waits.
                now[stream] = np.maximum(now[stream], events.get(index, 0))
        self.end = now[0]

    def is_before(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Whether each launch of `first` is over before that of `second` begins."""
        stream = self.stream_of[first]
        return (first != second) & (self.over[second, stream] >= self.over[first, stream])

    def is_between(self) -> bool:
        """Whether everything was launched, after what the caller's stream was given before and before what it is given later."""
        launches = np.arange(len(self.stream_of))
        is_joined = self.end[self.stream_of] >= self.over[launches, self.stream_of]
        return bool((self.stream_of >= 0).all() and (self.over[:, 0] >= 1).all() and is_joined.all())
