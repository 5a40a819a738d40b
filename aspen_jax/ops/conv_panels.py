"""Convolution by weights in panels: stored in the order in which a tile reads them, from beginning to end (ops/matmul.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from aspen_jax.ir.program import Operand
from aspen_jax.ops.conv import CONV2D, Conv2D, ConvAttrs
from aspen_jax.ops.family import Typed
from aspen_jax.ops.matmul import PANEL, to_panels

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class ConvPanelsAttrs(ConvAttrs):
    """Attributes of conv2d_panels: those of conv2d, of one group, and of how many output channels.

    Attributes:
        columns: output channels; the last panel of the weights may hold more.
        scaled: whether x is multiplied by a third input before, of x's shape, which is the same for all pixels of an image.
    """

    columns: int
    scaled: bool = False


class Conv2DPanels(Conv2D):
    """x [N,H,W,C] * w [ceil(O/32),KH,KW,C,32] -> [N,OH,OW,O], of float32."""

    name = "conv2d_panels"
    kernel = "conv2d_panels"
    weight_inputs = ()
    attrs_type = ConvPanelsAttrs

    def num_main(self, op: Op) -> int:
        return 3 if op.attrs.scaled else 2

    def kernel_shape(self, op: Op) -> tuple[int, ...]:
        return (*op.inputs[1].shape[1:4], op.attrs.columns)

    def infer(self, attrs: ConvPanelsAttrs, inputs: Sequence[Typed]) -> Typed:
        x, (w, dtype), *scale = inputs
        if scale != [x] * attrs.scaled:
            raise ValueError(f"conv2d_panels of {x} scaled by {scale} with {attrs}")
        if attrs.groups != 1 or len(w) != 5 or (w[0], w[4]) != (-(-attrs.columns // PANEL), PANEL) or dtype != np.float32:
            raise ValueError(f"conv2d_panels by {w} of {dtype} with {attrs}")
        return CONV2D.infer(attrs, [x, ((*w[1:4], attrs.columns), dtype)])

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        if index != 1:
            return super().main_region(op, 0, boxes)
        region = np.empty((len(boxes), 5, 2), np.int64)
        region[:] = [(0, extent) for extent in op.inputs[1].shape]
        region[:, 0, 0] = boxes[:, 3, 0] // PANEL
        region[:, 0, 1] = -(-boxes[:, 3, 1] // PANEL)
        return region

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        return operand.view.is_dense() if index == 1 else super().reads_well(op, index, operand)

    def reference(self, attrs: ConvPanelsAttrs, *inputs: jax.Array) -> jax.Array:
        x, w, *scale = inputs
        for factor in scale:
            x = x * factor
        kernel = w.transpose(1, 2, 3, 0, 4).reshape(*w.shape[1:4], -1)[..., : attrs.columns]
        return super().reference(attrs, x, kernel)


CONV2D_PANELS = Conv2DPanels()


def kernel_to_panels(w: Any, numpy: Any) -> Any:
    """W [KH,KW,C,O] as [ceil(O/32),KH,KW,C,32], by the functions of `numpy` (numpy or jax.numpy)."""
    return to_panels(w.reshape(-1, w.shape[3]), numpy).reshape(-1, *w.shape[:3], PANEL)
