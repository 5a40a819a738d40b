"""Two convolutions, the second on the result of the first, of which only some rows exist at a time. The pass makes them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.conv import CONV2D, ConvAttrs
from aspen_jax.ops.family import OpFamily, Work

if TYPE_CHECKING:
    import jax

    from aspen_jax.ir.program import Op
    from aspen_jax.ops.block_program import BlockProgram

BETWEEN_FLOATS = 96 * 1024
"""What the kernel keeps of the value between (cpu/conv2d_pair.cc)."""

_FLOAT = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class Conv2DPairAttrs(Attrs):
    """Attributes of conv2d_pair: the two ops that it is.

    Attributes:
        between: height, width and channels of the first one's result, of float32.
        first_inputs: the number of inputs of the first. The second's follow, without that result, which is its first.
        first, second: the parameter words of each.
    """

    between: tuple[int, ...]
    first_inputs: int
    first: tuple[int, ...]
    second: tuple[int, ...]

    def __str__(self) -> str:
        return f"(between {'x'.join(map(str, self.between))})"


class Conv2DPair(OpFamily):
    """conv2d(conv2d(x, w, ...), v, ...), each with its epilogue."""

    name = "conv2d_pair"
    kernel = "conv2d_pair"
    attrs_type = Conv2DPairAttrs

    def num_main(self, op: Op) -> int:
        return len(op.inputs)

    def infer(
        self, attrs: Conv2DPairAttrs, inputs: Sequence[tuple[tuple[int, ...], np.dtype]]
    ) -> tuple[tuple[int, ...], np.dtype]:
        (first, _), (second, _) = _parsed(attrs)
        between = (inputs[0][0][0], *attrs.between)
        if CONV2D.infer(first, inputs[:2])[0] != between:
            raise ValueError(f"conv2d_pair's value between is not {between}")
        return CONV2D.infer(second, [(between, _FLOAT), inputs[attrs.first_inputs]])

    def check(self, op: Op) -> None:
        attrs: Conv2DPairAttrs = op.attrs
        if len(attrs.between) != 3 or not all(0 < extent <= BETWEEN_FLOATS for extent in attrs.between):
            raise ValueError(f"conv2d_pair keeps {list(attrs.between)} between its convolutions")
        if not 2 <= attrs.first_inputs < len(op.inputs):
            raise ValueError(
                f"conv2d_pair has {len(op.inputs)} inputs, of which the first convolution takes {attrs.first_inputs}"
            )
        if op.program is not None:
            raise ValueError("conv2d_pair has an epilogue of its own beside those of its convolutions")
        for part in parts_of(op):
            part.family.check(part)

    def may_store(self, op: Op, dtype: np.dtype) -> bool:
        return CONV2D.may_store(parts_of(op)[1], dtype)

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        first, second = parts_of(op)
        if index >= op.attrs.first_inputs:
            return CONV2D.region(second, index - op.attrs.first_inputs + 1, boxes)
        return CONV2D.region(first, index, CONV2D.region(second, 0, boxes))

    def grain(self, op: Op) -> tuple[int, ...]:
        *rows, _, channels = op.output.shape
        return (*(1 for _ in rows), max(op.output.shape[2], 1), max(channels, 1))

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        first, second = parts_of(op)
        between = CONV2D.region(second, 0, boxes)
        works = CONV2D.work(first, between), CONV2D.work(second, boxes)
        # What is between stays in the cache.
        kept = 2.0 * _FLOAT.itemsize * np.prod(np.maximum(between[:, :, 1] - between[:, :, 0], 0), axis=1, dtype=np.float64)
        return Work(works[0].flops + works[1].flops, np.maximum(works[0].bytes + works[1].bytes - kept, 0.0))

    def reference(self, attrs: Conv2DPairAttrs, *inputs: jax.Array) -> jax.Array:
        first, second = _parsed(attrs)

        def convolved(part: tuple[ConvAttrs, BlockProgram | None], own: Sequence[jax.Array]) -> jax.Array:
            result = CONV2D.reference(part[0], *(item.astype(np.float32) for item in own[:2]))
            if part[1] is None:
                return result
            return part[1].reference(result, *own[2:], shape=result.shape, dtype=_FLOAT)

        between = convolved(first, inputs[: attrs.first_inputs])
        return convolved(second, (between, *inputs[attrs.first_inputs :]))


CONV2D_PAIR = Conv2DPair()


@functools.lru_cache(maxsize=256)
def _parsed(attrs: Conv2DPairAttrs) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    return CONV2D.parse(attrs.first), CONV2D.parse(attrs.second)


def parts_of(op: Op) -> tuple[Op, Op]:
    """The two ops, with a value between them."""
    from aspen_jax.ir.program import Op, Operand, Value

    attrs: Conv2DPairAttrs = op.attrs
    (first, first_program), (second, second_program) = _parsed(attrs)
    between = Value((op.output.shape[0], *attrs.between), _FLOAT)
    own, rest = op.inputs[: attrs.first_inputs], op.inputs[attrs.first_inputs :]
    return (
        Op(CONV2D, first, own, between, first_program),
        Op(CONV2D, second, (Operand.whole(between), *rest), op.output, second_program),
    )
