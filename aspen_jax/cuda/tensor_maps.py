"""Operands that the tensor memory accelerator of sm_90a can copy in boxes (cuda/kernels/tensor_copy.h), and those of products."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING

from aspen_jax.cuda.blocks import block
from aspen_jax.ir.program import Op

if TYPE_CHECKING:
    from aspen_jax.cuda.matrices import Matrices

# What an axis of a map can be (cuTensorMapEncodeTiled); coordinates are int32.
_MOST_EXTENT, _MOST_STRIDE = 2**31 - 1, 2**40 - 1

# Elements of a box along an axis, those included that are stepped over, and how far a step may be.
MOST_BOX, MOST_STEP = 256, 8

# As Swizzle::kLine: elements of 16 bits in 128 bytes.
LINE = 64


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An operand as a map describes it.

    Attributes:
        number: of the input.
        extents: of its axes, the adjacent elements first.
        strides: of all axes but the first, in elements.
        box: elements of a box along each axis.
        depth_axis: the one of the first two along which products sum.
        steps: from one element of a box to the next, along each axis; all 1 where there are none.
        outer: of a product's operand, the axes of the output that choose a matrix: the tensor's last.
    """

    number: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    depth_axis: int
    steps: tuple[int, ...] = ()
    outer: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """3 at least, as the kernels know them; further axes have one element."""
        return max(3, len(self.extents))

    def initializer(self) -> str:
        """A TensorShape (cuda/kernels/kernel_shape.h)."""
        extents, strides = [*self.extents], [*self.strides]
        while len(extents) < self.rank:
            strides.append(extents[-1] * strides[-1] if strides[-1] * extents[-1] * 2 <= _MOST_STRIDE else strides[-1])
            extents.append(1)
        more = [1] * (self.rank - len(self.extents))
        steps = [*(self.steps or [1] * len(self.box)), *more]
        box = [count * step for count, step in zip([*self.box, *more], steps, strict=True)]
        lists = (extents, [2 * stride for stride in strides], box, steps)
        texts = ["{" + ", ".join(map(str, numbers)) + "}" for numbers in lists]
        return f"{{{self.number}, {self.rank}, {', '.join(texts)}}}"

    def boxes(self, map_number: int, first: tuple[str, str], coordinates: dict[int, str]) -> str:
        """C++ for the boxes of a map, the first of which begins at these two coordinates and at those of the output's axes."""
        outer = [coordinates[axis] for axis in self.outer]
        at = [*first, *outer, *["0"] * (self.rank - 2 - len(outer))]
        return f"MatrixBoxes<{self.rank}, {self.depth_axis}>{{{{buffers.maps[{map_number}], {{{', '.join(at)}}}}}}}"


def is_allowed(tensor: Tensor) -> bool:
    """Whether a tensor of strides of whole 16 bytes has a map."""
    extents, strides = tensor.extents, tensor.strides
    return min(extents) > 0 and max(extents) <= _MOST_EXTENT and min(strides) > 0 and 2 * max(strides) <= _MOST_STRIDE


def tensors(op: Op, matrices: Matrices, vector: int, *, along_depth: bool) -> tuple[Tensor, Tensor] | None:
    """The rows and the columns of a product for warpgroups; None where they cannot be copied so.

    Args:
        op: a product that BlockCore (cuda/kernels/product.h) leaves to warpgroups where a GPU has them.
        matrices: the same.
        vector: adjacent elements that may be read at once of both operands; 8 of them are the 16 bytes to which maps are aligned.
        along_depth: columns lie along the depth.
    """
    rows, column, shape = matrices.rows, matrices.column, op.output.shape
    left, right = matrices.left, matrices.right
    if op.inputs[0].dtype.itemsize != 2 or matrices.num_rows(op) <= 32 or vector != 8 or matrices.depth < LINE or column is None:
        return None
    # Rows of several axes are lines of one.
    if any(left.strides[axis] != left.strides[inner] * shape[inner] for axis, inner in itertools.pairwise(rows)):
        return None
    block_rows, block_columns = block(op)
    row_lines = math.prod(shape[axis] for axis in rows), left.strides[rows[-1]]
    columns = shape[column], right.strides[column]
    made = []
    for side, adjacent, lines, box_lines in (
        (left, matrices.depth, row_lines, block_rows),
        (right, matrices.depth, columns, block_columns)
        if along_depth
        else (right, shape[column], (matrices.depth, right.step), LINE),
    ):
        outer = sorted((axis for axis in matrices.outer if side.strides.get(axis)), key=lambda axis: side.strides[axis])
        extents = (adjacent, lines[0], *(shape[axis] for axis in outer))
        strides = (lines[1], *(side.strides[axis] for axis in outer))
        box = (LINE, box_lines, *[1] * len(outer))
        made.append(Tensor(side.number, extents, strides, box, int(side is right and not along_depth), outer=tuple(outer)))
        if len(outer) > 3 or not is_allowed(made[-1]):
            return None
    return made[0], made[1]
