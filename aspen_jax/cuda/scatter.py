"""Scattering: a thread an element, which walks all points for the windows that it is in. Points take effect in their order."""

from __future__ import annotations

from aspen_jax.cuda.indices import start
from aspen_jax.cuda.lanes import load
from aspen_jax.cuda.source import own, per_element, writes
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.program import Op

# By the number of a combination (ops/scatter.py); 0 replaces.
_COMBINE = (None, "add", "mul", "min", "max")


@writes("scatter")
def _scatter(op: Op) -> str | None:
    attrs, (x, updates) = op.attrs, op.inputs[:2]
    lane = lane_of(x.dtype)
    if attrs.combination and (lane not in ("f", "i") or x.dtype.name == "uint32"):
        return None
    # The points that walk an axis of x meet an element in one place; the others are tried one after the other.
    meets = {walk: f"at[{axis}]" for axis, walk in enumerate(attrs.walks) if walk in attrs.index_axes}
    point = {axis: meets.get(axis, f"i{axis}") for axis in attrs.index_axes}
    loops = [f"for (int i{axis} = 0; i{axis} < {updates.shape[axis]}; ++i{axis})" for axis in point if axis not in meets]
    lines, places = [], dict(point)
    for axis, (walk, component) in enumerate(zip(attrs.walks, attrs.components, strict=True)):
        if walk in meets:
            continue
        size = updates.shape[walk] if walk >= 0 else 1
        begin = str(attrs.starts[axis])
        if component >= 0:
            last = x.shape[axis] - size
            lines += start(op, component + 2, [*point.values()], axis, last, "continue;" if attrs.drops else None)
            begin = f"start{axis}"
        lines.append(f"const int in{axis} = at[{axis}] - {begin};")
        lines.append(f"if (in{axis} < 0 || in{axis} >= {size}) continue;")
        if walk >= 0:
            places[walk] = f"in{axis}"
    update = load(op, 1, [places[axis] for axis in range(len(updates.shape))])
    combine = _COMBINE[attrs.combination]
    lines.append(f"value = {update};" if combine is None else f"value = scalar::{combine}_{lane}(value, {update});")
    nest = [*(f"{loop} {{" for loop in loops or ["for (int once = 0; once < 1; ++once)"]), *lines, "}" * max(len(loops), 1)]
    whole = [f"at[{axis}]" for axis in range(len(x.shape))]
    return own([f"uint32_t value = {load(op, 0, whole)};", *nest, "return value;"]) + per_element(op, "own(buffers, at)")
