"""Block ops: a program on each element, by runs of adjacent ones where there are such."""

from __future__ import annotations

from aspen_jax.cuda.by_element import per_element
from aspen_jax.cuda.kernel import writes
from aspen_jax.cuda.runs import is_run, per_run, run_length
from aspen_jax.ir.program import Op


@writes("block")
def _block(op: Op) -> str:
    last = len(op.output.shape) - 1
    adjacent = [item.dtype for number, item in enumerate(op.inputs) if last >= 0 and is_run(op, number, last, 1)]
    count = run_length(op, *adjacent)
    return per_element(op, None) if count == 1 else per_run(op, count, None, "")
