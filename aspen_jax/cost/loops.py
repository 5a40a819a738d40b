"""Whether a loop runs in one tile, on one worker, or turn by turn as XLA calls its body, on all workers."""

from __future__ import annotations

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Program

# From one part of a turn to the next, and a custom call in a loop of XLA's, with waking the workers.
_PART_NS, _CALL_NS = 60.0, 12_000.0


def why_not_in_one_tile(op: Op, machine: Machine, num_workers: int) -> str | None:
    """Why all workers had better share each turn of a loop; None where one worker is as fast.

    Args:
        op: a loop.
        machine: what tiles cost.
        num_workers: how many workers there are.
    """
    turn = of_turn(op.attrs.body, machine)
    if turn * (1 - 1 / num_workers) > _CALL_NS:
        return "a turn of the loop is enough work for all workers"
    return None


def of_turn(body: Program, machine: Machine) -> float:
    """Estimated nanoseconds of a turn on one worker, whose own cache holds what it reads."""
    total = 0.0
    for op in body.ops:
        whole = np.array([(0, extent) for extent in op.output.shape], np.int64).reshape(1, -1, 2)
        work = op.family.work(op, whole)
        total += _PART_NS + max(work.flops[0] / machine.flops_per_ns, work.bytes[0] / (2 * machine.bytes_per_ns))
    return total
