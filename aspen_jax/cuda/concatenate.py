"""Concatenation: a thread an element, which lies in one of the inputs."""

from __future__ import annotations

from aspen_jax.cuda.lanes import load
from aspen_jax.cuda.source import own, per_element, writes
from aspen_jax.program import Op


@writes("concatenate")
def _concatenate(op: Op) -> str:
    axis, start, lines = op.attrs.axis, 0, []
    for number, piece in enumerate(op.main_inputs):
        at = [f"at[{d}]" if d != axis else f"at[{d}] - {start}" for d in range(len(op.output.shape))]
        start += piece.shape[axis]
        condition = f"if (at[{axis}] < {start}) " if number < len(op.main_inputs) - 1 else ""
        lines.append(f"{condition}return {load(op, number, at)};")
    return own(lines) + per_element(op, "own(buffers, at)")
