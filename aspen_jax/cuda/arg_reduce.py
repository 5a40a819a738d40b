"""Where the largest or least element of a row is: a team of threads walks it, and keeps the first place of the best."""

from __future__ import annotations

from aspen_jax.cuda.kernel import writes
from aspen_jax.cuda.lanes import load
from aspen_jax.cuda.rows import STEP, THREADS, store_once, team, walk
from aspen_jax.ir.program import Op
from aspen_jax.ops import windows
from aspen_jax.ops.opcodes import lane_of


@writes("arg_reduce")
def _arg_reduce(op: Op) -> str:
    axis, shape, dtype = op.attrs.axis, op.inputs[0].shape, op.inputs[0].dtype
    lane = lane_of(dtype)
    beyond = "a > b" if op.attrs.kind == windows.MAX else "a < b"
    # Lanes of bool are ones or zeros, which are ordered as unsigned numbers are.
    kind, read = (
        ("float", "as_float") if lane == "f" else ("uint32_t", "") if lane == "b" or dtype.kind == "u" else ("int32_t", "")
    )
    # A NaN is beyond all numbers.
    nan = "if (a != a || b != b) return (a != a) == (b != b) ? first : a != a ? x : y;\n    " if lane == "f" else ""
    lanes, warps = team(shape, (axis,))
    element = load(op, 0, [f"at[{d}]" for d in range(len(shape))])
    passes = [
        "block.each_thread([&](int thread) { found[thread] = {0, -1}; });",
        f"each_step([&]({STEP}) {{ found[thread] = better(found[thread], {{{element}, at[{axis}]}}); }});",
        "Rows::reduce(block, memory.team, found, better);",
        "block.each_thread([&](int thread) { numbers_of[thread].of[0] = static_cast<uint32_t>(found[thread].place); });",
        store_once(shape, (axis,), "numbers.of[0]"),
    ]
    return f"""\
  struct Numbers {{
    uint32_t of[1];
  }};
  struct Extreme {{
    uint32_t lane;
    int32_t place;  // -1: of nothing
  }};
  static ASPEN_DEVICE Extreme better(const Extreme& x, const Extreme& y) {{
    if (x.place < 0 || y.place < 0) return x.place < 0 ? y : x;
    const auto a = static_cast<{kind}>({read}(x.lane)), b = static_cast<{kind}>({read}(y.lane));
    const Extreme& first = x.place < y.place ? x : y;
    {nan}return a == b ? first : {beyond} ? x : y;
  }}
  struct Memory {{
    Team<{THREADS}, {lanes}, {warps}>::Memory<Extreme> team;
  }};
""" + walk(op, (axis,), False, "Extreme", passes)
