"""An overlapped split on the lab's virtual clock: device, link and server are resources of a lane each, and pieces are tiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from aspen_jax import _engine
from aspen_jax.graph.arrivals import Arrivals
from aspen_jax.split.cut import crossing, cut
from benchmarks.split.overlap import DEVICE, OVERLAP, SPLIT, Head, Row, chosen_cuts, function_of, tiled

_NOTHING = np.zeros(0, np.int64)


def predicted(network: str, mbps: Sequence[float], num_cuts: int, slower: float) -> Iterator[Row]:
    """What `overlap.measured` would give if tiles took the times that the cost model expects, and nothing else took time.

    Args:
        network: of the zoo.
        mbps: links.
        num_cuts: how many cuts are tried, beside cut 0.
        slower: how many times longer a tile takes on the device than on the server.
    """
    function, x = function_of(network)
    whole = slower * tiled(function, x).costs.sum() / 1e9
    yield Row(DEVICE, -1, 0.0, whole, whole, 0.0, 0, 0)
    rates = {rate: rate * 1e6 / 8 for rate in mbps}
    for at in chosen_cuts(function, x, num_cuts):
        head = Head(function, at, x)
        crossed = crossing(function, at, x)
        examples = [np.zeros(item.shape, item.dtype) for item in crossed]
        receiving = Arrivals(tiled(cut(function, at, x)[1], *examples), dict(enumerate(head.boxes)))
        sizes = [
            (boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1) * item.dtype.itemsize
            for boxes, item in zip(head.boxes, crossed, strict=True)
        ]
        piece_bytes = np.concatenate(sizes)
        head_seconds = 0.0 if head.arrivals is None else slower * head.arrivals.graph.costs.sum() / 1e9
        tail_seconds = receiving.graph.costs.sum() / 1e9
        for rate, bytes_per_second in rates.items():
            row = Row(SPLIT, at, rate, 0.0, head_seconds, tail_seconds, int(piece_bytes.sum()), len(piece_bytes))
            yield dataclasses.replace(row, seconds=head_seconds + row.nbytes / bytes_per_second + tail_seconds)
            overlapped = seconds(head.arrivals, receiving, piece_bytes, bytes_per_second, slower)
            yield dataclasses.replace(row, way=OVERLAP, seconds=overlapped)


def seconds(
    sending: Arrivals | None, receiving: Arrivals, piece_bytes: np.ndarray, bytes_per_second: float, slower: float = 1.0
) -> float:
    """The latency of a request by the estimated costs of tiles, with one worker on each side.

    Args:
        sending: the head's; None if the input itself crosses.
        receiving: the tail's, whose pieces are the head's parts.
        piece_bytes: of each piece.
        bytes_per_second: of the link, which carries pieces in the order in which they become final.
        slower: as for `predicted`.
    """
    tail = receiving.graph
    num_head, num_pieces = 0 if sending is None else sending.graph.num_tiles, len(piece_bytes)
    first_tail = num_head + num_pieces
    counts, waiting = receiving.waiting
    arrows: list[tuple[np.ndarray, np.ndarray]] = []
    arrows.append((num_head + np.repeat(np.arange(num_pieces), counts), first_tail + waiting))
    before, after = tail.dag.edges()
    arrows.append((first_tail + before, first_tail + after))
    depths, costs = _NOTHING, _NOTHING
    if sending is not None:
        head = sending.graph
        depths, costs = head.ops[head.tile_ops, 4], (slower * head.costs).astype(np.int64)
        first = np.cumsum([0, *map(len, sending.parts)])
        written = [
            (tile, num_head + first[part.result] + part.part) for tile, parts in sending.parts_of.items() for part in parts
        ]
        arrows += [head.dag.edges(), (np.array(written)[:, 0], np.array(written)[:, 1])]
    parents, children = (np.concatenate(side) for side in zip(*arrows, strict=True))
    order = np.argsort(parents, kind="stable")
    num_tiles = first_tail + tail.num_tiles
    link = np.ceil(np.asarray(piece_bytes) / bytes_per_second * 1e9).astype(np.int64)
    depth = np.concatenate([depths, np.full(num_pieces, depths.max(initial=0)), tail.ops[tail.tile_ops, 4]])
    graph = _engine.VirtualGraph(
        np.bincount(parents, minlength=num_tiles).astype(np.int64), children[order].astype(np.int64),
        np.arange(num_tiles), depth.astype(np.int64), _NOTHING, np.zeros(0, np.uint8),
    )  # fmt: skip
    nanoseconds = np.full((num_tiles, 3), _engine.NEVER, np.int64)
    where = np.repeat(np.arange(3, dtype=np.int32), [num_head, num_pieces, tail.num_tiles])
    nanoseconds[np.arange(num_tiles), where] = np.concatenate([costs, link, tail.costs])
    machine = _engine.VirtualMachine([1, 1, 1], [0, 0, 0], [(0, 0.0)])
    rows, _ = _engine.simulate(graph, machine, nanoseconds, where, "deep first")
    return float(rows[:, 2].max(initial=0)) / 1e9
