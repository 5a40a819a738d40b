"""Matrix products: by cuda/kernels/product.h, or by cuda/kernels/few_rows.h where there are few rows.

Any axes in any order: the summed ones must be walked by one stride on both sides, else a thread computes an element by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from aspen_jax.cuda.cores import Core, block_core
from aspen_jax.cuda.few_rows import FewRowsShape, few_rows
from aspen_jax.cuda.kernel import Kernel, template, writes
from aspen_jax.cuda.lanes import place
from aspen_jax.cuda.matrices import Matrices, Side
from aspen_jax.cuda.product_by_element import product_by_element
from aspen_jax.cuda.runs import run_function, run_length
from aspen_jax.cuda.tensor_maps import Tensor, tensors
from aspen_jax.cuda.vectors import ELEMENTS
from aspen_jax.ir.program import Op

# What is done with an element of a product is given, or with a run of them.
VISITED = "[[maybe_unused]] int row, [[maybe_unused]] int column, float sum"
_VISITED_RUN = "[[maybe_unused]] int row, [[maybe_unused]] int column, const float* sums, [[maybe_unused]] int count"


# What a block holds in shared memory.
COPIED_BY_THREADS = "  using Memory = ProductMemory<Core, Core::kStages>;"
COPIED_IN_BOXES = "  using Memory = TensorMemory<Core, Core::kStages>;"


def tile(
    op: Op,
    core: Core,
    operands: str,
    loop: str,
    num_rows: str,
    num_columns: str,
    depth: str,
    at: str,
    column: int | None,
    memory: str = COPIED_BY_THREADS,
) -> str:
    """A tile function that goes through `loop`, for each with its own `rows` and `columns`, which `operands` declares.

    `at` declares the coordinates of the element at `row` and `column`, and returns where that row is not the tile's. Columns are
    the output's axis `column`, if any; what comes before the box was read only for whole vectors.
    """
    count, functions, store = _stored(op, column)
    return f"""\
{functions}
  using Core = {template(core)};
  static constexpr int kThreads = Core::kThreads;
{memory}
  static ASPEN_DEVICE void tile(const Addresses& buffers, [[maybe_unused]] const int32_t* box, Memory& memory) {{
{loop}
{operands}
      multiply_tile<{count}>(memory, rows, columns, {num_rows}, {num_columns}, {depth}, [&]({_VISITED_RUN}) {{
        {at}
        {store}
      }});
    }}
  }}"""


def _stored(op: Op, column: int | None) -> tuple[int, str, str]:
    """How many adjacent sums are stored at once, functions for that, and what is done with `count` sums from `at` on."""
    if column is None:
        return 1, "", "finish(buffers, at, as_bits(sums[0]));"
    first = f"at[{column}]"
    one = f"if ({first} >= box[{column}]) finish(buffers, at, as_bits(sums[i]));"
    by_element = f"for (int i = 0; i < count; ++i, ++{first}) {{\n          {one}\n        }}"
    run = run_length(op, *(item.dtype for item in op.extra_inputs)) if column == len(op.output.shape) - 1 else 1
    if run == 1:
        return 1, "", by_element
    whole = f"count == {run} && {first} % {run} == 0 && {first} >= box[{column}]"
    by_run = f"if ({whole}) {{\n          run(buffers, at, Sums{{sums}});\n          return;\n        }}\n        {by_element}"
    return run, run_function(op, run), by_run


def either(warpgroups: str, others: str) -> str:
    """Lines for GPUs that multiply by warpgroups, and for others."""
    return f"#ifdef ASPEN_HAS_WARPGROUPS\n{warpgroups}\n#else\n{others}\n#endif"


def tensors_of(op: Op) -> tuple[Tensor, Tensor] | None:
    """What a GPU with warpgroups copies in boxes: the rows and the columns of a product; None where it does not."""
    matrices = Matrices.of(op)
    if matrices is None:
        return None
    across = matrices.columns_vector(op)
    columns = matrices.right.vector_along(matrices.depth) if across is None else across
    vector = min(matrices.left.vector_along(matrices.depth), columns)
    return tensors(op, matrices, vector, along_depth=across is None)


def data(side: Side, element: str) -> str:
    """The elements of an operand."""
    return f"static_cast<const {element}*>(buffers.inputs[{side.number}])"


def offset(strides: dict[int, int], coordinates: dict[int, str]) -> str:
    """Where these coordinates of the output's axes lead; others do not matter."""
    axes = [axis for axis in strides if axis in coordinates]
    return place([coordinates[axis] for axis in axes], [strides[axis] for axis in axes])


def decoded(axes: Sequence[int], number: str, rank: int) -> tuple[list[str], dict[int, str]]:
    """C++ that takes a number apart into coordinates of a box along these axes, the last fastest; and their names."""
    lines, names = [f"[[maybe_unused]] int rest = {number};"], {}
    for axis in reversed(axes):
        names[axis] = f"x{axis}"
        digit = "rest" if axis == axes[0] else f"rest % (box[{rank + axis}] - box[{axis}])"
        lines.append(f"[[maybe_unused]] const int x{axis} = box[{axis}] + {digit};")
        if axis != axes[0]:
            lines.append(f"rest /= box[{rank + axis}] - box[{axis}];")
    return lines, names


def extent(axes: Sequence[int], rank: int) -> str:
    """The elements of a box along axes."""
    return " * ".join(f"(box[{rank + axis}] - box[{axis}])" for axis in axes) or "1"


def columns_of(axis: int | None, rank: int, vector: int) -> tuple[str, str]:
    """Where a box's columns begin and end, those before it that are read only for whole vectors included."""
    if axis is None:
        return "0", "1"
    return f"box[{axis}] / {vector} * {vector}" if vector > 1 else f"box[{axis}]", f"box[{rank + axis}]"


@writes("matmul")
def matmul(op: Op) -> Kernel | str:
    """A product of any axes in any order."""
    matrices = Matrices.of(op)
    if matrices is None or matrices.depth < 1:
        return product_by_element(op)
    few = FewRowsShape.of(op, matrices)
    if few is not None:
        return few_rows(op, few)
    rank, left, right = len(op.output.shape), matrices.left, matrices.right
    dtype = left.operand.dtype.name
    element, across = ELEMENTS[dtype], matrices.columns_vector(op)
    row_vector, line_vector = left.vector_along(matrices.depth), right.vector_along(matrices.depth)
    outer, names = decoded(matrices.outer, "part", rank)
    row_lines, row_names = decoded(matrices.rows, "first_row + row", rank)
    column = matrices.column
    begin, end = columns_of(column, rank, across or 1)
    at = {axis: f"box[{axis}]" for axis in range(rank)} | names | row_names
    if column is not None:
        at[column] = "first_column + column"
    coordinates = f"{' '.join(row_lines)}\n        int at[{rank + 1}] = {{{', '.join(at[axis] for axis in range(rank))}}};"
    place_rows = (
        f"const auto place = [&]([[maybe_unused]] int row) {{ {' '.join(row_lines)} "
        f"return int64_t{{{offset(left.strides, row_names)}}}; }};"
    )
    left_data = f"{data(left, element)} + {offset(left.strides, names)}"
    first = {**names, **({} if column is None else {column: "first_column"})}
    right_data = f"{data(right, element)} + {offset(right.strides, first)}"
    column_stride = 0 if column is None else right.strides[column]
    maps, memory = tensors_of(op), COPIED_BY_THREADS
    loop = f"""\
    const int blocks = (all_rows + Core::kRows - 1) / Core::kRows;
    for (int all = 0; all < parts * blocks * {extent(matrices.outer, rank)}; ++all) {{
      const int first_row = all / parts % blocks * Core::kRows;
      const int num_rows = min_of(all_rows - first_row, Core::kRows);"""
    if maps is not None and len(matrices.rows) > 1:
        loop = either(_loop_by_runs(op, matrices), loop)
    loop = f"""\
    const int all_rows = {extent(matrices.rows, rank)}, parts = ({end} - {begin} + Core::kColumns - 1) / Core::kColumns;
{loop}
      const int first_column = {begin} + all % parts * Core::kColumns;
      [[maybe_unused]] const int part = all / parts / blocks;
      {" ".join(outer)}"""
    rows = (
        f"{place_rows}\n      const auto rows = "
        f"placed_rows<{element}, {row_vector}>({left_data}, place, {left.step}, {matrices.depth});"
    )
    if across is not None:
        columns = f"const MatrixColumns<{element}, {across}> columns{{{right_data}, {right.step}, {matrices.depth}}};"
    else:
        columns = (
            f"const auto columns = placed_rows<{element}, {line_vector}>({right_data}, "
            f"[](int column) {{ return int64_t{{column}} * {column_stride}; }}, {right.step}, {matrices.depth});"
        )
    num_columns = f"min_of({end} - first_column, Core::kColumns)"
    shared = min(row_vector, line_vector if across is None else across)
    multiplies = block_core(op, matrices.num_rows(op), matrices.depth, shared, along_depth=across is None)
    operands = f"      {rows}\n      {columns}"
    if maps is not None:
        memory, operands = either(COPIED_IN_BOXES, memory), either(_boxes(op, matrices, maps, names), operands)
    return tile(op, multiplies, operands, loop, "num_rows", num_columns, str(matrices.depth), coordinates, column, memory)


def _loop_by_runs(op: Op, matrices: Matrices) -> str:
    """Blocks of rows that are lines of one tensor: of a box's rows by several axes so many as follow each other there."""
    rank, run = len(op.output.shape), ""
    for axis in matrices.rows:  # what is outside counts where all inside is in the box
        own = extent([axis], rank)
        run = f"{own} * ({own} == {op.output.shape[axis]} ? {run} : 1)" if run else own
    return f"""\
    const int rows_of_run = {run};
    const int blocks_of_run = (rows_of_run + Core::kRows - 1) / Core::kRows, blocks = all_rows / rows_of_run * blocks_of_run;
    for (int all = 0; all < parts * blocks * {extent(matrices.outer, rank)}; ++all) {{
      const int row_of_run = all / parts % blocks_of_run * Core::kRows;
      const int first_row = all / parts % blocks / blocks_of_run * rows_of_run + row_of_run;
      const int num_rows = min_of(rows_of_run - row_of_run, Core::kRows);"""


def _boxes(op: Op, matrices: Matrices, maps: tuple[Tensor, Tensor], outer: dict[int, str]) -> str:
    """The first boxes of a block's rows and columns."""
    rank, shape = len(op.output.shape), op.output.shape
    lines, names = decoded(matrices.rows, "first_row", rank)
    numbers = [math.prod(shape[inner] for inner in matrices.rows[i + 1 :]) for i in range(len(matrices.rows))]
    number = " + ".join(f"{names[axis]} * {count}" for axis, count in zip(matrices.rows, numbers, strict=True))
    rows = maps[0].boxes(0, ("0", f"[&] {{ {' '.join(lines)} return {number}; }}()"), outer)
    columns = maps[1].boxes(1, ("first_column", "0") if maps[1].depth_axis else ("0", "first_column"), outer)
    return f"      const auto rows = {rows};\n      const auto columns = {columns};"
