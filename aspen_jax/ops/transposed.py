"""An op of images that writes its result in another order of axes, as NCHW callers want it (Bolt, 3.2.3). A pass makes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from aspen_jax.ops.attrs import Attrs, Words
from aspen_jax.ops.family import FAMILIES, OpFamily, Typed, Work, unpermuted

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op, Value

IMAGE_RANK = 4  # batch, rows, columns, channels
_CHANNEL = IMAGE_RANK - 1


@dataclasses.dataclass(frozen=True)
class TransposedAttrs(Attrs):
    """Attributes of transposed.

    Attributes:
        kernel: of the op.
        permutation: axis i of the output is axis permutation[i] of the op's result.
        part: the op's own attributes.
    """

    kernel: str
    permutation: tuple[int, ...]
    part: Any

    def to_words(self) -> list[int]:
        letters = self.kernel.encode("ascii")
        return [len(letters), *letters, len(self.permutation), *self.permutation, *self.part.to_words()]

    @classmethod
    def from_words(cls, words: Words) -> TransposedAttrs:
        kernel, permutation = words.name(), words.list()
        attrs_type = _family(kernel).attrs_type
        if attrs_type is None:
            raise ValueError(f"the result of {kernel!r} is not transposed")
        return cls(kernel, permutation, attrs_type.from_words(words))


class Transposed(OpFamily):
    """An op with its epilogue, whose inputs all have the op's own order of axes."""

    name = "transposed"
    kernel = "transposed"
    attrs_type = TransposedAttrs

    def infer(self, attrs: TransposedAttrs, inputs: Sequence[Typed]) -> Typed:
        raise ValueError("a transposed op's shape is that of its op; use transposed_of")

    def check(self, op: Op) -> None:
        permutation = op.attrs.permutation
        if sorted(permutation) != list(range(IMAGE_RANK)) or len(op.output.shape) != IMAGE_RANK or op.further:
            raise ValueError(f"{list(op.output.shape)} is not the result of an op of images in the order {permutation}")
        part = part_of(op)
        part.family.check(part)

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        part = part_of(op)
        return part.family.region(part, index, own_boxes(op, boxes))

    def grain(self, op: Op) -> tuple[int, ...]:
        part = part_of(op)
        grain = part.family.grain(part)
        # Tiles hold all channels of their pixels, as the op computes them.
        whole = max(part.output.shape[_CHANNEL], 1)
        return tuple(whole if axis == _CHANNEL else grain[axis] for axis in op.attrs.permutation)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        part = part_of(op)
        return part.family.work(part, own_boxes(op, boxes))

    def reference(self, attrs: TransposedAttrs, *inputs: jax.Array) -> jax.Array:
        raise ValueError("a transposed op's reference is that of its op; see ops/reference.py")


TRANSPOSED = Transposed()


def part_of(op: Op) -> Op:
    """The op, writing its result in its own order."""
    from aspen_jax.ir.program import Value

    attrs: TransposedAttrs = op.attrs
    result = Value(unpermuted(op.output.shape, attrs.permutation), op.output.dtype)
    return op.replace(family=_family(attrs.kernel), attrs=attrs.part, output=result)


def transposed_of(op: Op, permutation: Sequence[int], output: Value) -> Op:
    """The op, writing its result transposed by `permutation` in `output`."""
    attrs = TransposedAttrs(op.family.kernel, tuple(permutation), op.attrs)
    return op.replace(family=TRANSPOSED, attrs=attrs, output=output)


def own_boxes(op: Op, boxes: np.ndarray) -> np.ndarray:
    """Boxes of the output as the op's result has them."""
    return boxes[:, np.argsort(op.attrs.permutation)]


def _family(kernel: str) -> OpFamily:
    family = FAMILIES.get(kernel)
    if family is None or family is TRANSPOSED or family.may_have_further:
        raise ValueError(f"the result of {kernel!r} is not transposed")
    return family
