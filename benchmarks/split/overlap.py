"""Tile overlap beside the best single split: latency of one request, a core each for head and tail, a paced link between them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from aspen_jax import aspen, set_num_workers
from aspen_jax.cost.timing import duration
from aspen_jax.errors import AspenError
from aspen_jax.graph.arrivals import Arrivals, Part
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.report.comparison import TOLERANCE
from aspen_jax.report.difference import largest_difference
from aspen_jax.split.codec import pack, unpack
from aspen_jax.split.cut import crossings, cut
from aspen_jax.split.overlap import receive, send
from benchmarks.benchmark import Disagreement
from benchmarks.markdown import table
from benchmarks.split import networks
from benchmarks.split.loads import others_on

DEVICE, SPLIT, OVERLAP = "device only", "split", "overlap"
_CHUNK = 8192  # bytes that leave at once
_OVERSLEPT = 0.002  # seconds that timers may be late without losing bandwidth
# Graphs are cut as for so many workers, though one walks them: a graph for one worker has few tiles, and so few parts.
_TILED_FOR = 8
_BANDS = 16  # in which an input crosses
_TOLERANCE_OF_BITS = 0.5  # parts were quantised, so this finds parts in the wrong place alone
_LENGTH = struct.Struct("<I")


@dataclasses.dataclass(frozen=True)
class Row:
    """One way to run a request.

    Attributes:
        way: DEVICE, SPLIT or OVERLAP. A split at cut 0 is "server only".
        cut: of the function's equations; -1 where there is none.
        mbps: of the link, in Mbit/s; 0 where nothing crosses.
        seconds: the least latency.
        head, tail: seconds of each half alone.
        nbytes: that crossed.
        parts: in how many parts they crossed.
    """

    way: str
    cut: int
    mbps: float
    seconds: float
    head: float
    tail: float
    nbytes: int
    parts: int


class Paced:
    """Writes to a socket at the pace of a link, and blocks as long as the link would."""

    def __init__(self, connection: socket.socket, bytes_per_second: float):
        """`bytes_per_second` of the link."""
        self._connection = connection
        self._rate = bytes_per_second
        self._free = 0.0
        self.written = 0

    def write(self, data: bytes) -> None:
        """Give bytes to the link."""
        for start in range(0, len(data), _CHUNK):
            chunk = data[start : start + _CHUNK]
            self._free = max(self._free, time.perf_counter() - _OVERSLEPT) + len(chunk) / self._rate
            if (left := self._free - time.perf_counter()) > 0:
                time.sleep(left)
            self._connection.sendall(chunk)
        self.written += len(data)


def function_of(network: str) -> tuple[Callable[[Any], Any], np.ndarray]:
    """A decorated network with its parameters closed over, and its input."""
    apply, (x,) = networks.network(network)
    return aspen(apply), np.asarray(x)


class Head:
    """The device's half of one cut. At cut 0 it has nothing to compute, and the input crosses in bands of rows."""

    def __init__(self, function: Callable[[Any], Any], at: int, x: np.ndarray):
        """Trace the half before cut `at`."""
        self.x = x
        self.arrivals = Arrivals(tiled(cut(function, at, x)[0], x), {}) if at else None
        edges = np.linspace(0, x.shape[1], _BANDS + 1).astype(int)
        bands = [[(0, x.shape[0]), band, *((0, extent) for extent in x.shape[2:])] for band in itertools.pairwise(edges)]
        self.boxes = [np.array(bands)] if self.arrivals is None else self.arrivals.parts

    def run(self) -> list[np.ndarray]:
        """What crosses, when all of it is there."""
        return [self.x] if self.arrivals is None else self.arrivals.graph.run(self.x)

    def parts(self) -> Iterable[list[tuple[Part, np.ndarray]]]:
        """What crosses, as it comes."""
        if self.arrivals is not None:
            return self.arrivals.start(self.x).parts()
        return [[(Part(0, number), self.x[:, low:high]) for number, (low, high) in enumerate(self.boxes[0][:, 1].tolist())]]


def tiled(function: Any, *inputs: Any) -> TileGraph:
    """The function's graph with many tiles, though one worker will walk them, and with memory of its own for each value."""
    set_num_workers(_TILED_FOR)
    graph = function.graph_without_reuse(*inputs)
    set_num_workers(1)
    return graph


def _reader(connection: socket.socket) -> Callable[[int], bytes]:
    def read(count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            got = connection.recv_into(view)
            if not got:
                raise EOFError("the device has gone")
            view = view[got:]
        return bytes(data)

    return read


def _serve(network: str, at: int, core: int, link: socket.socket, control: Any) -> None:
    """The server's process: the tail of one cut."""
    os.sched_setaffinity(0, {core})
    function, x = function_of(network)
    head, tail = cut(function, at, x)
    crossing = [np.asarray(value) for value in head(x)]
    tail = tiled(tail, *crossing)
    receiving = Arrivals(tail, dict(enumerate(control.recv())))
    read = _reader(link)
    control.send(_least(lambda: tail.run(*crossing), 5))
    while (way := control.recv()) is not None:
        if way == OVERLAP:
            results = receive(receiving.start(*[None] * len(crossing)), read)
        else:
            (length,) = _LENGTH.unpack(read(_LENGTH.size))
            results = tail.run(*unpack(read(length), crossing))
        control.send(results)


def _least(run: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


@contextlib.contextmanager
def _server(network: str, at: int, core: int) -> Iterator[tuple[socket.socket, Any]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _CHUNK)
    control, far = context.Pipe()
    process = context.Process(target=_serve, args=(network, at, core, theirs, far), daemon=True)
    process.start()
    theirs.close()
    far.close()
    try:
        yield ours, control
        control.send(None)
        process.join()
    finally:
        process.terminate()
        ours.close()


def measured(network: str, mbps: Sequence[float], num_cuts: int, bits: int | None, rounds: int, others: int = 0) -> Iterator[Row]:
    """Rows of each cut and link: a split in turns with an overlap, whose results are checked first.

    Args:
        network: of the zoo.
        mbps: links.
        num_cuts: how many cuts are tried, beside cut 0.
        bits: of floats that cross; None: as they are.
        rounds: of which the least counts.
        others: how many processes compute on the device's core, which is slower then.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise AspenError("overlap needs two cores, one for each side")
    function, x = function_of(network)
    whole = tiled(function, x)
    os.sched_setaffinity(0, {cores[0]})  # of the worker too, which the first run starts
    expected = whole.run(x)
    with others_on(cores[0], others):
        alone = _least(lambda: whole.run(x), rounds)
    yield Row(DEVICE, -1, 0.0, alone, alone, 0.0, 0, 0)
    for at in tqdm(chosen_cuts(function, x, num_cuts), desc="cuts", disable=None):
        head = Head(function, at, x)
        with _server(network, at, cores[1]) as (link, control), others_on(cores[0], others):
            control.send(head.boxes)
            tail_seconds = control.recv()
            head_seconds = _least(head.run, 5)
            for rate in mbps:
                yield from _in_turns(
                    head, Paced(link, rate * 1e6 / 8), control, bits, rounds, expected,
                    Row("", at, rate, 0.0, head_seconds, tail_seconds, 0, sum(map(len, head.boxes))),
                )  # fmt: skip


def _in_turns(
    head: Head, link: Paced, control: Any, bits: int | None, rounds: int,
    expected: list[np.ndarray], row: Row,
) -> Iterator[Row]:  # fmt: skip
    def once(way: str) -> tuple[float, int, list[np.ndarray]]:
        before = link.written
        control.send(way)
        begin = time.perf_counter()
        if way == OVERLAP:
            send(head.parts(), link.write, bits, "none" if bits is None else "auto")
        else:
            packed = pack(head.run(), bits, "none" if bits is None else "auto")
            link.write(_LENGTH.pack(len(packed)) + packed)
        results = control.recv()
        return time.perf_counter() - begin, link.written - before, results

    ways = (SPLIT, OVERLAP)
    for way in ways:
        difference = largest_difference(once(way)[2], expected)
        if not difference <= (TOLERANCE if bits is None else _TOLERANCE_OF_BITS):
            raise Disagreement(f"{way} at cut {row.cut} differs by {difference:.1e} of the largest output, so nothing was timed")
    taken = [[once(way)[:2] for way in ways] for _ in range(rounds)]
    for way, turns in zip(ways, zip(*taken, strict=True), strict=True):
        yield dataclasses.replace(row, way=way, seconds=min(turn[0] for turn in turns), nbytes=turns[0][1])


def chosen_cuts(function: Callable[..., Any], x: np.ndarray, count: int) -> list[int]:
    """Cut 0, and of `count` stretches of equations each the cut with the least bytes."""
    sizes = np.array([sum(item.nbytes for item in values) for values in crossings(function, x)])
    edges = np.linspace(1, len(sizes) - 1, count + 1).astype(int)
    return [0, *(int(low + sizes[low:high].argmin()) for low, high in itertools.pairwise(edges) if high > low)]


def printed(network: str, rows: Sequence[Row], how: str) -> None:
    """Tables of all rows, and of the best for each link; `how` says where the times are from."""
    header = ["Mbit/s", "way", "cut", "latency", "head alone", "tail alone", "bytes"]
    cells = [
        [f"{row.mbps:g}", row.way, str(row.cut), duration(row.seconds), duration(row.head), duration(row.tail), str(row.nbytes)]
        for row in rows
    ]
    print("\n".join(["", f"{network}, one request at a time, {how}.", "", *table(header, cells)]))
    best = [
        [f"{rate:g}", f"{alone.way}, cut {alone.cut}", duration(alone.seconds), str(overlap.cut), duration(overlap.seconds),
         f"{overlap.seconds / alone.seconds:.2f}"]
        for rate, (alone, overlap) in gains(rows).items()
    ]  # fmt: skip
    header = ["Mbit/s", "best without overlap", "latency", "cut with overlap", "latency", "ratio"]
    print("\n".join(["", *table(header, best)]))


def gains(rows: Sequence[Row]) -> dict[float, tuple[Row, Row]]:
    """The best way without overlap, and the best overlap, for each link."""
    result = {}
    for rate in sorted({row.mbps for row in rows if row.mbps}):
        here = [row for row in rows if row.mbps in (0, rate)]
        result[rate] = tuple(
            min((row for row in here if (row.way == OVERLAP) == overlaps), key=lambda row: row.seconds)
            for overlaps in (False, True)
        )
    return result
