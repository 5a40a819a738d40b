"""Convolutions: products with gathered rows, sliding windows where every channel is a group, else element by element."""

from __future__ import annotations

from aspen_jax.cuda.depthwise import depthwise
from aspen_jax.cuda.lanes import load
from aspen_jax.cuda.products import columns_of, core, tile
from aspen_jax.cuda.source import own, per_element, writes
from aspen_jax.cuda.vectors import ELEMENTS, vector
from aspen_jax.program import Op


@writes("conv2d")
def _conv2d(op: Op) -> str:
    x, w = op.inputs[:2]
    attrs, element = op.attrs, ELEMENTS[op.inputs[0].dtype.name]
    (_, height, width, _), (kernel_height, kernel_width, channels, outputs) = x.shape, w.shape
    strides = x.view.strides()
    if attrs.groups > 1 and channels == 1 and outputs == attrs.groups and x.dtype == w.dtype:
        return depthwise(op)
    depth = kernel_height * kernel_width * channels
    # A walk along the depth must find the weights of one column one row after the other.
    expected, follows = outputs, w.view.strides()[3] == 1 or outputs == 1
    for extent, stride in reversed([*zip(w.shape, w.view.strides(), strict=True)][:3]):
        follows = follows and (extent == 1 or stride == expected)
        expected *= extent
    if attrs.groups > 1 or x.dtype != w.dtype or not follows or (strides[3] != 1 and channels > 1) or not depth:
        return _by_element(op)
    row_vector = vector(x.dtype, channels, *strides[:3], x.view.offset())
    column_vector = vector(w.dtype, outputs, w.view.offset())
    top, _, left, _ = attrs.padding
    rows = (
        f"const ConvRows<{element}, {row_vector}> rows{{static_cast<const {element}*>(buffers.inputs[0]), "
        f"{strides[0]}, {strides[1]}, {strides[2]}, {height}, {width}, {channels}, {kernel_width}, {depth}, "
        f"{attrs.strides[0]}, {attrs.strides[1]}, {attrs.dilation[0]}, {attrs.dilation[1]}, {top}, {left}, "
        "box[0], box[1], box[2], box[5] - box[1], box[6] - box[2], first_row};"
    )
    columns = (
        f"const MatrixColumns<{element}, {column_vector}> columns{{static_cast<const {element}*>(buffers.inputs[1]) + "
        f"first_column, {outputs}, {depth}}};"
    )
    begin, end, skip = columns_of(3, 4, column_vector)
    loop = f"""\
    const int height = box[5] - box[1], width = box[6] - box[2];
    const int all_rows = (box[4] - box[0]) * height * width;
    for (int part = 0, parts = ({end} - {begin} + Core::kColumns - 1) / Core::kColumns,
         blocks = (all_rows + Core::kRows - 1) / Core::kRows; part < parts * blocks; ++part) {{
      const int first_column = {begin} + part % parts * Core::kColumns, first_row = part / parts * Core::kRows;"""
    store = (
        f"{skip}const int pixel = first_row + row;\n"
        "        const int at[] = {box[0] + pixel / (height * width), box[1] + pixel / width % height, box[2] + pixel % width, "
        "first_column + column};\n"
        "        finish(buffers, at, as_bits(sum));"
    )
    num_rows, num_columns = "min_of(all_rows - first_row, Core::kRows)", f"min_of({end} - first_column, Core::kColumns)"
    pixels = op.output.size // max(outputs, 1)
    return tile(core(op, pixels), rows, columns, loop, num_rows, num_columns, depth, store)


def _by_element(op: Op) -> str:
    x, w = op.inputs[:2]
    attrs = op.attrs
    (_, height, width, _), (kernel_height, kernel_width, channels, outputs) = x.shape, w.shape
    top, _, left, _ = attrs.padding
    lines = f"""\
float sum = 0;
const int first_channel = at[3] / {max(outputs // attrs.groups, 1)} * {channels};
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
return as_bits(sum);"""
    return own(lines.splitlines()) + per_element(op, "own(buffers, at)")
