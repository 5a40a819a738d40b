"""Whether a loop runs in one tile, on one worker, or turn by turn as XLA calls its body, on all workers."""

from __future__ import annotations

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op
from aspen_jax.ops.loop import LoopAttrs

# From one part of a turn to the next, and a custom call in a loop of XLA's: waking workers, and what XLA does around it. Turns of
# 25 us took 49 us by calls on two workers (an LSTM of width 256 on a Xeon).
_PART_NS, _CALL_NS = 60.0, 35_000.0


def why_not_in_one_tile(op: Op, machine: Machine, num_workers: int) -> str | None:
    """Why all workers had better share each turn of a loop; None where one worker is as fast.

    Args:
        op: a loop.
        machine: what tiles cost.
        num_workers: how many workers there are.
    """
    turn = of_turn(op.attrs, machine)
    if turn * (1 - 1 / num_workers) > _CALL_NS:
        return "a turn of the loop is enough work for all workers"
    return None


def of_turn(attrs: LoopAttrs, machine: Machine) -> float:
    """Estimated nanoseconds of a turn on one worker, whose own cache holds what it reads.

    What depends on constants alone is computed once (passes/loops.py).
    """
    total = 0.0
    varying = set(attrs.body.inputs[attrs.num_constants :])
    for op in attrs.body.ops:
        if varying.isdisjoint(item.value for item in op.inputs):
            continue
        varying.update(op.outputs)
        whole = np.array([(0, extent) for extent in op.output.shape], np.int64).reshape(1, -1, 2)
        work = op.family.work(op, whole)
        total += _PART_NS + max(work.flops[0] / machine.flops_per_ns, work.bytes[0] / (2 * machine.bytes_per_ns))
    return total
