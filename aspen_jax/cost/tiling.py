"""Tile shapes: every op's output is cut into a regular grid (ASPEN, section 3.1).

The finest tiles are the family's grains. Merging them column-wise makes a tile hold all channels of its pixels; merging row-wise
then lets it hold more pixels, whole inner dimensions first. So a candidate is two numbers, the parts of the last dimension and
the parts of the others together; all are priced and the cheapest is taken.
"""

from __future__ import annotations

import itertools
import math
import operator

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op
from aspen_jax.ops.block import box_sizes

_PARTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)

# Splitting columns makes every consumer wait for more tiles, which the price does not see: it must be this much cheaper.
_COLUMNS_MARGIN = 0.95


# Of an op whose tiles each compute their halos, no more tiles are asked for than cost so much more arithmetic.
_MOST_REPEATED = 1.1


def cut_points(op: Op, num_workers: int, machine: Machine) -> tuple[np.ndarray, ...]:
    """Where to cut each dimension of the op's output: ascending from 0 to the extent, on multiples of the grain."""
    shape = op.output.shape
    if op.output.size == 0:
        return tuple(np.zeros(1, np.int64) if extent == 0 else np.array([0, extent]) for extent in shape)
    grain, units = _units(op)
    measured = machine.measured.of(op)
    if measured is not None and len(measured.parts) == len(units) and all(map(operator.le, measured.parts, units)):
        best = measured.parts
    else:
        best = by_price(op, num_workers, machine)[0]
    return tuple(
        np.minimum(np.arange(parts + 1) * count // parts * step, extent)
        for parts, count, step, extent in zip(best, units, grain, shape, strict=True)
    )


def by_price(op: Op, num_workers: int, machine: Machine) -> list[tuple[int, ...]]:
    """All ways to cut an output that is not empty, as parts per dimension; what the cost model thinks the fastest first."""
    candidates, order, _ = _ordered(op, num_workers, machine)
    return [candidates[index] for index in order]


def cheapest(op: Op, num_workers: int, machine: Machine) -> tuple[tuple[int, ...], float]:
    """What the cost model thinks the fastest cut of an output that is not empty, as parts per dimension, and its nanoseconds."""
    candidates, order, prices = _ordered(op, num_workers, machine)
    return candidates[order[0]], float(prices[order[0]])


def _ordered(op: Op, num_workers: int, machine: Machine) -> tuple[list[tuple[int, ...]], np.ndarray, np.ndarray]:
    grain, units = _units(op)
    candidates = _candidates(units)
    broken, prices = _prices(op, candidates, units, grain, num_workers, machine)
    return candidates, np.lexsort((prices, broken)), prices


def _units(op: Op) -> tuple[tuple[int, ...], list[int]]:
    """The op's grain, and how many grains each dimension has."""
    grain = op.family.grain(op)
    return grain, [-(-extent // step) for extent, step in zip(op.output.shape, grain, strict=True)]


def _candidates(units: list[int]) -> list[tuple[int, ...]]:
    """Parts per dimension; whole columns first, coarse first."""
    if not units:
        return [()]
    *rows, columns = units
    outer = next((count for count in rows if count > 1), 1)
    # Of 13 rows cut into 12 or 14, some tiles have twice the rows of others.
    divisors = (parts for parts in range(2, min(outer, _PARTS[-1]) + 1) if outer % parts == 0)
    row_choices = dict.fromkeys(_split_rows(rows, parts) for parts in sorted({*_PARTS, *divisors}) if parts <= math.prod(rows))
    column_choices = [parts for parts in _PARTS if parts <= columns]
    return [(*row, column) for column, row in itertools.product(column_choices, row_choices)]


def _split_rows(units: list[int], parts: int) -> tuple[int, ...]:
    """Cut outer dimensions first: an inner one is cut only where the outer ones are down to their grain."""
    split = []
    for count in units:
        taken = min(count, parts)
        split.append(taken)
        parts = -(-parts // taken)
    return tuple(split)


def _prices(
    op: Op, candidates: list[tuple[int, ...]], units: list[int], grain: tuple[int, ...], num_workers: int, machine: Machine
) -> tuple[np.ndarray, np.ndarray]:
    """How much each candidate breaks rules, and its makespan: rounds of tiles, and a tile that consumers wait for."""
    parts = np.array(candidates, np.int64).reshape(len(candidates), len(units))
    extents = -(-np.array(units, np.int64) // parts) * np.array(grain, np.int64)
    # A tile in the middle, of the largest extent: those at the edges may read less.
    boxes = np.empty((*parts.shape, 2), np.int64)
    shape = np.array(op.output.shape, np.int64)
    extents = np.minimum(extents, shape)
    boxes[:, :, 0] = np.minimum(parts // 2 * extents, shape - extents)
    boxes[:, :, 1] = boxes[:, :, 0] + extents
    tile = np.maximum(machine.of_boxes(op, boxes), 1.0)  # a tile of no work could not be compared
    tiles = np.prod(parts, axis=1)
    places = max(num_workers // machine.places_of(op), 1)
    price = (-(-tiles // places) + machine.further_tiles(op)) * tile
    if parts.shape[1]:
        price = np.where(parts[:, -1] > 1, price / _COLUMNS_MARGIN, price)
    # A candidate breaks a rule by the factor that it is short by; least broken wins, and among those the price decides.
    enough = min(machine.tiles_per_worker * places, max(1, int((tile * tiles).min() // machine.shortest_tile_ns)))
    if op.family.repeats:
        enough = min(enough, int(tiles[_repeated(op, boxes) <= _MOST_REPEATED].max()))
    too_short = np.where(tiles > 1, np.maximum(machine.shortest_tile_ns / tile, 1.0), 1.0)
    too_few = np.maximum(enough / tiles, 1.0)
    return np.round(too_short * too_few, 3), price


def _repeated(op: Op, boxes: np.ndarray) -> np.ndarray:
    """Arithmetic per element of each box, by that of the box which has the least."""
    flops = op.family.work(op, boxes).flops / np.maximum(box_sizes(boxes), 1.0)
    return flops / max(flops.min(), 1e-30)
