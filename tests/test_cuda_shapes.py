"""Shapes of CUDA kernels: what Python decides of them, and that C++ has the same fields."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.cuda import (
    attention,
    concatenate,
    conv_by_element,
    cumulative,
    depthwise,
    elementwise,
    few_rows,
    gather,
    matrices,
    pad,
    pool,
    product_by_element,
    rows,
    scatter,
)
from aspen_jax.cuda.cores import FmaCore, MmaCore
from aspen_jax.cuda.kernel import FAMILIES, Kernel, Strides, constant
from tests.cuda_check import ops_of

HEADERS = Path(__file__).parents[1] / "cuda" / "kernels"

SHAPES = [
    Strides,
    attention.AttentionShape,
    concatenate.ConcatenateShape,
    conv_by_element.ConvShape,
    cumulative.CumulativeShape,
    depthwise.DepthwiseShape,
    elementwise.ElementwiseShape,
    few_rows.FewRowsShape,
    gather.GatherShape,
    matrices.Axes,
    matrices.MatrixShape,
    pad.PadShape,
    pool.PoolShape,
    product_by_element.SumShape,
    rows.RowsShape,
    scatter.ScatterShape,
]


def arrays(*shapes, dtype: Any = np.float32):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def op_of(function, operands, family):
    """The only op of a family in a function."""
    (op,) = (op for op in ops_of(function, operands) if op.family.name == family)
    return op


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_fields_are_those_of_the_struct_in_their_order(shape):
    text = "\n".join(file.read_text() for file in sorted(HEADERS.glob("*.h")))
    (body,) = re.findall(rf"^struct {shape.__name__} {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)
    declarations = [line.split("//")[0].strip() for line in body.splitlines()]
    fields = [
        re.sub(r"\[.*?\]", "", name).strip()
        for line in declarations
        if line
        for name in line.rstrip(";").split(" ", 1)[1].split(",")
    ]
    assert fields == [field.name for field in dataclasses.fields(shape)]


def test_constants_are_initializers():
    assert constant(Strides(2, (-7, 1))) == "Strides{.rank = 2, .of = {-7, 1}}"
    assert constant((True, (), 1 << 40)) == "{true, {}, 1099511627776}"


def test_pooling_counts_the_places_between_elements():
    def function(x):
        padding = ((0, 0), (1, 2))
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 2), padding, base_dilation=(1, 2), window_dilation=(1, 4))

    shape = pool.PoolShape.of(op_of(function, arrays((300, 70)), "pool"), start=5)
    assert shape == pool.PoolShape(2, (1, 3), (1, 2), (0, 1), (1, 4), (1, 2), (300, 139), 5)


def test_padding_counts_the_places_between_elements():
    def function(x):
        return lax.pad(x, np.float32(0), ((1, 2, 0), (-3, 1, 2)))

    assert pad.PadShape.of(op_of(function, arrays((300, 70)), "pad")) == pad.PadShape(2, (1, -3), (1, 3), (300, 208))


def test_runs_of_a_concatenation_lie_in_one_piece():
    def shape(axis, *shapes):
        operands = arrays(*shapes)
        return concatenate.ConcatenateShape.of(op_of(lambda *x: jnp.concatenate(x, axis), operands, "concatenate"))

    assert shape(0, (30, 64), (7, 64)) == concatenate.ConcatenateShape(0, 4)
    assert shape(1, (300, 64), (300, 32)) == concatenate.ConcatenateShape(1, 4)
    assert shape(1, (300, 62), (300, 34)) == concatenate.ConcatenateShape(1, 2)
    assert shape(1, (300, 63), (300, 33)) == concatenate.ConcatenateShape(1, 1)


def test_gathering():
    def function(x, i):
        return x.at[:, i].get(mode="fill", fill_value=-1.0)

    operands = [*arrays((30, 40, 64)), *arrays((50,), dtype=np.int32)]
    bits = int(np.float32(-1).view(np.uint32))
    expected = gather.GatherShape(3, 1, (0, -1, 2), (0, 39, 0), (1,), fills=True, fill=bits, run=4)
    assert gather.GatherShape.of(op_of(function, operands, "gather")) == expected


def test_running_results():
    op = op_of(lambda x: lax.cumsum(x, 1, reverse=True), arrays((300, 70)), "cumulative")
    assert cumulative.CumulativeShape.of(op) == cumulative.CumulativeShape(1, 70, reverse=True)


def team(shape, axes):
    own = rows.RowsShape.of(shape, axes)
    assert own.threads == 256
    return own.lanes, own.warps


def test_rows_are_walked_by_a_block_a_warp_or_a_thread():
    shape = rows.RowsShape.of((2, 9, 7, 11), (1, 2))
    assert (shape.rank, shape.across, shape.along) == (4, matrices.Axes(2, (0, 3)), matrices.Axes(2, (1, 2)))
    assert (shape.extents, shape.length) == ((9, 7), 63)
    assert team((128, 768), (1,)) == (32, 8)
    assert team((9000, 768), (1,)) == (32, 1)
    assert team((9000, 9), (1,)) == (16, 1)
    # Neighbouring threads take neighbouring rows.
    assert team((128, 768), (0,)) == (1, 8)
    assert team((9, 768), (0,)) == (1, 1)


def test_values_of_a_row_are_kept_where_they_fit():
    def stages(length):
        def function(x):
            weights = jnp.exp(x - x.max(1, keepdims=True))
            return weights / weights.sum(1, keepdims=True)

        op = op_of(function, arrays((8, length)), "rows")
        kernel = FAMILIES["rows"](op)
        assert isinstance(kernel, Kernel)
        assert kernel.arguments[0] == constant(rows.RowsShape.of((8, length), (1,)))
        return kernel.arguments[1:]

    largest, total = "ReducedStage<scalar::max_f, 0xff800000u>", "ReducedStage<scalar::add_f, 0x0u>"
    assert stages(44 << 8) == [largest, "KeptStage<0>", total, "ElementStage"]
    assert stages((44 << 8) + 1) == [largest, "ElementStage", total, "ElementStage"]


def test_extremes_are_ordered_as_their_elements_are():
    def arguments(dtype, function=lambda x: x.argmax(1)):
        kernel = FAMILIES["arg_reduce"](op_of(function, arrays((300, 70), dtype=dtype), "arg_reduce"))
        assert isinstance(kernel, Kernel)
        return kernel.arguments[1:3]

    assert arguments(jnp.bfloat16) == ["float", "true"]
    assert arguments(np.int8) == ["int32_t", "true"]
    assert arguments(np.uint8, lambda x: x.argmin(1)) == ["uint32_t", "false"]


def attention_op(queries, keys, width, dtype: Any = np.float32, precision="highest"):
    def function(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)

    operands = arrays(*((2, length, 3, width) for length in (queries, keys, keys)), dtype=dtype)
    with jax.default_matmul_precision(precision):
        return op_of(function, operands, "attention")


def test_attention_walks_heads_and_reads_values_across_the_keys():
    shape = attention.AttentionShape.of(attention_op(40, 130, 16))
    assert shape is not None
    assert (shape.row_axis, shape.column_axis, shape.outer) == (1, 3, matrices.Axes(2, (0, 2)))
    assert shape.scores == matrices.Axes(3, (0, 2, 1))
    assert (shape.depth, shape.num_keys, shape.num_columns, shape.slice, shape.reach) == (16, 130, 16, 0, 130)
    by_keys = matrices.MatrixShape(1, Strides(4, (130 * 48, 0, 16, 0)), line=48, step=1, vector=4, along_depth=True)
    assert shape.keys == by_keys
    assert shape.values == matrices.MatrixShape(2, Strides(4, (130 * 48, 0, 16, 1)), 1, 48, vector=4, along_depth=False)


def test_attention_takes_as_many_queries_as_are_asked_for_and_fit():
    def cores(*sizes, **how):
        op = attention_op(*sizes, **how)
        shape = attention.AttentionShape.of(op)
        assert shape is not None
        return attention.AttentionCores.of(op, shape)

    exact, wide = cores(33, 130, 16), cores(150, 150, 128, dtype=jnp.bfloat16, precision="default")
    assert exact == attention.AttentionCores(FmaCore(64, 64, True), FmaCore(64, 64, False))
    assert wide == attention.AttentionCores(MmaCore("Bf16", 64, 64, 32, 16, True), MmaCore("Bf16", 64, 128, 32, 32, False))
    few, deep = cores(10, 70, 64, precision="default"), cores(64, 70, 256)
    assert few is not None
    assert deep is not None
    assert (few.scores.rows, deep.scores.rows) == (16, 32)


def test_depthwise_convolutions_read_adjacent_channels():
    def shape(channels, dtype: Any = np.float32):
        def function(x, w):
            numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": channels}
            return lax.conv_general_dilated(x, w, (2, 1), ((1, 2), (0, 3)), rhs_dilation=(1, 3), **numbers)

        operands = arrays((2, 40, 50, channels), (3, 2, 1, channels), dtype=dtype)
        return depthwise.DepthwiseShape.of(op_of(function, operands, "conv2d"))

    strides, weights = Strides(4, (32000, 800, 16, 1)), Strides(4, (32, 16, 0, 1))
    assert shape(16) == depthwise.DepthwiseShape(40, 50, 3, 2, 2, 1, 1, 3, 1, 0, strides, weights, pixels=4, vector=4)
    assert [shape(channels).vector for channels in (10, 7)] == [2, 1]
    assert shape(16, dtype=jnp.bfloat16).vector == 4


def test_scattered_points_that_walk_an_axis_meet_each_element_once():
    def function(x, u, i):
        return x.at[:, i].set(u)

    operands = [*arrays((300, 40, 8), (300, 9, 8)), *arrays((9,), dtype=np.int32)]
    shape = scatter.ScatterShape.of(op_of(function, operands, "scatter"))
    assert shape is not None
    assert (shape.walks, shape.chosen, shape.sizes, shape.last) == ((0, -1, 2), (False,) * 3, (300, 1, 8), (0, 39, 0))
    assert (shape.points, shape.met_by, shape.extents, shape.drops) == ((1,), (-1,), (9,), True)

    operands = [*arrays((300, 40), (300, 9)), *arrays((300, 9), dtype=np.int32)]
    shape = scatter.ScatterShape.of(op_of(jax.vmap(lambda x, u, i: x.at[i].set(u)), operands, "scatter"))
    assert shape is not None
    assert (shape.points, shape.met_by, shape.chosen) == ((0, 1), (0, -1), (True, False))

    many = op_of(function, [*arrays((30, 400, 8), (30, 20_000, 8)), *arrays((20_000,), dtype=np.int32)], "scatter")
    assert scatter.ScatterShape.of(many) is None


def test_few_rows_read_adjacent_columns_or_an_adjacent_depth():
    def shape(equation, *shapes):
        op = op_of(lambda a, b: jnp.einsum(equation, a, b), arrays(*shapes), "matmul")
        own = matrices.Matrices.of(op)
        assert own is not None
        return few_rows.FewRowsShape.of(op, own)

    across = shape("mk,kn->mn", (4, 136), (136, 248))
    assert across is not None
    assert (across.num_rows, across.depth, across.column_axis, across.rows.of) == (4, 136, 1, (0,))
    assert across.right == matrices.MatrixShape(1, Strides(2, (0, 1)), 1, 248, vector=4, along_depth=False)
    along = shape("mk,nk->mn", (4, 136), (248, 136))
    assert along is not None
    assert along.right == matrices.MatrixShape(1, Strides(2, (0, 136)), 136, 1, vector=4, along_depth=True)
    assert shape("mk,kn->mn", (9, 136), (136, 248)) is None


def test_products_that_no_matrices_describe_walk_each_summed_axis():
    op = op_of(lambda a, b: jnp.einsum("mkj,jkn->nm", a, b), arrays((37, 24, 5), (5, 24, 72)), "matmul")
    assert matrices.Matrices.of(op) is None
    assert [item.shape for item in op.inputs] == [(72, 5, 24), (5, 24, 37)]  # read through views: [n, j, k] by [j, k, m]
    shape = product_by_element.SumShape.of(op)
    assert (shape.left, shape.right) == (Strides(2, (1, 0)), Strides(2, (0, 120)))
    by_extent = dict(zip(shape.extents, zip(shape.left_summed.of, shape.right_summed.of, strict=True), strict=True))
    assert by_extent == {24: (72, 5), 5: (24 * 72, 1)}


def test_convolutions_by_element_know_the_channels_of_a_group():
    def function(x, w):
        numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": 12}
        return lax.conv_general_dilated(x, w, (2, 1), ((1, 2), (0, 3)), rhs_dilation=(1, 3), **numbers)

    op = op_of(function, arrays((2, 40, 50, 24), (3, 2, 2, 36)), "conv2d")
    assert conv_by_element.ConvShape.of(op) == conv_by_element.ConvShape(40, 50, 3, 2, 2, 3, 2, 1, 1, 3, 1, 0)
