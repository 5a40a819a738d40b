"""Gathering: each element finds its window; a run of adjacent ones finds it once, where windows run along the last axis."""

from __future__ import annotations

import numpy as np

from aspen_jax.cuda.by_element import own, per_element
from aspen_jax.cuda.indices import start
from aspen_jax.cuda.kernel import writes
from aspen_jax.cuda.lanes import lane_bits, load
from aspen_jax.cuda.runs import Read, is_run, per_run, read, run_length
from aspen_jax.ir.program import Op


@writes("gather")
def _gather(op: Op) -> str:
    attrs, dtype = op.attrs, op.output.dtype
    last = len(op.output.shape) - 1
    fill = lane_bits(np.array(attrs.fill, f"i{dtype.itemsize}").view(dtype))

    def windows(outside: str) -> tuple[list[str], list[str]]:
        """C++ that finds the window, with what is done where it lies outside, and the coordinates in x."""
        point = [f"at[{axis}]" for axis in attrs.index_axes]
        lines, places = [], []
        for axis, (walk, component, size) in enumerate(zip(attrs.walks, attrs.components, attrs.sizes, strict=True)):
            terms = []
            if component >= 0:
                reaches = op.inputs[0].shape[axis] - size
                lines += start(op, component + 1, point, axis, reaches, outside if attrs.fills else None)
                terms.append(f"start{axis}")
            if walk >= 0:
                terms.append(f"at[{walk}]")
            places.append(" + ".join(terms) or "0")
        return lines, places

    lines, places = windows(f"return {fill};")
    text = own([*lines, f"return {load(op, 0, places)};"])
    walked = [axis for axis, walk in enumerate(attrs.walks) if walk == last]
    # Where a window begins along that axis may be no multiple of anything.
    if len(walked) != 1 or attrs.components[walked[0]] >= 0 or last in attrs.index_axes or 0 in op.inputs[0].shape:
        return text + per_element(op, "own(buffers, at)")
    count = run_length(op, op.inputs[0].dtype)
    while count > 1 and not is_run(op, 0, walked[0], count):
        count //= 2
    if count == 1:
        return text + per_element(op, "own(buffers, at)")

    def run() -> Read:
        lines, places = windows("inside = false;")
        more, lane = read(op, 0, places, walked[0], count)
        if not attrs.fills:
            return Read([*lines, *more], lane)
        return Read(["bool inside = true;", *lines, *more], f"inside ? {lane} : {fill}")

    return text + per_run(op, count, run, ", own(buffers, at)")
