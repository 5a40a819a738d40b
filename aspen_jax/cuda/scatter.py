"""Scattering: a thread an element, which walks all points for the windows that it is in. Points take effect in their order.

Where there are many points, that would take too long: XLA scatters them.

Where the output lies where x does, what no window meets is left as it is; one window alone is all that threads look at.
"""

from __future__ import annotations

import math

from aspen_jax.cuda.indices import start
from aspen_jax.cuda.kernel import writes
from aspen_jax.cuda.lanes import load
from aspen_jax.ir.program import Op
from aspen_jax.ops.opcodes import lane_of

# By the number of a combination (ops/scatter.py); 0 replaces.
_COMBINE = (None, "add", "mul", "min", "max")

_MOST_POINTS = 1 << 14


@writes("scatter")
def _scatter(op: Op) -> str | None:
    attrs, (x, updates) = op.attrs, op.inputs[:2]
    lane, rank = lane_of(x.dtype), len(x.shape)
    if attrs.combination and (lane not in ("f", "i") or x.dtype.name == "uint32"):
        return None
    if math.prod(updates.shape[axis] for axis in attrs.index_axes) > _MOST_POINTS:
        return None
    # The points that walk an axis of x meet an element in one place; the others are tried one after the other.
    meets = {walk: f"at[{axis}]" for axis, walk in enumerate(attrs.walks) if walk in attrs.index_axes}
    point = {axis: meets.get(axis, f"i{axis}") for axis in attrs.index_axes}
    loops = [f"for (int i{axis} = 0; i{axis} < {updates.shape[axis]}; ++i{axis})" for axis in point if axis not in meets]
    lines, places, window = [], dict(point), []
    for axis, (walk, component) in enumerate(zip(attrs.walks, attrs.components, strict=True)):
        if walk in meets:
            continue
        size = updates.shape[walk] if walk >= 0 else 1
        begin = str(attrs.starts[axis])
        if component >= 0:
            read = component + 2, [*point.values()], axis, x.shape[axis] - size
            lines += start(op, *read, "continue;" if attrs.drops else None)
            window += start(op, *read, "return;" if attrs.drops else None)
            begin = f"start{axis}"
        lines.append(f"const int in{axis} = at[{axis}] - {begin};")
        lines.append(f"if (in{axis} < 0 || in{axis} >= {size}) continue;")
        window.append(f"within[{axis}] = max_of(box[{axis}], {begin});")
        window.append(f"within[{rank + axis}] = min_of(box[{rank + axis}], {begin} + {size});")
        window.append(f"if (within[{axis}] >= within[{rank + axis}]) return;")
        if walk >= 0:
            places[walk] = f"in{axis}"
    update = load(op, 1, [places[axis] for axis in range(len(updates.shape))])
    there = load(op, 0, [f"at[{axis}]" for axis in range(rank)])
    combine = _COMBINE[attrs.combination]
    lines.append(
        f"value = {update};" if combine is None else f"value = scalar::{combine}_{lane}(is_met ? value : {there}, {update});"
    )
    lines.append("is_met = true;")
    nest = "\n".join(
        [*(f"{loop} {{" for loop in loops or ["for (int once = 0; once < 1; ++once)"]), *lines, "}" * max(len(loops), 1)]
    )
    # Only one window is where it is, whichever element looks for it.
    clip = "\n".join(["if (in_place) {", *window, "}"] if not attrs.index_axes else [])
    return f"""\
  static constexpr int kThreads = 256;
  struct Memory {{}};
  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory&) {{
    Block<kThreads> block;
    const bool in_place = {"buffers.inputs[0] == buffers.output" if x.view.is_dense() else "false"};
    int32_t within[{2 * rank + 1}];
    for (int i = 0; i < {2 * rank}; ++i) within[i] = box[i];
    {clip}
    each_element<{rank}>(block, within, [&](const int* at) {{
      uint32_t value = 0;
      bool is_met = false;
      {nest}
      if (is_met || !in_place) finish(buffers, at, is_met ? value : {there});
    }});
  }}
"""
