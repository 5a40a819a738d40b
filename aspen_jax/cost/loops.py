"""Whether a loop runs in one tile or turn by turn as XLA calls its body, and which of its parts idle workers share there."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op
from aspen_jax.ops.loop import LoopAttrs

# From one part of a turn to the next, and a custom call in a loop of XLA's: waking workers, and what XLA does around it. Turns of
# 25 us took 49 us by calls on two workers (an LSTM of width 256 on a Xeon).
_PART_NS, _CALL_NS = 60.0, 35_000.0
# To hand a part to other workers and to hear that it is done, with the lines that then go from core to core, and the least share
# that is worth it. A product of 128 x 512 takes 2.5 us on one worker, and 2.2 us on two.
_SHARING_NS, _LEAST_SHARE_NS = 800.0, 3_000.0
# Tiles read longer parts in pieces that fit in caches; a share is one piece. Products of 512 rows of 512 numbers take a tenth
# less time in shares, those of 1024 rows of 1024 half as much again.
_LONGEST_TURN_NS = 1_000_000.0
# A worker's own cache gives so many times the bytes of what lies beyond it. A part that moves more than fits there leaves it.
_CACHE_RATE = 4


def why_not_in_one_tile(op: Op, machine: Machine, num_workers: int) -> str | None:
    """Why all workers had better share each turn of a loop by calls of XLA's; None where one tile is as fast.

    Args:
        op: a loop.
        machine: what tiles cost.
        num_workers: how many workers there are.
    """
    attrs = shared(op.attrs, machine)
    turn = of_turn(attrs, machine, num_workers)
    if turn > _LONGEST_TURN_NS or turn - of_turn(attrs, machine, 1) / num_workers > _CALL_NS:
        return "a turn of the loop is enough work for all workers"
    return None


def shared(attrs: LoopAttrs, machine: Machine) -> LoopAttrs:
    """A loop with the parts that are worth it shared by idle workers."""
    cuts = [_cut(op, _of_part(op, machine)) for op in attrs.body.ops]
    return dataclasses.replace(attrs, shared_axes=tuple(axis for axis, _ in cuts), shared_units=tuple(unit for _, unit in cuts))


def _cut(op: Op, nanoseconds: float) -> tuple[int, int]:
    """The innermost axis that has two shares, so that each worker reads weights of its own, and the unit; -1 and 0 for none.

    An op that changes a part of an array copies the rest in each turn. XLA's loops do not, so this is not made cheaper.
    """
    if op.family.rewrites is not None:
        return -1, 0
    grains = op.family.grain(op)
    for axis in reversed(range(len(grains))):
        pieces = -(-op.output.shape[axis] // max(1, grains[axis]))
        unit = max(1, grains[axis]) * max(1, math.ceil(pieces * _LEAST_SHARE_NS / nanoseconds))
        if 2 * unit <= op.output.shape[axis]:
            return axis, unit
    return -1, 0


def num_shares(op: Op, axis: int, unit: int, num_workers: int) -> int:
    """How many workers compute a part of a turn where all are idle."""
    return 1 if axis < 0 else min(num_workers, -(-op.output.shape[axis] // unit))


def of_turn(attrs: LoopAttrs, machine: Machine, num_workers: int) -> float:
    """Estimated nanoseconds of a turn on so many workers, whose own caches hold what they read.

    What depends on constants alone is computed once (passes/loops.py).
    """
    total = 0.0
    varying = set(attrs.body.inputs[attrs.num_constants :])
    for op, axis, unit in attrs.parts():
        if varying.isdisjoint(item.value for item in op.inputs):
            continue
        varying.update(op.outputs)
        shares = num_shares(op, axis, unit, num_workers)
        total += _PART_NS + _of_part(op, machine) / shares + (_SHARING_NS if shares > 1 else 0.0)
    return total


def _of_part(op: Op, machine: Machine) -> float:
    whole = np.array([(0, extent) for extent in op.output.shape], np.int64).reshape(1, -1, 2)
    work = op.family.work(op, whole)
    rate = machine.bytes_per_ns * (_CACHE_RATE if work.bytes[0] <= machine.cache_bytes else 1)
    return max(work.flops[0] / machine.flops_per_ns, work.bytes[0] / rate, 1.0)
