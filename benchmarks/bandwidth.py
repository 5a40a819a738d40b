"""How fast this machine reads memory, and how much of it a run of a tile graph must read."""

from __future__ import annotations

import threading
import time

import numpy as np

from aspen_jax.graph.tilegraph import TileGraph

_BYTES = 256 * 2**20
"""A thread reads so much, more than the caches hold that a core has for itself."""


def read_bandwidth(threads: int, rounds: int = 5) -> float:
    """Bytes a second that so many threads read from memory at once, the best of some rounds."""
    arrays = [np.ones(_BYTES // 4, np.float32) for _ in range(threads)]
    together = threading.Barrier(threads + 1)

    def read(array: np.ndarray) -> None:
        for _ in range(rounds):
            together.wait()
            array.max()
            together.wait()

    readers = [threading.Thread(target=read, args=(array,), daemon=True) for array in arrays]
    for reader in readers:
        reader.start()
    best = float("inf")
    for _ in range(rounds):
        together.wait()
        start = time.perf_counter()
        together.wait()
        best = min(best, time.perf_counter() - start)
    for reader in readers:
        reader.join()
    return threads * _BYTES / best


def memory_bytes(graph: TileGraph) -> np.ndarray:
    """Bytes that each tile reads from memory, float64 [tiles]: an op's weights and inputs, in equal parts.

    What ops write for each other is taken to stay in caches, and what several tiles of an op read comes from memory once.
    """
    program = graph.program()
    given = {*program.inputs, *(value for value, _ in program.constants)}
    result = np.zeros(graph.num_tiles)
    for number, op in enumerate(program.ops):
        tiles, boxes = graph.tiles_of(number)
        outside = sum(value.nbytes for value in {operand.value for operand in op.inputs} & given)
        # A gather reads some rows of its table.
        moved = float(op.family.work(op, boxes).bytes.sum())
        result[tiles] = min(outside, moved) / max(len(tiles), 1)
    return result


def with_bandwidth(nanoseconds: np.ndarray, num_bytes: np.ndarray, lanes: int, bytes_per_second: float) -> np.ndarray:
    """Tiles' times where all lanes read memory at once: at least the time of a tile's bytes at its lane's share.

    Args:
        nanoseconds: of each tile alone, [T].
        num_bytes: what it reads from memory, [T].
        lanes: how many read at once.
        bytes_per_second: of all together.
    """
    return np.maximum(nanoseconds, num_bytes * (1e9 * lanes / bytes_per_second))
