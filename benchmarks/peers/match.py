"""One model, all sides: prepared once, started one after the other, checked, then timed in turns."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from aspen_jax.errors import AspenError
from benchmarks.neighbour import neighbour_on
from benchmarks.peers.prepared import Prepared
from benchmarks.peers.record import ABSENT, DISAGREES, FAILED, TIMED, ModelResult, SideResult
from benchmarks.peers.sides import SIDES
from benchmarks.peers.turns import PEAK, Contestant


class Match:
    """What happens to one model; a side that fails on the way is in the result as one that failed.

    Args:
        prepared: where it is to be made ready.
        sides: names in `SIDES`.
        threads: of every side.
        rounds: how often each is timed.
        timeout: seconds that a side may take to answer.
        shared: a core of theirs that a neighbour takes half of, in the rounds.
        bar: progress, in steps.
    """

    def __init__(
        self,
        prepared: Prepared,
        sides: Sequence[str],
        threads: int,
        rounds: int,
        timeout: float,
        shared: int | None,
        bar: Any,
    ) -> None:
        self._prepared = prepared
        self._sides = sides
        self._threads = threads
        self._rounds = rounds
        self._timeout = timeout
        self._shared = shared
        self._bar = bar
        self._results: dict[str, SideResult] = {}
        self._running: dict[str, Contestant] = {}
        self._samples: dict[str, list[float]] = {}

    @staticmethod
    def steps(sides: Sequence[str], rounds: int) -> int:
        """How many steps a match has: preparing, starting every side, and the rounds."""
        return 1 + len(sides) + rounds

    def play(self) -> ModelResult:
        """Play it to the end."""
        done = self._bar.n
        flops, onnx = 0.0, "not written"
        try:
            self._say("weights")
            for side in self._sides:
                if remedy := SIDES[side].remedy():
                    self._results[side] = SideResult(ABSENT, remedy)
            flops = self._prepared.make(self._threads, "weights")["flops"]
            onnx = self._onnx()
            self._bar.update()
            self._start(PEAK)
            for side in self._sides:
                self._say(side)
                if side not in self._results:
                    self._start(side)
                self._bar.update()
            with contextlib.nullcontext() if self._shared is None else neighbour_on(self._shared):
                for turn in range(self._rounds):
                    self._say(f"round {turn + 1} of {self._rounds}")
                    self._round(turn)
                    self._bar.update()
        except AspenError as error:  # of what all need
            for side in self._sides:
                self._results.setdefault(side, SideResult(FAILED, str(error)))
        finally:
            for contestant in self._running.values():
                contestant.end()
        self._bar.update(done + self.steps(self._sides, self._rounds) - self._bar.n)
        peak = tuple(self._samples.pop(PEAK, ()))
        for side, samples in self._samples.items():
            self._results[side] = dataclasses.replace(self._results[side], samples_s=tuple(samples))
        return ModelResult(self._prepared.name, flops, peak, onnx, {side: self._results[side] for side in self._sides})

    def _start(self, side: str) -> None:
        """Let a side answer once, and keep it running if the answer is right."""
        contestant = Contestant(side, self._prepared, self._threads, self._timeout)
        self._running[side] = contestant
        try:
            about = contestant.started()
        except AspenError as error:
            self._give_up(side, str(error))
            return
        if side == PEAK:
            self._samples[side] = []
            return
        self._results[side] = SideResult(
            TIMED if about["agrees"] else DISAGREES, "", about["difference"], about["start_s"], about["version"]
        )
        if about["agrees"]:
            self._samples[side] = []
        else:
            self._running.pop(side).end()

    def _round(self, turn: int) -> None:
        names = list(self._samples)
        first = turn % max(1, len(names))
        for side in names[first:] + names[:first]:
            try:
                self._samples[side].append(self._running[side].turn())
            except AspenError as error:
                del self._samples[side]
                self._give_up(side, str(error))

    def _give_up(self, side: str, message: str) -> None:
        self._running.pop(side).end()
        if side == PEAK:
            raise AspenError(f"the {PEAK} cannot be measured: {message}")
        before = self._results.get(side, SideResult(FAILED))
        self._results[side] = dataclasses.replace(before, state=FAILED, message=message)

    def _onnx(self) -> str:
        """Where the ONNX model came from, if any side reads one; without it those sides have failed."""
        readers = [side for side in self._sides if SIDES[side].onnx and side not in self._results]
        if not readers:
            return "not needed"
        try:
            return self._prepared.make(self._threads, "onnx")["onnx"]
        except AspenError as error:
            self._results.update({side: SideResult(FAILED, str(error)) for side in readers})
            return "not written"

    def _say(self, what: str) -> None:
        self._bar.set_description(f"{self._prepared.name}: {what}")
