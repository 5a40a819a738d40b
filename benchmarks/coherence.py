"""Misses by true and by false sharing in a trace of memory accesses, as valgrind's tool lackey writes it.

After Dubois et al., "The detection and elimination of useless misses in multiprocessors" (ISCA'93): each thread has a cache
without limits, and a write takes the line away from all other threads. A miss on a line that was taken away is needed ("true")
if, before the line is taken away again, the thread touches a byte that another thread has written since the last miss of this
thread on this line that was needed. Otherwise it is false sharing. First misses are needed and not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

_LINE = 64  # bytes
_GRAPH = re.compile(r"graph (.+), (\d+) tiles, (\d+) runs, marker 0x([0-9a-f]+)")
_THREAD = re.compile(r"--\d+--\s+SCHED\[(\d+)\]:\s+acquired lock")


def simulate(trace: Iterable[str]) -> list[dict[str, Any]]:
    """Misses by sharing of each graph that sharing.cc ran, between the two stores to its marker.

    Args:
        trace: lines of `valgrind --tool=lackey --trace-mem=yes --trace-sched=yes`, with those of sharing.cc among them.

    Returns:
        For each graph its name, "tiles" and "runs"; "true" and "false", numbers of misses, without those in lives of lines that
        might still have turned out to be needed when the trace ends; and "pairs", most misses first, which are the false ones by
        "writer", the address of the instruction that took the line away, and "victim", of the one that missed it. "lines" are
        the numbers of the lines that the pair shared, address // 64.
    """
    found = []
    thread = 0
    lines = iter(trace)
    marker = "nothing was named yet"
    graph: dict[str, Any] = {}
    for line in lines:
        if line[0] == "-":
            thread = _thread(line, thread)
        elif match := _GRAPH.match(line):
            graph = {"graph": match[1], "tiles": int(match[2]), "runs": int(match[3])}
            marker = f" S {int(match[4], 16):08x},"
        elif line.startswith(marker):
            # One thread stores to the marker at the beginning and at the end, so it is still `thread` after that.
            found.append(graph | _simulate(lines, marker, thread))
            marker = "until another is named"
    return found


def _thread(line: str, before: int) -> int:
    match = _THREAD.match(line)
    return int(match[1]) if match else before


def _simulate(lines: Iterator[str], marker: str, thread: int) -> dict[str, Any]:
    """Take lines up to the marker and say what they show."""
    caches = _Caches()
    instruction = ""
    for line in lines:
        if line[0] == "I":
            instruction = line
        elif line[0] == "-":
            thread = _thread(line, thread)
        elif line.startswith(marker):
            break
        elif line[:3] in (" L ", " S ", " M "):
            address, _, size = line[3:].partition(",")
            caches.access(thread, int(address, 16), int(size), line[1] != "L", instruction)
    return caches.result()


@dataclass
class _Life:
    """A line in a thread's cache, from a miss by sharing to the next write of another thread."""

    writer: str  # the instruction, a line of the trace, that took the line away before
    victim: str  # the one that missed it
    needed: bool = False


@dataclass
class _CacheLine:
    holders: set[int] = field(default_factory=set)
    # For each thread that has ever had the line:
    lives: dict[int, _Life | None] = field(default_factory=dict)  # the last one; None for the first
    takers: dict[int, str] = field(default_factory=dict)  # the instruction that took it away last
    news: dict[int, int] = field(default_factory=dict)  # a bit a byte: written by others since the last miss that was needed


class _Caches:
    def __init__(self) -> None:
        self._lines: dict[int, _CacheLine] = {}
        self._true = 0
        self._false: dict[tuple[str, str], dict[int, int]] = {}  # misses by writer and victim, and by line

    def access(self, thread: int, address: int, size: int, writes: bool, instruction: str) -> None:
        for number in range(address // _LINE, (address + size - 1) // _LINE + 1):
            begin, end = max(address - number * _LINE, 0), min(address + size - number * _LINE, _LINE)
            self._access(thread, number, (1 << end) - (1 << begin), writes, instruction)

    def _access(self, thread: int, number: int, touched: int, writes: bool, instruction: str) -> None:
        line = self._lines.setdefault(number, _CacheLine())
        if thread not in line.holders:
            line.holders.add(thread)
            line.lives[thread] = _Life(line.takers[thread], instruction) if thread in line.takers else None
            line.news.setdefault(thread, 0)
        if line.news[thread] & touched:
            line.news[thread] = 0  # this miss has brought everything
            if life := line.lives[thread]:
                life.needed = True
        if writes:
            for other in line.lives:
                if other == thread:
                    continue
                line.news[other] |= touched
                if other in line.holders:
                    line.holders.remove(other)
                    line.takers[other] = instruction
                    self._count(number, line.lives[other])

    def _count(self, number: int, life: _Life | None) -> None:
        if life and life.needed:
            self._true += 1
        elif life:
            lines = self._false.setdefault((life.writer, life.victim), {})
            lines[number] = lines.get(number, 0) + 1

    def result(self) -> dict[str, Any]:
        alive = [line.lives[thread] for line in self._lines.values() for thread in line.holders]
        pairs = [
            {"writer": _address(writer), "victim": _address(victim), "misses": sum(lines.values()), "lines": sorted(lines)}
            for (writer, victim), lines in self._false.items()
        ]
        return {
            "true": self._true + sum(life is not None and life.needed for life in alive),
            "false": sum(pair["misses"] for pair in pairs),
            "pairs": sorted(pairs, key=lambda pair: -pair["misses"]),
        }


def _address(instruction: str) -> int:
    return int(instruction[1:].partition(",")[0], 16)
