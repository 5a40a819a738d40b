"""Padding: a thread an element, which is one of the input's or the padding value."""

from __future__ import annotations

from aspen_jax.cuda.by_element import own, per_element
from aspen_jax.cuda.kernel import writes
from aspen_jax.cuda.lanes import load
from aspen_jax.ir.program import Op


@writes("pad")
def _pad(op: Op) -> str:
    lines, places = [], []
    for axis, extent in enumerate(op.inputs[0].shape):
        step = op.attrs.interior[axis] + 1
        outside = f"p{axis} < 0 || p{axis} >= {max(extent, 0) * step - step + 1}"
        outside += f" || p{axis} % {step} != 0" if step > 1 else ""
        lines += [f"const int p{axis} = at[{axis}] - {op.attrs.lo[axis]};", f"if ({outside}) return {load(op, 1, ())};"]
        places.append(f"p{axis} / {step}")
    lines.append(f"return {load(op, 0, places)};")
    return own(lines) + per_element(op, "own(buffers, at)")
