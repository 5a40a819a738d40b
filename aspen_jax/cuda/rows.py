"""Row programs and reductions: a team of threads walks each row, once for each stage that is reduced (cuda/kernels/teams.h).

What a stage gives for each element of a row is kept by the thread that computed it, in shared memory, or computed again where a
row is too long for that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from aspen_jax.cuda.kernel import writes
from aspen_jax.cuda.lanes import load, statements, used_inputs
from aspen_jax.ir.program import Op
from aspen_jax.ops import windows
from aspen_jax.ops.block_program import COPY, BlockProgram
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.ops.row_program import ROW

THREADS = 256

# Shared memory that every device gives without being asked.
_MOST_BYTES = 44 << 10

# With fewer rows than this a block for each keeps a large device busy; with more a warp for each saves the synchronisation.
_MANY_ROWS = 2048

# What a visitor of a row's elements is given.
STEP = "[[maybe_unused]] int step, [[maybe_unused]] int thread, int* at, [[maybe_unused]] Numbers& numbers"

_COMBINE = {windows.SUM: "add", windows.MAX: "max", windows.MIN: "min", windows.PRODUCT: "mul"}
_ONES = 0xFFFFFFFF
_BITWISE = {windows.AND: "and", windows.OR: "or", windows.XOR: "xor", windows.MAX: "or", windows.MIN: "and"}


def combination(dtype: np.dtype, kind: int) -> tuple[str, int] | None:
    """The instruction that combines two lanes of a dtype, and the lane to begin with."""
    lane = lane_of(dtype)
    if lane == "b":
        return (f"scalar::{_BITWISE[kind]}_b", _ONES if _BITWISE[kind] == "and" else 0) if kind in _BITWISE else None
    if lane == "i" and kind in (windows.AND, windows.OR, windows.XOR):
        return f"scalar::{_BITWISE[kind]}_i", _ONES if kind == windows.AND else 0
    if kind not in _COMBINE or lane not in ("f", "i"):
        return None
    of = "u" if dtype.name == "uint32" and kind in (windows.MAX, windows.MIN) else lane
    start = np.asarray(windows.identity(kind, np.dtype({"f": np.float32, "i": np.int32, "u": np.uint32}[of])))
    return f"scalar::{_COMBINE[kind]}_{of}", int(start.view(np.uint32))


def team(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, int]:
    """Lanes and warps that walk a row together."""
    length, rows = (math.prod(shape[d] for d in range(len(shape)) if (d in axes) == own) for own in (True, False))
    across = max((d for d, extent in enumerate(shape) if extent > 1), default=-1) not in axes
    warps = THREADS // 32
    if across:
        return 1, warps if length >= 4 * warps else 1
    if rows <= _MANY_ROWS and length > 64:
        return 32, warps
    return min(32, 1 << max(length - 1, 0).bit_length()), 1


class _Stage(NamedTuple):
    """A stage of a row program: what combines it and the lane to begin with, if it is reduced; else whether elements have it."""

    program: BlockProgram
    combine: tuple[str, int] | None
    of_elements: bool


@writes("reduce")
def _reduce(op: Op) -> str | None:
    combine = combination(op.inputs[0].dtype, op.attrs.kind)
    return None if combine is None else _tile(op, [_Stage(COPY, combine, of_elements=False)], 1)


@writes("rows")
def _rows(op: Op) -> str | None:
    stages = []
    for kind, dtype, program in op.attrs.rows.stages:
        combine = combination(dtype, kind) if kind < ROW else None
        if kind < ROW and combine is None:
            return None
        stages.append(_Stage(program, combine, kind == ROW))
    return _tile(op, stages, len(op.inputs))


def _tile(op: Op, stages: Sequence[_Stage], num_inputs: int) -> str:
    shape, axes = op.inputs[0].shape, op.attrs.axes
    rank, length = len(shape), math.prod(shape[axis] for axis in axes)
    lanes, warps = team(shape, axes)
    steps = max(-(-length // (lanes * warps)), 1)
    kept: dict[int, int] = {}  # stages of elements, by their place in shared memory
    for number, stage in enumerate(stages[:-1]):
        if stage.of_elements and (len(kept) + 1) * steps * THREADS * 4 <= _MOST_BYTES:
            kept[number] = len(kept)
    used = [used_inputs(stage.program) for stage in stages]

    def value(number: int) -> str:
        """What a stage gives, at `at` of a thread."""
        if not stages[number].of_elements:
            return f"numbers.of[{number}]"
        return f"memory.kept[{kept[number]}][step][thread]" if number in kept else computed(number)

    def computed(number: int) -> str:
        earlier = [k - num_inputs for k in sorted(used[number]) if k >= num_inputs]
        return f"stage{number}(buffers, at, numbers{''.join(f', {value(k)}' for k in earlier if stages[k].of_elements)})"

    functions, passes = [], []
    last = len(stages) - 1
    for number, (program, combine, of_elements) in enumerate(stages):
        registers = [load(op, k, [f"at[{axis}]" for axis in range(rank)]) for k in range(num_inputs)]
        registers += [f"e{k}" if stages[k].of_elements else f"numbers.of[{k}]" for k in range(number)]
        earlier = [k - num_inputs for k in sorted(used[number]) if k >= num_inputs]
        parameters = "".join(f", uint32_t e{k}" for k in earlier if stages[k].of_elements)
        lines, result = statements(program, registers)
        body = "\n".join(f"    {line}" for line in [*lines, f"return {result};"])
        functions.append(
            f"  static ASPEN_DEVICE uint32_t stage{number}([[maybe_unused]] const Addresses& buffers, "
            f"[[maybe_unused]] const int* at, [[maybe_unused]] const Numbers& numbers{parameters}) {{\n{body}\n  }}"
        )
        own = computed(number)
        if combine is not None:
            instruction, start = combine
            passes.append(
                f"block.each_thread([&](int thread) {{ found[thread] = {start:#x}u; }});\n"
                f"      each_step([&]({STEP}) {{ found[thread] = {instruction}(found[thread], {own}); }});\n"
                f"      Rows::reduce(block, memory.team, found, [](uint32_t a, uint32_t b) {{ return {instruction}(a, b); }});\n"
                f"      block.each_thread([&](int thread) {{ numbers_of[thread].of[{number}] = found[thread]; }});"
            )
        elif not of_elements:
            passes.append(f"each_row([&](int, [[maybe_unused]] int* at, Numbers& numbers) {{ numbers.of[{number}] = {own}; }});")
        elif number == last:
            inside = " && ".join(f"at[{axis}] >= box[{axis}] && at[{axis}] < box[{rank + axis}]" for axis in axes)
            passes.append(f"each_step([&]({STEP}) {{\n        if ({inside}) finish(buffers, at, {own});\n      }});")
        elif number in kept:
            passes.append(f"each_step([&]({STEP}) {{ {value(number)} = {own}; }});")
    if not stages[last].of_elements:
        passes.append(store_once(shape, axes, f"numbers.of[{last}]"))
    stage_functions = "\n".join(functions)
    return f"""\
  struct Numbers {{
    uint32_t of[{len(stages)}];
  }};
{stage_functions}
  struct Memory {{
    Team<{THREADS}, {lanes}, {warps}>::Memory<uint32_t> team;
    uint32_t kept[{max(len(kept), 1)}][{steps if kept else 1}][{THREADS if kept else 1}];
  }};
""" + walk(op, axes, stages[last].of_elements, "uint32_t", passes)


def store_once(shape: Sequence[int], axes: Sequence[int], lane: str) -> str:
    """A pass in which a thread of each row stores the row's result."""
    rows = [axis for axis in range(len(shape)) if axis not in axes]
    coordinates = ", ".join(f"at[{axis}]" for axis in rows)
    return (
        "each_row([&](int thread, [[maybe_unused]] int* at, Numbers& numbers) {\n"
        f"        const int out[{len(rows) + 1}] = {{{coordinates}}};\n"
        f"        if (Rows::walker(thread) == 0) finish(buffers, out, {lane});\n      }});"
    )


def walk(op: Op, axes: Sequence[int], gives_rows: bool, found: str, passes: Sequence[str]) -> str:
    """A tile function that takes a few rows at a time through all passes.

    Args:
        op: its first input has the shape of the rows.
        axes: those that make up a row.
        gives_rows: whether the output has them too.
        found: the type of what the team combines.
        passes: statements that call each_row and each_step.
    """
    shape, out_rank = op.inputs[0].shape, len(op.output.shape)
    rank, length = len(shape), math.prod(shape[axis] for axis in axes)
    lanes, warps = team(shape, axes)
    rows = [axis for axis in range(rank) if axis not in axes]
    out_axes = {axis: axis if gives_rows else k for k, axis in enumerate(rows)}
    extents = [f"(box[{out_rank + out_axes[axis]}] - box[{out_axes[axis]}])" for axis in rows]
    decode = ["[[maybe_unused]] int rest = row;"]
    for axis, extent in reversed([*zip(rows, extents, strict=True)]):
        digit = "rest" if axis == rows[0] else f"rest % {extent}"
        decode.append(f"at.of[{axis}] = box[{out_axes[axis]}] + {digit}; rest /= {extent};")
    unravel = ["[[maybe_unused]] int rest = element;"]
    for axis in reversed(axes):
        digit = "rest" if axis == axes[0] else f"rest % {shape[axis]}"
        unravel.append(f"at[{axis}] = {digit}; rest /= {max(shape[axis], 1)};")
    body = "\n      ".join(passes)
    return f"""\
  static constexpr int kThreads = {THREADS};
  using Rows = Team<kThreads, {lanes}, {warps}>;
  static ASPEN_DEVICE void tile(const Addresses& buffers, [[maybe_unused]] const int32_t* box,
                                [[maybe_unused]] Memory& memory) {{
    Block<kThreads> block;
    struct At {{
      int of[{rank + 1}];
    }};
    PerThread<At, kThreads> at_of;
    PerThread<Numbers, kThreads> numbers_of;
    [[maybe_unused]] PerThread<{found}, kThreads> found;
    const int count = {" * ".join(extents) or "1"};
    for (int first = 0; first < count; first += Rows::kRows) {{
      block.each_thread([&](int thread) {{
        const int row = first + Rows::row(thread);
        At at = {{}};
        {" ".join(decode)}
        at_of[thread] = at;
        numbers_of[thread] = {{}};
      }});
      const auto each_row = [&](const auto& visit) {{
        block.each_thread([&](int thread) {{
          if (first + Rows::row(thread) < count) visit(thread, at_of[thread].of, numbers_of[thread]);
        }});
      }};
      [[maybe_unused]] const auto each_step = [&](const auto& visit) {{
        each_row([&](int thread, int* at, Numbers& numbers) {{
          for (int step = 0, element = Rows::walker(thread); element < {length}; ++step, element += Rows::kWalkers) {{
            {" ".join(unravel)}
            visit(step, thread, at, numbers);
          }}
          {" ".join(f"at[{axis}] = 0;" for axis in axes)}
        }});
      }};
      {body}
    }}
  }}"""
