"""Element-wise work by runs of adjacent elements: a thread loads and stores up to 16 bytes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from aspen_jax.ir.program import Op
from aspen_jax.ir.view import View
from aspen_jax.targets.cuda.code.lanes import element, load, output_buffers, place, statements, used_inputs

# Of a run: more would take registers that hide latency better as other threads.
_MOST_ELEMENTS = 8

# Unsigned integers as wide as the elements.
_WORDS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t"}


class Read(NamedTuple):
    """What each element of a run is made of.

    Attributes:
        lines: C++ that comes before the elements.
        lane: the lane of element `i` of the run.
    """

    lines: list[str]
    lane: str


def run_length(op: Op, *dtypes: np.dtype) -> int:
    """Elements of a run: what divides the output's last axis and takes at most 16 bytes of its own and of these dtypes."""
    widest = max(dtype.itemsize for dtype in (*(value.dtype for value in op.outputs), *dtypes))
    count = min(_MOST_ELEMENTS, 16 // widest)
    while count > 1 and (not op.output.shape or op.output.shape[-1] % count):
        count //= 2
    return count


def is_run(op: Op, number: int, axis: int, count: int) -> bool:
    """Whether `count` elements of input `number` along this axis of its view may be read at once, wherever a run begins."""
    view = op.inputs[number].view
    others = [stride for d, stride in enumerate(view.strides()) if d != axis]
    return view.strides()[axis] == 1 and all(step % count == 0 for step in (*others, view.offset()))


def read(op: Op, number: int, coordinates: Sequence[str], axis: int, count: int) -> Read:
    """Input `number` from these coordinates on along this axis of its view."""
    operand, name = op.inputs[number], f"v{number}"
    stride = operand.view.strides()[axis]
    if stride == 0:
        return Read([f"const uint32_t {name} = {load(op, number, coordinates)};"], name)
    own = place(coordinates, operand.view.strides())
    if is_run(op, number, axis, count):
        address = f"static_cast<const {_WORDS[operand.dtype.itemsize]}*>(buffers.inputs[{number}]) + {own}"
        line = f"const auto {name} = load_vector<{count}>({address});"
        return Read([line], f"{element(operand.dtype)}::load({name}.elements, i)")
    return Read([], f"{element(operand.dtype)}::load(buffers.inputs[{number}], {own} + int64_t{{i}} * {stride})")


def run_function(op: Op, count: int) -> str:
    """A function `run` that computes `count` elements from `at` on along the last axis, and stores them at once.

    What the kernel gives, if the op has one, has `lane(i)` for each of them.
    """
    at = [f"at[{axis}]" for axis in range(len(op.output.shape))]
    num_main, lines, inner, results = op.family.num_main(op), [], [], ["own.lane(i)"]
    if op.program is not None:
        registers = ["own.lane(i)"] if num_main else []
        for number in range(num_main, len(op.inputs)):
            more, item = read(op, number, at, len(at) - 1, count)
            lines += more if len(registers) in used_inputs(op.program) else []
            registers.append(item)
        inner, results = statements(op.program, registers, [value.dtype for value in op.outputs])
    to = place(at, View.identity(op.output.shape).strides())
    after = []
    for number, (value, buffer, result) in enumerate(zip(op.outputs, output_buffers(op), results, strict=True)):
        lines.append(f"uint32_t result{number}[{count}];")
        inner.append(f"result{number}[i] = {result};")
        after.append(f"store_lanes<{element(value.dtype)}>({buffer}, {to}, result{number});")
    indents = ("    ", lines), ("      ", inner), ("    ", after)
    before, body, stores = ("\n".join(f"{indent}{line}" for line in text) for indent, text in indents)
    template, own = ("  template <class Own>\n", ", const Own& own") if num_main else ("", "")
    return f"""\
{template}  static ASPEN_DEVICE void run(const Addresses& buffers, const int* at{own}) {{
{before}
    ASPEN_UNROLL for (int i = 0; i < {count}; ++i) {{
{body}
    }}
{stores}
  }}"""
