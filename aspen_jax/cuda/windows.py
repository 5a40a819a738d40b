"""Pooling and reductions: a thread walks all that its element is made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aspen_jax.cuda.lanes import load
from aspen_jax.cuda.source import per_element, writes
from aspen_jax.ops import windows
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.program import Op

_COMBINE = {windows.SUM: "add", windows.MAX: "max", windows.MIN: "min", windows.PRODUCT: "mul"}


def _combine(op: Op, kind: int) -> tuple[str, str] | None:
    """The instruction that combines two lanes, and the lane to begin with."""
    lane = lane_of(op.inputs[0].dtype)
    if kind not in _COMBINE or lane not in ("f", "i") or op.inputs[0].dtype.name == "uint32":
        return None
    start = np.asarray(windows.identity(kind, np.dtype(np.float32 if lane == "f" else np.int32)))
    return f"scalar::{_COMBINE[kind]}_{lane}", f"{int(start.view(np.int32)) & 0xFFFFFFFF:#x}u"


def _walk(combine: str, start: str, loops: Sequence[str], skip: str, read: str) -> str:
    nest = "\n".join(f"    {loop}" for loop in loops)
    return f"""\
  static ASPEN_DEVICE uint32_t own(const Addresses& buffers, [[maybe_unused]] const int* at) {{
    uint32_t sum = {start};
{nest} {{
{skip}      sum = {combine}(sum, {read});
    }}
    return sum;
  }}
"""


@writes("pool")
def _pool(op: Op) -> str | None:
    attrs, shape = op.attrs, op.inputs[0].shape
    combined = _combine(op, attrs.kind)
    if combined is None:
        return None
    loops, places, skips = [], [], []
    for axis in range(len(shape)):
        loops.append(f"for (int w{axis} = 0; w{axis} < {attrs.window[axis]}; ++w{axis})")
        place = f"at[{axis}] * {attrs.strides[axis]} - {attrs.padding_lo[axis]} + w{axis} * {attrs.window_dilation[axis]}"
        base = attrs.base_dilation[axis]
        skips.append(f"      const int p{axis} = {place};\n")
        skips.append(f"      if (p{axis} < 0 || p{axis} >= {(shape[axis] - 1) * base + 1}")
        skips.append(f" || p{axis} % {base} != 0" if base > 1 else "")
        skips.append(") continue;\n")
        places.append(f"p{axis} / {base}")
    return _walk(*combined, loops, "".join(skips), load(op, 0, places)) + per_element(op, "own(buffers, at)")


@writes("reduce")
def _reduce(op: Op) -> str | None:
    shape = op.inputs[0].shape
    combined = _combine(op, op.attrs.kind)
    if combined is None:
        return None
    kept = iter(range(len(shape)))
    loops, places = [], []
    for axis, extent in enumerate(shape):
        if axis in op.attrs.axes:
            loops.append(f"for (int i{axis} = 0; i{axis} < {extent}; ++i{axis})")
            places.append(f"i{axis}")
        else:
            places.append(f"at[{next(kept)}]")
    return _walk(*combined, loops, "", load(op, 0, places)) + per_element(op, "own(buffers, at)")
