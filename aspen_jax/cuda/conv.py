"""Convolutions: products whose rows are pixels, for each group; sliding windows where every channel is one; else by element."""

from __future__ import annotations

from aspen_jax.cuda import products
from aspen_jax.cuda.conv_boxes import conv_boxes, tile_by_boxes
from aspen_jax.cuda.conv_by_element import conv_by_element
from aspen_jax.cuda.cores import block_core, core
from aspen_jax.cuda.depthwise import depthwise
from aspen_jax.cuda.kernel import Kernel, writes
from aspen_jax.cuda.products import columns_of, either, tile
from aspen_jax.cuda.tensor_maps import Tensor
from aspen_jax.cuda.vectors import ELEMENTS, vector
from aspen_jax.ir.program import Op, Operand
from aspen_jax.ops.matmul import MATMUL, MatmulAttrs

# With fewer channels a group, in or out, most of what tensor cores multiply would be nothing.
FEWEST_CHANNELS = 4

# Groups of no more columns are multiplied in blocks of so many.
NARROW = 32


@writes("conv2d")
def _conv2d(op: Op) -> Kernel | str | None:
    x, w = op.inputs[:2]
    if op.attrs.groups > 1 and w.shape[2] == 1 and w.shape[3] == op.attrs.groups and x.dtype == w.dtype:
        return depthwise(op)
    product = _as_product(op)
    return products.matmul(product) if product is not None else _products(op) or conv_by_element(op)


@writes("conv2d_slices")
def _conv2d_slices(op: Op) -> str | None:
    return _products(op, op.attrs.slices)


def tensors_of(op: Op) -> tuple[Tensor, Tensor] | None:
    """What a GPU with warpgroups copies in boxes: the input and the weights; None where it does not."""
    product = _as_product(op)
    if product is not None:
        return products.tensors_of(product)
    boxes = conv_boxes(op)
    return None if boxes is None else boxes.maps


def box_of_pixels(op: Op) -> tuple[int, int, int] | None:
    """Images, lines and pixels that are the rows of a block; None where any pixels of a tile can be."""
    boxes = conv_boxes(op) if _as_product(op) is None else None
    return None if boxes is None else boxes.pixels


def _as_product(op: Op) -> Op | None:
    """A convolution by single pixels as a product, whose blocks of rows need not be boxes; None where no maps describe it."""
    x, w = op.inputs[:2]
    attrs = op.attrs
    if op.family.name != "conv2d" or w.shape[:2] != (1, 1) or attrs.groups > 1 or any(attrs.padding) or max(attrs.strides) > 1:
        return None
    matrix = w.view.reshape(w.shape[2:])
    if matrix is None:
        return None
    operands = (x, Operand(w.value, matrix), *op.extra_inputs)
    product = op.replace(family=MATMUL, attrs=MatmulAttrs((0, 1, 2, -1), (-1, 3)), inputs=operands)
    return None if products.tensors_of(product) is None else product


def _products(op: Op, slices: int = 0) -> str | None:
    """As products of gathered rows, for each group, or for each slice of the depth; None where strides forbid it."""
    x, w = op.inputs[:2]
    attrs, element = op.attrs, ELEMENTS[op.inputs[0].dtype.name]
    (_, height, width, _), (kernel_height, kernel_width, channels, outputs) = x.shape, w.shape
    strides, per_group = x.view.strides(), outputs // attrs.groups
    depth = kernel_height * kernel_width * channels
    # A walk along the depth must find the weights of one column one row after the other.
    expected, follows = outputs, w.view.strides()[3] == 1 or outputs == 1
    for extent, stride in reversed([*zip(w.shape, w.view.strides(), strict=True)][:3]):
        follows = follows and (extent == 1 or stride == expected)
        expected *= extent
    if x.dtype != w.dtype or not follows or (strides[3] != 1 and x.shape[3] > 1) or not depth:
        return None
    if attrs.groups > 1 and min(channels, per_group) < FEWEST_CHANNELS:
        return None
    row_vector = vector(x.dtype, channels, *strides[:3], x.view.offset())
    column_vector = vector(w.dtype, outputs, per_group, w.view.offset())
    top, _, left, _ = attrs.padding
    # Axes of the output: the slices, then n, y, x and c.
    rank = len(op.output.shape)
    n, y, x_axis, c = range(rank - 4, rank)
    begin, end = columns_of(c, rank, column_vector)
    length = attrs.length(depth) if slices else depth
    rows = (
        f"const ConvRows<{element}, {row_vector}> {'gathered' if slices else 'rows'}"
        f"{{static_cast<const {element}*>(buffers.inputs[0])"
        f"{f' + group * {channels}' if attrs.groups > 1 else ''}, "
        f"{strides[0]}, {strides[1]}, {strides[2]}, {height}, {width}, {channels}, {kernel_width}, {depth}, "
        f"{attrs.strides[0]}, {attrs.strides[1]}, {attrs.dilation[0]}, {attrs.dilation[1]}, {top}, {left}, "
        f"box[{n}], box[{y}], box[{x_axis}], height, width, first_row}};"
    )
    weights = f"static_cast<const {element}*>(buffers.inputs[1]) + first_column"
    if slices:
        rows = f"const int first_k = slice * {length}, last_k = min_of(first_k + {length}, {depth});\n      {rows}"
        rows += "\n      const auto rows = slice_of_rows(gathered, first_k, last_k);"
        weights += f" + int64_t{{first_k}} * {outputs}"
    columns = (
        f"const MatrixColumns<{element}, {column_vector}> columns{{{weights}, {outputs}, "
        f"{'last_k - first_k' if slices else depth}}};"
    )
    loop = f"""\
    const int height = box[{rank + y}] - box[{y}], width = box[{rank + x_axis}] - box[{x_axis}];
    const int all_rows = (box[{rank + n}] - box[{n}]) * height * width;
    const int blocks = (all_rows + Core::kRows - 1) / Core::kRows;
"""
    if attrs.groups > 1:
        loop += f"""\
    const int first_group = box[{c}] / {per_group}, groups = (box[{rank + c}] + {per_group - 1}) / {per_group} - first_group;
    const int parts = ({per_group} + Core::kColumns - 1) / Core::kColumns;
    for (int part = 0; part < parts * blocks * groups; ++part) {{
      const int group = first_group + part / parts / blocks;
      const int last_column = min_of({end}, (group + 1) * {per_group}), own_column = group * {per_group};
      const int first_column = (own_column > {begin} ? own_column : {begin}) + part % parts * Core::kColumns;
      const int first_row = part / parts % blocks * Core::kRows;
      if (first_column >= last_column) continue;"""
        end = "last_column"
    else:
        times = f" * (box[{rank}] - box[0])" if slices else ""
        own = "\n      const int slice = box[0] + part / parts / blocks;" if slices else ""
        loop += f"""\
    const int parts = ({end} - {begin} + Core::kColumns - 1) / Core::kColumns;
    for (int part = 0; part < parts * blocks{times}; ++part) {{
      const int first_column = {begin} + part % parts * Core::kColumns;
      const int first_row = part / parts{" % blocks" if slices else ""} * Core::kRows;{own}"""
    at = [f"box[{n}] + pixel / (height * width)", f"box[{y}] + pixel / width % height", f"box[{x_axis}] + pixel % width"]
    coordinates = (
        "const int pixel = first_row + row;\n"
        f"        int at[] = {{{', '.join([*(['slice'] if slices else []), *at])}, first_column + column}};"
    )
    num_rows, num_columns = "min_of(all_rows - first_row, Core::kRows)", f"min_of({end} - first_column, Core::kColumns)"
    pixels = op.output.size // max(outputs, 1) // max(slices, 1)
    if attrs.groups > 1 and per_group <= NARROW:
        multiplies = core(op, pixels, columns=NARROW, warps=4 if pixels > 16 else 2)
    else:
        multiplies = block_core(op, pixels, length, min(row_vector, column_vector))
    by_threads = tile(op, multiplies, f"      {rows}\n      {columns}", loop, num_rows, num_columns, str(length), coordinates, c)
    boxes = conv_boxes(op)
    return by_threads if boxes is None else either(tile_by_boxes(op, boxes), by_threads)
