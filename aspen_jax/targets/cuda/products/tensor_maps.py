"""Operands that the tensor memory accelerator of sm_90a can copy in boxes (cuda/kernels/tensor_copy.h), and those of products."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.vectors import LINE_BYTES
from aspen_jax.targets.cuda.products.kernel_choices import for_warpgroups
from aspen_jax.targets.cuda.products.matrices import Axes, Matrices

# What an axis of a map can be (cuTensorMapEncodeTiled); coordinates are int32.
_MOST_EXTENT, _MOST_STRIDE = 2**31 - 1, 2**40 - 1

# Elements of a box along an axis, those included that are stepped over, and how far a step may be.
MOST_BOX, MOST_STEP = 256, 8

# Of those who ask only whether there are maps.
ANY_BLOCK = (64, 64)

# Axes of a map, as the kernels know them.
_FEWEST_AXES = 3


@dataclasses.dataclass(frozen=True)
class TensorShape:
    """An operand as a map describes it, as TensorShape in cuda/kernels/kernel_shape.h.

    Elements have 16 bits; one of float32 is two.

    Attributes:
        input: its number.
        rank: axes.
        extents: of the axes, the adjacent elements first.
        strides: bytes, of all axes but the first.
        box: elements of a box along each axis, those included that are stepped over.
        steps: from one element of a box to the next, along each axis.
    """

    input: int
    rank: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]

    @classmethod
    def of(
        cls,
        number: int,
        extents: Sequence[int],
        strides: Sequence[int],
        box: Sequence[int],
        steps: Sequence[int] | None = None,
        itemsize: int = 2,
    ) -> TensorShape | None:
        """The map of an operand; None where CUDA has no such map.

        Args:
            number: of the input.
            extents: of its axes.
            strides: of all axes but the first, in elements: whole 16 bytes.
            box: elements that a box has along each axis.
            steps: where not all are 1.
            itemsize: bytes of an element, 2 or 4.
        """
        extents, strides, box = [*extents], [itemsize * stride for stride in strides], [*box]
        extents[0], box[0] = extents[0] * itemsize // 2, box[0] * itemsize // 2
        if min(extents) <= 0 or max(extents) > _MOST_EXTENT or min(strides) <= 0 or max(strides) > _MOST_STRIDE:
            return None
        while len(extents) < _FEWEST_AXES:  # axes of one element
            beyond = extents[-1] * strides[-1]
            strides.append(beyond if beyond <= _MOST_STRIDE else strides[-1])
            extents.append(1)
            box.append(1)
        steps = [1] * len(box) if steps is None else steps
        spans = (count * step for count, step in zip(box, steps, strict=True))
        return cls(number, len(extents), tuple(extents), tuple(strides), tuple(spans), tuple(steps))


@dataclasses.dataclass(frozen=True)
class MatrixMap:
    """An operand of a product as a tensor, as MatrixMap in cuda/kernels/matrices.h.

    Attributes:
        tensor: its first two axes are the matrix.
        depth_axis: the one of these along which products sum.
        outer: the axes of the output that choose a matrix: the tensor's last.
    """

    tensor: TensorShape
    depth_axis: int
    outer: Axes


def maps_of(op: Op, block: tuple[int, int]) -> tuple[MatrixMap, ...]:
    """The rows and the columns of a product for warpgroups; () where they cannot be copied so.

    Args:
        op: a product that BlockCore (cuda/kernels/product.h) leaves to warpgroups where a GPU has them.
        block: its rows and columns. Whether there are maps does not depend on it.
    """
    matrices = Matrices.of(op)
    if matrices is None or matrices.depth < 1:
        return ()
    across = matrices.columns_vector(op)
    rows, column, shape = matrices.rows, matrices.column, op.output.shape
    vector, along_depth = min(matrices.left.vector_along(matrices.depth), matrices.columns_read_at_once(op)), across is None
    left, right = matrices.left, matrices.right
    itemsize, line = op.inputs[0].dtype.itemsize, LINE_BYTES // op.inputs[0].dtype.itemsize
    if not (itemsize == 2 or op.rounded) or matrices.num_rows(op) <= 32 or vector * itemsize != 16 or matrices.depth < line:
        return ()
    if column is None or not for_warpgroups(op):
        return ()
    # Rows of several axes are lines of one.
    if any(left.strides[axis] != left.strides[inner] * shape[inner] for axis, inner in itertools.pairwise(rows)):
        return ()
    block_rows, block_columns = block
    row_lines = math.prod(shape[axis] for axis in rows), left.strides[rows[-1]]
    of_left = matrix_map(op, left.number, left.strides, matrices.outer, matrices.depth, row_lines, block_rows, along_depth=True)
    if along_depth:
        adjacent, lines, box_lines = matrices.depth, (shape[column], right.strides[column]), block_columns
    else:
        adjacent, lines, box_lines = shape[column], (matrices.depth, right.step), line
    of_right = matrix_map(op, right.number, right.strides, matrices.outer, adjacent, lines, box_lines, along_depth=along_depth)
    return () if of_left is None or of_right is None else (of_left, of_right)


def matrix_map(
    op: Op,
    number: int,
    strides: Mapping[int, int],
    outer: Sequence[int],
    adjacent: int,
    lines: tuple[int, int],
    box_lines: int,
    *,
    along_depth: bool,
) -> MatrixMap | None:
    """An operand's map; None where there is none.

    Args:
        op: whose operand it is.
        number: of the input.
        strides: of the output's axes that choose a matrix, in elements.
        outer: those axes, and perhaps some along which the operand stays the same.
        adjacent: elements of a line.
        lines: how many there are, and from one to the next.
        box_lines: of a box.
        along_depth: whether lines lie along the depth.
    """
    itemsize, own = op.inputs[number].dtype.itemsize, sorted(filter(strides.get, outer), key=strides.__getitem__)
    extents = (adjacent, lines[0], *(op.output.shape[axis] for axis in own))
    box = (LINE_BYTES // itemsize, box_lines, *[1] * len(own))
    tensor = TensorShape.of(number, extents, (lines[1], *(strides[axis] for axis in own)), box, itemsize=itemsize)
    return None if len(own) > 3 or tensor is None else MatrixMap(tensor, int(not along_depth), Axes(len(own), tuple(own)))
