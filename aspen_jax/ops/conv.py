"""Convolution: `conv_general_dilated` in one to three spatial dimensions, as NHWC x HWIO."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ops import conv_few_outputs, conv_masked, windows
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.conv_3d import Depth, as_planes
from aspen_jax.ops.conv_transposed import by_phases
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts, need_dtypes
from aspen_jax.ops.elementwise import fill
from aspen_jax.ops.family import PRODUCT_COLUMNS, OpFamily, Typed, Work, pieces
from aspen_jax.ops.layout import reshaped, transposed
from aspen_jax.ops.opcodes import FLOATS
from aspen_jax.ops.pad import PAD, PadAttrs

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class ConvAttrs(Attrs):
    """Attributes of conv2d.

    Attributes:
        strides: (height, width).
        padding: (top, bottom, left, right), may be negative.
        dilation: of the kernel, (height, width).
        groups: feature groups.
    """

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def _extent(size: int, window: int, stride: int, low: int, high: int, dilation: int) -> int:
    span = (window - 1) * dilation + 1
    return max(0, (size + low + high - span) // stride + 1) if window else 0


class Conv2D(OpFamily):
    """x [N,H,W,C] * w [KH,KW,C/groups,O] -> [N,OH,OW,O], of floats."""

    name = "conv2d"
    kernel = "conv2d"
    kernel_inputs = 2
    takes_epilogue = True
    weight_inputs = (1,)
    attrs_type = ConvAttrs

    def kernel_shape(self, op: Op) -> tuple[int, ...]:
        """[KH,KW,C/groups,O]."""
        return op.inputs[1].shape

    def infer(self, attrs: ConvAttrs, inputs: Sequence[Typed]) -> Typed:
        (x, dtype), (w, _) = inputs
        if min(*attrs.strides, *attrs.dilation, attrs.groups) < 1:
            raise ValueError(f"conv2d with {attrs}")
        if len(x) != 4 or len(w) != 4 or x[3] != w[2] * attrs.groups or w[3] % attrs.groups:
            raise ValueError(f"conv2d of {x} by {w} in {attrs.groups} groups")
        top, bottom, left, right = attrs.padding
        height = _extent(x[1], w[0], attrs.strides[0], top, bottom, attrs.dilation[0])
        width = _extent(x[2], w[1], attrs.strides[1], left, right, attrs.dilation[1])
        return (x[0], height, width, w[3]), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        attrs: ConvAttrs = op.attrs
        x, w = op.inputs[0].shape, self.kernel_shape(op)
        region = np.empty((len(boxes), 4, 2), np.int64)
        if index == 1:
            region[:, :3, 0] = 0
            region[:, :3, 1] = w[:3]
            region[:, 3] = boxes[:, 3]
            return region
        region[:, 0] = boxes[:, 0]
        for axis, low in ((1, attrs.padding[0]), (2, attrs.padding[2])):
            stride, dilation, window = attrs.strides[axis - 1], attrs.dilation[axis - 1], w[axis - 1]
            region[:, axis, 0] = boxes[:, axis, 0] * stride - low
            region[:, axis, 1] = (boxes[:, axis, 1] - 1) * stride - low + (window - 1) * dilation + 1
            np.clip(region[:, axis], 0, x[axis], out=region[:, axis])
        per_group = max(w[3] // attrs.groups, 1)
        region[:, 3, 0] = boxes[:, 3, 0] // per_group * w[2]
        region[:, 3, 1] = ((boxes[:, 3, 1] - 1) // per_group + 1) * w[2]
        return region

    def attrs_of_part(self, op: Op, part: Op) -> Any | None:
        whole, own = ((item.output.shape[1:3], item.inputs[0].shape[1:3]) for item in (op, part))
        return op.attrs if windows.lie_alike(whole, own, op.attrs.strides, (1, 1)) else None

    def grain(self, op: Op) -> tuple[int, ...]:
        *rows, channels = super().grain(op)
        return (*rows, min(PRODUCT_COLUMNS, op.output.shape[3]) if op.attrs.groups == 1 else channels)

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        return operand.shape[3] == 1 or operand.view.strides()[3] == 1

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        kernel_height, kernel_width, channels, _ = self.kernel_shape(op)
        own = epilogue_work(op, boxes)
        x, w = self.main_region(op, 0, boxes), self.main_region(op, 1, boxes)
        flops = 2.0 * box_sizes(boxes) * (kernel_height * kernel_width * channels)
        read = op.inputs[0].dtype.itemsize * (box_sizes(x) + box_sizes(w))
        return Work(own.flops + flops, own.bytes + read, pieces(op.inputs[1], w))

    def reference(self, attrs: ConvAttrs, *inputs: jax.Array) -> jax.Array:
        top, bottom, left, right = attrs.padding
        x, w = inputs
        # Padded beforehand: where negative padding takes all rows away, XLA's convolution on CPU computes with what was there.
        padded = lax.pad(x, jax.numpy.zeros((), x.dtype), ((0, 0, 0), (top, bottom, 0), (left, right, 0), (0, 0, 0)))
        return lax.conv_general_dilated(
            padded,
            w,
            window_strides=attrs.strides,
            padding="VALID",
            rhs_dilation=attrs.dilation,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=attrs.groups,
            precision=lax.Precision.HIGHEST,
        )


CONV2D = Conv2D()


@converts("conv_general_dilated")
def _convert_conv(build: Builder, equation: Equation, lhs: Operand, rhs: Operand) -> Operand:
    need_dtypes(equation, (lhs, rhs), *FLOATS)
    if lhs.dtype != rhs.dtype:
        raise Unsupported(f"convolution of {lhs.dtype.name} by {rhs.dtype.name}")
    params = equation.params
    numbers = params["dimension_numbers"]
    spatial = len(lhs.shape) - 2
    if spatial not in (1, 2, 3):
        raise Unsupported(f"convolution in {spatial} spatial dimensions; kernels take 1 to 3")

    # To N, spatial, C and spatial, I, O; then, for one dimension, a height of one, and for three, a plane for each of the depth.
    batch, feature, *lhs_spatial = numbers.lhs_spec
    out_channel, in_channel, *rhs_spatial = numbers.rhs_spec
    if 0 in (rhs.shape[axis] for axis in rhs_spatial):
        raise Unsupported(f"convolution by a window of {rhs.shape}, which has no taps")  # XLA refuses it
    selection = conv_masked.selection(build, equation, lhs, rhs)
    if selection is not None:
        return selection
    x = transposed(build, lhs, (batch, *lhs_spatial, feature))
    w = transposed(build, rhs, (*rhs_spatial, in_channel, out_channel))
    strides, padding = tuple(params["window_strides"]), [tuple(pair) for pair in params["padding"]]
    dilation, lhs_dilation = tuple(params["rhs_dilation"]), tuple(params["lhs_dilation"])
    if spatial == 1:
        x, w = reshaped(build, x, (x.shape[0], 1, *x.shape[1:])), reshaped(build, w, (1, *w.shape))
        strides, dilation, lhs_dilation = (1, *strides), (1, *dilation), (1, *lhs_dilation)
        padding = [(0, 0), *padding]

    groups, batch_groups = params["feature_group_count"], params["batch_group_count"]
    if batch_groups > 1:
        # Batch groups are feature groups of a batch whose groups have been moved into the channels.
        n, *image, channels = x.shape
        x = reshaped(build, x, (batch_groups, n // batch_groups, *image, channels))
        x = transposed(build, x, (*range(1, 2 + len(image)), 0, 2 + len(image)))
        x = reshaped(build, x, (n // batch_groups, *image, batch_groups * channels))
        groups = batch_groups
    if spatial == 3:
        x, w = as_planes(build, x, w, Depth(strides[0], padding[0], lhs_dilation[0], dilation[0]), groups)
        strides, dilation, lhs_dilation, padding = strides[1:], dilation[1:], lhs_dilation[1:], padding[1:]

    def convolve(x: Operand, w: Operand, padding: Sequence[tuple[int, int]]) -> Operand:
        return build.op(CONV2D, ConvAttrs(strides, (*padding[0], *padding[1]), dilation, groups), [x, w], dtype=equation.dtype)

    y = None
    if max(lhs_dilation) > 1 and max(*strides, *dilation) == 1:
        y = by_phases(build, x, w, lhs_dilation, padding, convolve)
    if y is None:
        if max(lhs_dilation) > 1:
            interior = (0, *(step - 1 for step in lhs_dilation), 0)
            zero = fill(build, np.zeros((), x.dtype), ())
            x = build.op(PAD, PadAttrs((0,) * 4, (0,) * 4, interior), [x, zero])
        few = strides[1] == groups == 1 and equation.dtype == np.float32 and conv_few_outputs.takes(x, w, padding, dilation[1])
        y = conv_few_outputs.by_columns(build, x, w, padding, dilation[1], convolve) if few else convolve(x, w, padding)
    out_batch, out_feature, *out_spatial = numbers.out_spec
    order = (out_batch, *out_spatial, out_feature)
    y = reshaped(build, y, tuple(equation.shape[axis] for axis in order))
    return transposed(build, y, tuple(order.index(axis) for axis in range(spatial + 2)))
