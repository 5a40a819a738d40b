"""Convolutions and matrix products: by cuda/product.h where their operands lie well, or else element by element."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from aspen_jax.cuda.lanes import load, place
from aspen_jax.cuda.source import per_element, writes
from aspen_jax.program import Op, Operand

_STAGES = 3


class _Core(NamedTuple):
    """What multiplies (cuda/product.h): its C++ type, and that of its elements."""

    type: str
    element: str


def _core(op: Op) -> _Core:
    dtype = op.inputs[0].dtype.name
    if dtype == "float32":
        return _Core("FmaCore<64, 64>", "float") if op.exact else _Core("MmaCore<Tf32, 64, 64, 32, 32>", "float")
    return _Core(f"MmaCore<{'F16' if dtype == 'float16' else 'Bf16'}, 64, 64, 32, 32>", "uint16_t")


def _vector(dtype: np.dtype, *multiples: int) -> int | None:
    """The most elements that a copy of 4, 8 or 16 bytes may take where all these numbers of elements are multiples of it."""
    for size in (16, 8, 4):
        count = size // dtype.itemsize
        if count and all(number % count == 0 for number in multiples):
            return count
    return None


def _tile(core: _Core, rows: str, columns: str, loop: str, num_rows: str, num_columns: str, depth: int, store: str) -> str:
    return f"""\
  using Core = {core.type};
  static constexpr int kThreads = Core::kThreads;
  using Memory = ProductMemory<Core, {_STAGES}>;
  static ASPEN_DEVICE void tile(const Addresses& buffers, const int32_t* box, Memory& memory) {{
{loop}
      {rows}
      {columns}
      multiply_tile(memory, rows, columns, {num_rows}, {num_columns}, {depth}, [&](int row, int column, float sum) {{
        {store}
      }});
    }}
  }}"""


@writes("conv2d")
def _conv2d(op: Op) -> str | None:
    x, w = op.inputs[:2]
    attrs, core = op.attrs, _core(op)
    (_, height, width, _), (kernel_height, kernel_width, channels, outputs) = x.shape, w.shape
    strides, w_strides = x.view.strides(), w.view.strides()
    depth = kernel_height * kernel_width * channels
    # A walk along the depth must find the weights of one column one row after the other.
    rows_of_weights = (kernel_width * channels * outputs, channels * outputs, outputs, 1)
    dense = strides[3] in (0, 1) and (strides[3] == 1 or channels == 1) and w_strides == rows_of_weights
    row_vector = _vector(x.dtype, channels, *strides[:3], x.view.offset())
    column_vector = _vector(w.dtype, outputs, w.view.offset())
    if attrs.groups > 1 or not dense or row_vector is None or column_vector is None:
        return _conv2d_by_element(op)
    top, _, left, _ = attrs.padding
    rows = (
        f"const ConvRows<{core.element}, {row_vector}> rows{{static_cast<const {core.element}*>(buffers.inputs[0]), "
        f"{strides[0]}, {strides[1]}, {strides[2]}, {height}, {width}, {channels}, {kernel_width}, {depth}, "
        f"{attrs.strides[0]}, {attrs.strides[1]}, {attrs.dilation[0]}, {attrs.dilation[1]}, {top}, {left}, "
        "box[0], box[1], box[2], box[5] - box[1], box[6] - box[2], first_row};"
    )
    columns = (
        f"const MatrixColumns<{core.element}, {column_vector}> columns{{static_cast<const {core.element}*>(buffers.inputs[1]) + "
        f"first_column, {outputs}, {depth}}};"
    )
    loop = """\
    const int height = box[5] - box[1], width = box[6] - box[2];
    const int all_rows = (box[4] - box[0]) * height * width;
    for (int part = 0, parts = (box[7] - box[3] + Core::kColumns - 1) / Core::kColumns,
         blocks = (all_rows + Core::kRows - 1) / Core::kRows; part < parts * blocks; ++part) {
      const int first_column = box[3] + part % parts * Core::kColumns, first_row = part / parts * Core::kRows;"""
    store = (
        "const int pixel = first_row + row;\n"
        "        const int at[] = {box[0] + pixel / (height * width), box[1] + pixel / width % height, box[2] + pixel % width, "
        "first_column + column};\n"
        "        finish(buffers, at, as_bits(sum));"
    )
    num_rows, num_columns = "min_of(all_rows - first_row, Core::kRows)", "min_of(box[7] - first_column, Core::kColumns)"
    return _tile(core, rows, columns, loop, num_rows, num_columns, depth, store)


def _conv2d_by_element(op: Op) -> str:
    x, w = op.inputs[:2]
    attrs = op.attrs
    (_, height, width, _), (kernel_height, kernel_width, channels, outputs) = x.shape, w.shape
    top, _, left, _ = attrs.padding
    return f"""\
  static ASPEN_DEVICE uint32_t own(const Addresses& buffers, [[maybe_unused]] const int* at) {{
    float sum = 0;
    const int first_channel = at[3] / {outputs // attrs.groups} * {channels};
    for (int kh = 0; kh < {kernel_height}; ++kh) {{
      const int y = at[1] * {attrs.strides[0]} - {top} + kh * {attrs.dilation[0]};
      if (y < 0 || y >= {height}) continue;
      for (int kw = 0; kw < {kernel_width}; ++kw) {{
        const int x = at[2] * {attrs.strides[1]} - {left} + kw * {attrs.dilation[1]};
        if (x < 0 || x >= {width}) continue;
        for (int c = 0; c < {channels}; ++c) {{
          sum += as_float({load(op, 0, ("at[0]", "y", "x", "first_channel + c"))}) *
                 as_float({load(op, 1, ("kh", "kw", "c", "at[3]"))});
        }}
      }}
    }}
    return as_bits(sum);
  }}
""" + per_element(op, "own(buffers, at)")


@writes("matmul")
def _matmul(op: Op) -> str:
    a, b = op.inputs[:2]
    labels_a, labels_b = op.attrs.a, op.attrs.b
    rank = len(op.output.shape)
    summed = [label for label in labels_a if label < 0]
    as_, bs = a.view.strides(), b.view.strides()
    rows = [label for label in labels_a if label >= 0 and label not in labels_b]
    columns = [label for label in labels_b if label >= 0 and label not in labels_a]
    if len(summed) == 1 and len(rows) == 1 and columns == [rank - 1] and a.dtype == b.dtype:
        text = _matrix(op, rows[0], as_[labels_a.index(rows[0])], as_[labels_a.index(-1)], bs[labels_b.index(-1)])
        if text is not None and bs[labels_b.index(rank - 1)] == 1:
            return text
    return _matmul_by_element(op)


def _offset(operand: Operand, labels: tuple[int, ...]) -> str:
    """Where a batch entry, at coordinates `first`, begins."""
    return place([f"first[{label}]" if label >= 0 else "0" for label in labels], operand.view.strides())


def _matrix(op: Op, row_axis: int, row_stride: int, depth_stride: int, column_depth_stride: int) -> str | None:
    a, b = op.inputs[:2]
    core, rank = _core(op), len(op.output.shape)
    depth = a.shape[op.attrs.a.index(-1)]
    outer = [s for label, s in zip(op.attrs.a, a.view.strides(), strict=True) if label >= 0]
    outer_b = [s for label, s in zip(op.attrs.b, b.view.strides(), strict=True) if label >= 0 and label != rank - 1]
    row_vector = _vector(a.dtype, depth, *outer, a.view.offset())
    column_vector = _vector(b.dtype, op.output.shape[-1], column_depth_stride, *outer_b, b.view.offset())
    if depth_stride != 1 or row_vector is None or column_vector is None:
        return None
    batch = [axis for axis in range(rank - 1) if axis != row_axis]
    entries = " * ".join(f"(box[{rank + axis}] - box[{axis}])" for axis in batch) or "1"
    steps = []
    for axis in reversed(batch):
        extent = f"(box[{rank + axis}] - box[{axis}])"
        steps.append(f"      first[{axis}] = box[{axis}] + rest % {extent};\n      rest /= {extent};")
    decode = "\n".join(steps)
    loop = f"""\
    const int parts = (box[{2 * rank - 1}] - box[{rank - 1}] + Core::kColumns - 1) / Core::kColumns;
    const int blocks = (box[{rank + row_axis}] - box[{row_axis}] + Core::kRows - 1) / Core::kRows;
    for (int part = 0; part < parts * blocks * {entries}; ++part) {{
      int first[{rank}], rest = part;
      first[{rank - 1}] = box[{rank - 1}] + rest % parts * Core::kColumns;
      rest /= parts;
      first[{row_axis}] = box[{row_axis}] + rest % blocks * Core::kRows;
      rest /= blocks;
{decode}"""
    rows = (
        f"const MatrixRows<{core.element}, {row_vector}> rows{{static_cast<const {core.element}*>(buffers.inputs[0]) + "
        f"{_offset(a, op.attrs.a)}, {row_stride}, {depth}}};"
    )
    columns = (
        f"const MatrixColumns<{core.element}, {column_vector}> columns{{static_cast<const {core.element}*>(buffers.inputs[1]) + "
        f"{_offset(b, op.attrs.b)}, {column_depth_stride}, {depth}}};"
    )
    at = ", ".join(
        f"first[{axis}]" + (" + column" if axis == rank - 1 else " + row" if axis == row_axis else "") for axis in range(rank)
    )
    store = f"const int at[] = {{{at}}};\n        finish(buffers, at, as_bits(sum));"
    num_rows = f"min_of(box[{rank + row_axis}] - first[{row_axis}], Core::kRows)"
    num_columns = f"min_of(box[{2 * rank - 1}] - first[{rank - 1}], Core::kColumns)"
    return _tile(core, rows, columns, loop, num_rows, num_columns, depth, store)


def _matmul_by_element(op: Op) -> str:
    extents = {label: extent for label, extent in zip(op.attrs.a, op.inputs[0].shape, strict=True) if label < 0}
    loops = "\n".join(
        f"    for (int s{-1 - label} = 0; s{-1 - label} < {extent}; ++s{-1 - label})" for label, extent in extents.items()
    )

    def lane(number: int, labels: tuple[int, ...]) -> str:
        return load(op, number, [f"at[{label}]" if label >= 0 else f"s{-1 - label}" for label in labels])

    return f"""\
  static ASPEN_DEVICE uint32_t own(const Addresses& buffers, [[maybe_unused]] const int* at) {{
    float sum = 0;
{loops}
      sum += as_float({lane(0, op.attrs.a)}) * as_float({lane(1, op.attrs.b)});
    return as_bits(sum);
  }}
""" + per_element(op, "own(buffers, at)")
