"""Attention whose row program is a softmax, whatever is masked, scaled or added before, and slices of such.

Both are cuda/kernels/attention.h. Anything else is taken apart into the three ops that it is (`unfused`).
"""

from __future__ import annotations

from aspen_jax.cuda.kernel import writes
from aspen_jax.cuda.lanes import load, statements
from aspen_jax.cuda.products import VISITED, Matrices, Side, columns_of, core, data, decoded, extent, offset
from aspen_jax.cuda.vectors import ELEMENTS, STORED, vector
from aspen_jax.ir.program import Op, Program
from aspen_jax.ops.attention import ATTENTION, parts_of
from aspen_jax.ops.attention_slices import NUMBERS, attention_of
from aspen_jax.ops.block_program import BlockProgram
from aspen_jax.ops.softmax import softmax_of

# Of shared memory, which compute capability 8.0 has and later data-centre devices too.
_MOST_BYTES = 160 << 10

_KEYS = 64  # at a time
_MOST_COLUMNS = 128

_NARROW = {"float32": "weight", "bfloat16": "BFloat16::narrowed(weight)", "float16": "narrowed_f16(weight)"}


def unfused(program: Program) -> Program:
    """The program with attention that has no kernel of its own as product, row program and product."""
    ops: list[Op] = []
    for op in program.ops:
        ops += parts_of(op) if op.family is ATTENTION and _attention(op) is None else (op,)
    return program.replace(ops=tuple(ops))


@writes("attention")
def _attention(op: Op) -> str | None:
    logits = softmax_of(parts_of(op)[1].attrs.rows)
    return None if logits is None else _attend(op, op, logits)


@writes("attention_slices")
def _attention_slices(op: Op) -> str | None:
    whole = attention_of(op)
    (logits,) = parts_of(whole)[1].attrs.rows.stages
    return _attend(op, whole, logits.program)


def _attend(op: Op, whole: Op, logits: BlockProgram) -> str | None:
    """The attention `whole`, which is `op` or what that is the slices of; `logits` are what the softmax takes."""
    scores, rows, values = parts_of(whole)
    attrs, rank = op.attrs, len(op.output.shape)
    is_sliced, last, chained = op is not whole, len(attrs.shape) - 1, attrs.values_chained
    # The slices are an axis of the output before those of the attention.
    labels = [tuple(label + (is_sliced and label >= 0) for label in own) for own in (values.attrs.a, values.attrs.b)]
    matrices = Matrices.of(scores)
    v = values.main_inputs[1 - chained]
    dtype = v.dtype.name
    if matrices is None or matrices.depth < 1 or dtype not in ELEMENTS or not op.output.size:
        return None
    if {scores.output.dtype.name, rows.output.dtype.name} != {"float32"} or matrices.left.operand.dtype != v.dtype:
        return None
    if last not in matrices.right.strides or (last - 1 not in matrices.left.strides and attrs.shape[last - 1] != 1):
        return None
    # Numbers of the inputs of the parts among those of the op.
    rows_first = attrs.scores_inputs
    values_first = rows_first + attrs.rows_inputs - 1
    rows_numbers = [rows_first + k - (k > attrs.rows_chained) for k in range(attrs.rows_inputs)]

    # Axes of the output: where those of the scores are, the queries' rows, and the columns of the values.
    out_axes = labels[chained][:last]
    row_axis = out_axes[last - 1]
    v_strides = {
        label: stride
        for label, size, stride in zip(labels[1 - chained], v.shape, v.view.strides(), strict=True)
        if label >= 0 and size != 1
    }
    own = [axis for axis in sorted(v_strides) if axis not in out_axes]
    column = rank - 1 if is_sliced else own[-1] if own else None
    summed = labels[1 - chained].index(labels[chained][last])
    right = Side(values_first, v, v_strides, v.view.strides()[summed])
    outer_axes = tuple(a for a, size in enumerate(op.output.shape) if size != 1 and a not in (row_axis, column))
    outer, names = decoded(outer_axes, "part", rank)
    scores_names = {axis: names[out] for axis, out in enumerate(out_axes) if out in names}
    scores_at = [scores_names.get(axis, f"box[{out}]") for axis, out in enumerate(out_axes)]
    scores_at[last - 1] = "first_row + row"

    element, length = ELEMENTS[dtype], attrs.shape[last]
    queries, keys = matrices.left, matrices.right
    num_columns = 1 if column is None else v.shape[labels[1 - chained].index(column)]
    keys_along = keys.step == 1 or keys.strides[last] != 1
    columns_stride = 0 if column is None else right.strides.get(column, 0)
    values_along = columns_stride != 1
    others = [stride for axis, stride in keys.strides.items() if axis != last]
    keys_vector = (
        keys.vector_along(matrices.depth)
        if keys_along
        else vector(v.dtype, length, keys.step, *others, keys.operand.view.offset())
    )
    others = [stride for axis, stride in right.strides.items() if axis != column]
    values_vector = right.vector_along(length)
    if not values_along:
        values_vector = vector(v.dtype, num_columns, right.step, *others, v.view.offset())
    width = _MOST_COLUMNS if num_columns > 64 and not (dtype == "float32" and op.exact) else 64

    def cores(num_rows: int) -> tuple[str, str]:
        # More sums than 32 a thread, beside the scores, would not stay in registers.
        like, warps = op.replace(inputs=(v,)), 8 if width > 64 and num_rows > 16 else 4
        return (
            core(like, num_rows, along_depth=keys_along, columns=_KEYS, warps=warps),
            core(like, num_rows, along_depth=values_along, columns=width, warps=warps),
        )

    def nbytes(num_rows: int) -> int:
        depth, size = (16, 4) if dtype == "float32" else (32, 2)
        row, chunks, own_chunks = depth + 16 // size, -(-matrices.depth // depth), _KEYS // depth
        key_elements = _KEYS * row if keys_along else depth * (_KEYS + 8)
        value_elements = width * row if values_along else depth * (width + 8)
        elements = chunks * (num_rows * row + key_elements) + own_chunks * (num_rows * row + value_elements)
        return elements * size + num_rows * (_KEYS + 4) * 4

    asked = attrs.shape[last - 1]
    smallest = 32 if dtype == "float32" and op.exact else 16
    sizes = [size for size in (64, 32, 16) if size >= smallest and (size == smallest or size < 2 * asked)]
    fitting = [size for size in sizes if nbytes(size) <= _MOST_BYTES]
    if not fitting:
        return None
    scores_core, values_core = cores(fitting[0])

    at_scores = [f"at[{axis}]" for axis in range(last + 1)]
    lines, result = ["const uint32_t score = sum;"], "score"
    if scores.program is not None:
        registers = ["score", *(load(op, k, at_scores) for k in range(2, attrs.scores_inputs))]
        inner, result = statements(scores.program, registers)
        lines += ["uint32_t scored;", "{", *inner, f"scored = {result};", "}"]
        result = "scored"
    registers = [result if k == attrs.rows_chained else load(op, number, at_scores) for k, number in enumerate(rows_numbers)]
    inner, result = statements(logits, registers)
    lines += [*inner, f"return {result};"]
    score = "\n".join(f"    {line}" for line in lines)

    extras = [values_first + 1 + k for k in range(len(values.inputs) - 2)]
    out_at = [f"at[{axis}]" for axis in range(rank)]
    lines, result = [], "own"
    if values.program is not None:
        lines, result = statements(values.program, ["own", *(load(op, number, out_at) for number in extras)])
    begin, end, skip = columns_of(column, rank, 1 if values_along else values_vector)
    first_key, num_keys, own_sum = "0", f"{length}", "sum / total"
    if is_sliced:
        # A box may lie behind the columns; one of them is computed all the same.
        unit, own_sum = 1 if values_along else values_vector, "sum"
        begin, end = (
            f"min_of(box[{rank - 1}], {num_columns - 1}) / {unit} * {unit}",
            f"min_of(box[{2 * rank - 1}], {num_columns})",
        )
        skip = f"if (first_column + column < box[{rank - 1}]) return;\n            "
        first_key, num_keys = f"{names.get(0, 'box[0]')} * {attrs.length}", f"min_of({length} - first_key, {attrs.length})"
    at = {axis: f"box[{axis}]" for axis in range(rank)} | names | {row_axis: "first_row + row"}
    totals = "[](int, float, float) {}"
    if is_sliced:
        place = ", ".join(at[axis] for axis in range(rank - 1))
        totals = f"""\
[&](int row, float most, float total) {{
            ASPEN_UNROLL for (int number = 0; number < {NUMBERS}; ++number) {{
              const int at[] = {{{place}, {num_columns} + number}};
              if (at[{rank - 1}] < box[{rank - 1}] || at[{rank - 1}] >= box[{2 * rank - 1}]) continue;
              store(buffers, at, as_bits(number == 0 ? most : total));
            }}
          }}"""
    if column is not None:
        at[column] = "first_column + column"
    first = {last - 1: "first_row"} | scores_names
    value_first = {**names, **({} if column is None else {column: "first_column"})}
    keys_data, values_data = (
        f"{data(side, element)} + int64_t{{first_key}} * {stride} + {offset(side.strides, coordinates)}"
        for side, stride, coordinates in ((keys, keys.strides[last], scores_names), (right, right.step, value_first))
    )
    keys_type = (
        f"placed_rows<{element}, {keys_vector}>({keys_data}, "
        f"[](int key) {{ return int64_t{{key}} * {keys.strides[last]}; }}, {keys.step}, {matrices.depth})"
        if keys_along
        else f"MatrixColumns<{element}, {keys_vector}>{{{keys_data}, {keys.step}, {matrices.depth}}}"
    )
    values_type = (
        f"placed_rows<{element}, {values_vector}>({values_data}, "
        f"[](int column) {{ return int64_t{{column}} * {columns_stride}; }}, {right.step}, num_keys)"
        if values_along
        else f"MatrixColumns<{element}, {values_vector}>{{{values_data}, {right.step}, num_keys}}"
    )
    return f"""\
  static ASPEN_DEVICE uint32_t score([[maybe_unused]] const Addresses& buffers, [[maybe_unused]] const int* at, uint32_t sum) {{
{score}
  }}
  using Own = Attention<{scores_core}, {values_core}, {matrices.depth}, {str(attrs.reach < length).lower()}>;
  static constexpr int kThreads = Own::kThreads;
  using Memory = Own::Memory;
  static ASPEN_DEVICE void tile(const Addresses& buffers, [[maybe_unused]] const int32_t* box, Memory& memory) {{
    const int parts = ({end} - {begin} + Own::kColumns - 1) / Own::kColumns;
    const int blocks = (box[{rank + row_axis}] - box[{row_axis}] + Own::kRows - 1) / Own::kRows;
    for (int all = 0; all < parts * blocks * {extent(outer_axes, rank)}; ++all) {{
      const int first_column = {begin} + all % parts * Own::kColumns;
      const int first_row = box[{row_axis}] + all / parts % blocks * Own::kRows;
      [[maybe_unused]] const int part = all / parts / blocks;
      {" ".join(outer)}
      const int first_key = {first_key}, num_keys = {num_keys};
      const auto queries = placed_rows<{element}, {queries.vector_along(matrices.depth)}>(
          {data(queries, element)} + {offset(queries.strides, first)},
          [](int row) {{ return int64_t{{row}} * {queries.strides.get(last - 1, 0)}; }}, {queries.step}, {matrices.depth});
      const auto keys = {keys_type};
      const auto values = {values_type};
      const int num_rows = min_of(box[{rank + row_axis}] - first_row, Own::kRows);
      Own::attend(
          memory, queries, keys, values, num_rows, num_keys, min_of({end} - first_column, Own::kColumns),
          Own::Mask{{min_of(num_keys, first_row + num_rows - 1 + {attrs.reach}), 0x1p{attrs.exponent}f}},
          [&](int row, int key, uint32_t sum) {{
            const int at[] = {{{", ".join([*scores_at[:last], "first_key + key"])}}};
            return score(buffers, at, sum);
          }},
          [](float weight) {{ return {_NARROW[dtype]}; }},
          [](const {element}& element) {{ return as_float({STORED[dtype]}::load(&element, 0)); }},
          {totals},
          [&]({VISITED}, [[maybe_unused]] float total) {{
            {skip}const int at[] = {{{", ".join(at[axis] for axis in range(rank))}}};
            store(buffers, at, as_bits({own_sum}));
          }});
    }}
  }}
  static ASPEN_DEVICE void store(const Addresses& buffers, const int* at, uint32_t own) {{
{chr(10).join(f"    {line}" for line in [*lines, f"finish(buffers, at, {result});"])}
  }}"""
