"""Running results along an axis: a thread walks it from its beginning, whatever part of it the box has."""

from __future__ import annotations

from aspen_jax.cuda.kernel import writes
from aspen_jax.cuda.lanes import load
from aspen_jax.ir.program import Op
from aspen_jax.ops import windows
from aspen_jax.ops.opcodes import lane_of

_STEPS = {
    windows.SUM: "scalar::add_{lane}(sum, x)",
    windows.PRODUCT: "scalar::mul_{lane}(sum, x)",
    windows.MAX: "scalar::max_{lane}(sum, x)",
    windows.MIN: "scalar::min_{lane}(sum, x)",
    4: "scalar::add_of_exponentials(sum, x)",
}


@writes("cumulative")
def _cumulative(op: Op) -> str | None:
    attrs, rank, extent = op.attrs, len(op.output.shape), op.output.shape[op.attrs.axis]
    dtype = op.inputs[0].dtype
    lane = "u" if dtype.name == "uint32" and attrs.kind in (windows.MAX, windows.MIN) else lane_of(dtype)
    axis = attrs.axis
    inside = f"at[{axis}] >= box[{axis}] && at[{axis}] < box[{rank + axis}]"
    place = f"{extent - 1} - step" if attrs.reverse else "step"
    return f"""\
  static constexpr int kThreads = 128;
  struct Memory {{}};
  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory&) {{
    int32_t lines[{2 * rank}];
    for (int d = 0; d < {2 * rank}; ++d) lines[d] = box[d];
    lines[{axis}] = 0, lines[{rank + axis}] = box[{rank + axis}] > box[{axis}] ? 1 : 0;
    Block<kThreads> block;
    each_element<{rank}>(block, lines, [&](const int* line) {{
      int at[{rank}];
      for (int d = 0; d < {rank}; ++d) at[d] = line[d];
      uint32_t sum = 0;
      for (int step = 0; step < {extent}; ++step) {{
        at[{axis}] = {place};
        const uint32_t x = {load(op, 0, [f"at[{d}]" for d in range(rank)])};
        sum = step == 0 ? x : {_STEPS[attrs.kind].format(lane=lane)};
        if ({inside}) finish(buffers, at, sum);
      }}
    }});
  }}"""
