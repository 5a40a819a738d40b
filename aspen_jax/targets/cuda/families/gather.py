"""Gathering (cuda/kernels/gather.h)."""

from __future__ import annotations

import dataclasses

import numpy as np

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type, writes
from aspen_jax.targets.cuda.code.lanes import lane_bits
from aspen_jax.targets.cuda.code.runs import is_run, run_length


@dataclasses.dataclass(frozen=True)
class GatherShape:
    """Where the element of an output is in x, as GatherShape in cuda/kernels/gather.h says it.

    Attributes:
        rank: axes of x.
        num_index_axes: axes of the output that choose a window.
        walks: for each axis of x the axis of the output that walks it; -1: none.
        last: where along each axis the last window begins that fits; 0 where no index places it.
        index_axes: those of the output that choose a window.
        fills: whether windows that do not fit are `fill`; else they are clamped.
        fill: a lane.
        run: adjacent elements that a thread moves at once.
    """

    rank: int
    num_index_axes: int
    walks: tuple[int, ...]
    last: tuple[int, ...]
    index_axes: tuple[int, ...]
    fills: bool
    fill: int
    run: int

    @classmethod
    def of(cls, op: Op) -> GatherShape:
        attrs, dtype, shape = op.attrs, op.output.dtype, op.inputs[0].shape
        reaches = (extent - size for extent, size in zip(shape, attrs.sizes, strict=True))
        last = tuple(reach if of >= 0 else 0 for reach, of in zip(reaches, attrs.components, strict=True))
        fill = lane_bits(np.array(attrs.fill, f"i{dtype.itemsize}").view(dtype))
        index_axes = tuple(attrs.index_axes)
        return cls(len(shape), len(index_axes), tuple(attrs.walks), last, index_axes, attrs.fills, fill, _run(op))


def _run(op: Op) -> int:
    attrs, last = op.attrs, len(op.output.shape) - 1
    walked = [axis for axis, walk in enumerate(attrs.walks) if walk == last]
    # Where a window begins along that axis may be no multiple of anything.
    if len(walked) != 1 or attrs.components[walked[0]] >= 0 or last in attrs.index_axes or 0 in op.inputs[0].shape:
        return 1
    run = run_length(op, op.inputs[0].dtype)
    while run > 1 and not is_run(op, 0, walked[0], run):
        run //= 2
    return run


@writes("gather")
def _gather(op: Op) -> Kernel:
    shape = GatherShape.of(op)
    indices = ["NoIndex" if component < 0 else input_type(op, component + 1) for component in op.attrs.components]
    return Kernel("Gather", [input_type(op, 0), constant(shape), *indices], run=shape.run)
