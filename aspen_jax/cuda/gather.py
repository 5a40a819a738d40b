"""Gathering: a thread an element, which finds its window."""

from __future__ import annotations

import numpy as np

from aspen_jax.cuda.indices import start
from aspen_jax.cuda.lanes import lane_bits, load
from aspen_jax.cuda.source import own, per_element, writes
from aspen_jax.program import Op


@writes("gather")
def _gather(op: Op) -> str:
    attrs, dtype = op.attrs, op.output.dtype
    point = [f"at[{axis}]" for axis in attrs.index_axes]
    fill = np.array(attrs.fill, f"i{dtype.itemsize}").view(dtype)
    outside = f"return {lane_bits(fill)};" if attrs.fills else None
    lines, places = [], []
    for axis, (walk, component, size) in enumerate(zip(attrs.walks, attrs.components, attrs.sizes, strict=True)):
        terms = []
        if component >= 0:
            lines += start(op, component + 1, point, axis, op.inputs[0].shape[axis] - size, outside)
            terms.append(f"start{axis}")
        if walk >= 0:
            terms.append(f"at[{walk}]")
        places.append(" + ".join(terms) or "0")
    lines.append(f"return {load(op, 0, places)};")
    return own(lines) + per_element(op, "own(buffers, at)")
