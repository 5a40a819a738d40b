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

from aspen_jax.targets.cuda.code.kernel import FAMILIES, Kernel, Strides, constant
from aspen_jax.targets.cuda.families import (
    attention,
    chain,
    concatenate,
    conv_by_element,
    cumulative,
    depthwise,
    elementwise,
    gather,
    pad,
    partial_reduce,
    pool,
    product_by_element,
    products,
    ragged_dot,
    rows,
    scatter,
    stack,
)
from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.products import conv_boxes, conv_tile, few_rows, matrices, tensor_maps
from aspen_jax.targets.cuda.products.cores import FmaCore, MmaCore
from aspen_jax.targets.cuda.products.window import Window
from tests.targets.cuda.cuda_check import ops_of

HEADERS = Path(__file__).parents[3] / "cuda" / "kernels"

SHAPES = [
    Strides,
    attention.AttentionShape,
    chain.ChainLink,
    chain.ChainShape,
    concatenate.ConcatenateShape,
    conv_boxes.ConvBoxesShape,
    conv_by_element.ConvShape,
    conv_tile.ConvTileShape,
    cumulative.CumulativeShape,
    depthwise.DepthwiseShape,
    elementwise.ElementwiseShape,
    few_rows.FewRowsShape,
    gather.GatherShape,
    matrices.Axes,
    matrices.MatrixShape,
    pad.PadShape,
    partial_reduce.PartialReduceShape,
    pool.PoolShape,
    product_by_element.SumShape,
    products.ProductShape,
    ragged_dot.RaggedDotShape,
    rows.RowsShape,
    scatter.ScatterShape,
    stack.StackShape,
    tensor_maps.MatrixMap,
    tensor_maps.TensorShape,
    Window,
]


def arrays(*shapes, dtype: Any = np.float32):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def op_of(function, operands, family, gpu=Gpu()):  # noqa: B008 - immutable
    """The only op of a family in a function."""
    (op,) = (op for op in ops_of(function, operands, gpu) if op.family.name == family)
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
    by_warps = MmaCore("Bf16", 64, 64, 32, 16, True), MmaCore("Bf16", 64, 128, 32, 32, False)
    assert wide == attention.AttentionCores(*by_warps, groups=True)
    held = MmaCore("Bf16", 64, 64, 16, 64, True), MmaCore("Bf16", 64, 64, 16, 64, False)
    assert cores(150, 150, 64, dtype=jnp.bfloat16, precision="default") == attention.AttentionCores(*held, held=True, groups=True)
    assert cores(150, 150, 48, dtype=jnp.bfloat16, precision="default") == attention.AttentionCores(*held, held=True)
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
    assert shape(16) == depthwise.DepthwiseShape(Window(40, 50, 3, 2, 2, 1, 1, 3, 1, 0), strides, weights, pixels=4, vector=4)
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


def test_products_of_groups_know_how_many_groups_there_are():
    operands = [*arrays((40, 24), (3, 24, 72)), *arrays((3,), dtype=np.int32)]
    op = op_of(lax.ragged_dot, operands, "ragged_dot")
    assert ragged_dot.RaggedDotShape.of(op) == ragged_dot.RaggedDotShape(3, 24)


def test_convolutions_by_element_know_the_channels_of_a_group():
    def function(x, w):
        numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": 12}
        return lax.conv_general_dilated(x, w, (2, 1), ((1, 2), (0, 3)), rhs_dilation=(1, 3), **numbers)

    op = op_of(function, arrays((2, 40, 50, 24), (3, 2, 2, 36)), "conv2d")
    window = Window(40, 50, 3, 2, 2, 1, 1, 3, 1, 0)
    assert conv_by_element.ConvShape.of(op) == conv_by_element.ConvShape(window, channels=2, outputs=3)


# Of so few places no depth is split.
FEW_PLACES = Gpu(places=1)


def product(equation, *shapes, dtype: Any = np.float32):
    op = op_of(lambda a, b: jnp.einsum(equation, a, b), arrays(*shapes, dtype=dtype), "matmul", FEW_PLACES)
    own = matrices.Matrices.of(op)
    assert own is not None
    return products.ProductShape.of(op, own)


def test_products_read_columns_across_the_depth_or_along_it():
    across = product("hmk,hkn->mhn", (3, 80, 136), (3, 136, 72))
    assert (across.depth, across.column_axis, across.run, across.maps) == (136, 2, 4, ())
    assert (across.rows, across.outer, across.row_extents) == (matrices.Axes(1, (0,)), matrices.Axes(1, (1,)), (80,))
    assert across.left == matrices.MatrixShape(1, Strides(3, (136, 80 * 136, 0)), 0, 1, vector=4, along_depth=True)
    assert across.right == matrices.MatrixShape(0, Strides(3, (0, 136 * 72, 1)), 1, 72, vector=4, along_depth=False)
    along = product("bmk,nk->bmn", (3, 80, 136), (73, 136))
    assert (along.rows, along.row_extents, along.run) == (matrices.Axes(2, (0, 1)), (3, 80), 1)
    assert along.right == matrices.MatrixShape(1, Strides(3, (0, 0, 136)), 136, 1, vector=4, along_depth=True)
    dots = product("mk,mk->m", (80, 136), (80, 136))
    assert (dots.column_axis, dots.rows, dots.outer, dots.run) == (-1, matrices.Axes(0, ()), matrices.Axes(1, (0,)), 1)


def test_products_of_whole_vectors_have_tensor_maps(monkeypatch):
    monkeypatch.setattr("aspen_jax.targets.cuda.products.blocks.MULTIPROCESSORS", 1)
    shape = product("bmk,nk->bmn", (3, 80, 136), (72, 136), dtype=jnp.bfloat16)
    rows = tensor_maps.TensorShape(0, 3, (136, 240, 1), (272, 240 * 272), (64, 128, 1), (1, 1, 1))
    columns = tensor_maps.TensorShape(1, 3, (136, 72, 1), (272, 72 * 272), (64, 128, 1), (1, 1, 1))
    none = matrices.Axes(0, ())
    assert shape.maps == (tensor_maps.MatrixMap(rows, 0, none), tensor_maps.MatrixMap(columns, 0, none))
    by_heads = product("bmhk,bhkn->bhmn", (2, 80, 3, 64), (2, 3, 64, 72), dtype=jnp.bfloat16)
    left, right = by_heads.maps
    assert (left.tensor.extents, left.outer) == ((64, 80, 3, 2), matrices.Axes(2, (1, 0)))
    assert (right.tensor.extents, right.depth_axis) == ((72, 64, 3, 2), 1)
    # Strides of no multiple of 16 bytes.
    assert product("mk,kn->mn", (80, 64), (64, 68), dtype=jnp.bfloat16).maps == ()


def test_tensors_have_maps_as_far_as_numbers_go():
    shape = tensor_maps.TensorShape.of
    assert shape(0, (64, 2**31 - 1), (64,), (64, 64)) is not None
    assert shape(0, (64, 2**31), (64,), (64, 64)) is None
    assert shape(0, (64, 8), (-64,), (64, 8)) is None
    assert shape(0, (64, 8, 2), (64, 2**39), (64, 8, 1)) is None
    stepped = shape(0, (64, 9, 9), (64, 576), (64, 4, 2), (1, 2, 3))
    assert stepped is not None
    assert (stepped.box, stepped.steps, stepped.strides) == ((64, 8, 6), (1, 2, 3), (128, 1152))


def convolution(x, w, family="conv2d", strides=(1, 1), groups=1):
    def function(x, w):
        return lax.conv_general_dilated(
            x, w, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
        )

    return op_of(function, arrays(x, w, dtype=jnp.bfloat16), family, FEW_PLACES if family == "conv2d" else Gpu())


def test_convolutions_gather_adjacent_channels_of_a_group():
    op = convolution((2, 40, 50, 24), (3, 2, 12, 40), groups=2, strides=(2, 1))
    shape = conv_tile.ConvTileShape.of(op)
    assert shape is not None
    window, strides = Window(40, 50, 3, 2, 2, 1, 1, 1, 0, 0), Strides(4, (40 * 50 * 24, 50 * 24, 24, 1))
    assert shape == conv_tile.ConvTileShape(
        window, 2, 12, 12, 40, 72, 0, strides, input_vector=4, weights_vector=4, weights_along_depth=False, run=8
    )
    assert shape.core(op) == MmaCore("Bf16", 64, 32, 32, 16, False)
    # Too few channels a group.
    assert conv_tile.ConvTileShape.of(convolution((2, 40, 50, 24), (3, 2, 2, 36), groups=12)) is None


def test_convolutions_in_boxes_of_pixels_that_fill_blocks():
    op = convolution((8, 14, 14, 128), (3, 3, 128, 72), strides=(1, 2))
    shape = conv_boxes.ConvBoxesShape.of(op, (64, 64))
    assert shape is not None
    assert (shape.images, shape.lines, shape.pixels) == (1, 7, 7)
    assert (shape.chunks, shape.chunks_of_slice) == (2, 18)
    pixels, weights = shape.maps
    assert (pixels.extents, pixels.box, pixels.steps) == ((128, 14, 14, 8), (64, 14, 7, 1), (1, 2, 1, 1))
    assert (weights.extents, weights.strides, weights.box) == ((72, 128, 9), (144, 72 * 256), (64, 64, 1))
    # Of few channels most of a chunk would be empty.
    assert conv_boxes.ConvBoxesShape.of(convolution((8, 14, 14, 24), (3, 3, 24, 72)), (64, 64)) is None


def test_slices_of_a_convolution_begin_with_a_chunk():
    op = convolution((1, 14, 14, 128), (3, 3, 128, 72), "conv2d_slices")
    shape, boxes = conv_tile.ConvTileShape.of(op), conv_boxes.ConvBoxesShape.of(op, (64, 64))
    assert shape is not None
    assert boxes is not None
    assert 0 < shape.slice < shape.depth == 9 * 128
    assert boxes.chunks_of_slice * 64 == shape.slice
