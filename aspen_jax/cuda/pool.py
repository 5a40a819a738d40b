"""Pooling: a thread walks the window of its element."""

from __future__ import annotations

from collections.abc import Sequence

from aspen_jax.cuda.lanes import load
from aspen_jax.cuda.rows import combination
from aspen_jax.cuda.source import per_element, writes
from aspen_jax.ir.program import Op


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
    combined = combination(op.inputs[0].dtype, attrs.kind)
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
