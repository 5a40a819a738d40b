"""Running results along an axis: cumsum, cumprod, cummax, cummin, cumlogsumexp."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ops import windows
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts
from aspen_jax.ops.family import OpFamily, Typed, Work

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

_LOGSUMEXP = 4  # after the kinds of windows.py
_FLOPS = {_LOGSUMEXP: 40}  # of a step; others take one that waits for the one before
_WAITING_FLOPS = 8


@dataclasses.dataclass(frozen=True)
class CumulativeAttrs(Attrs):
    """Attributes of cumulative: the kind (see windows.py; 4 is the logarithm of a sum of exponentials), axis, direction."""

    kind: int
    axis: int
    reverse: bool


class Cumulative(OpFamily):
    """Each element becomes the result of all up to it. Any dtype but bool."""

    name = "cumulative"
    kernel = "cumulative"
    kernel_inputs = 1
    attrs_type = CumulativeAttrs

    def infer(self, attrs: CumulativeAttrs, inputs: Sequence[Typed]) -> Typed:
        ((shape, dtype),) = inputs
        return shape, dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        region, axis = boxes.copy(), op.attrs.axis
        if op.attrs.reverse:
            region[:, axis, 1] = op.output.shape[axis]
        else:
            region[:, axis, 0] = 0
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        # A tile computes all from the axis's beginning again.
        grain = list(super().grain(op))
        grain[op.attrs.axis] = op.output.shape[op.attrs.axis]
        return tuple(grain)

    def permuted(self, op: Op, permutations: Sequence[tuple[int, ...]]) -> tuple[Any, tuple[int, ...]] | None:
        (order,) = permutations
        return dataclasses.replace(op.attrs, axis=order[op.attrs.axis]), order

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        read = box_sizes(self.main_region(op, 0, boxes))
        flops = _FLOPS.get(op.attrs.kind, 1) * _WAITING_FLOPS
        return Work(own.flops + read * flops, own.bytes + read * op.inputs[0].dtype.itemsize)

    def reference(self, attrs: CumulativeAttrs, *inputs: jax.Array) -> jax.Array:
        return _REFERENCES[attrs.kind](*inputs, axis=attrs.axis, reverse=attrs.reverse)


CUMULATIVE = Cumulative()

_KINDS = {
    "cumsum": windows.SUM,
    "cumprod": windows.PRODUCT,
    "cummax": windows.MAX,
    "cummin": windows.MIN,
    "cumlogsumexp": _LOGSUMEXP,
}
_REFERENCES: dict[int, Callable[..., jax.Array]] = {kind: getattr(lax, name) for name, kind in _KINDS.items()}


@converts(*_KINDS)
def _convert_cumulative(build: Builder, equation: Equation, x: Operand) -> Operand:
    if x.dtype == np.bool_:
        raise Unsupported(f"{equation.primitive} of bool")
    attrs = CumulativeAttrs(_KINDS[equation.primitive], equation.params["axis"], equation.params["reverse"])
    return build.op(CUMULATIVE, attrs, [x])
