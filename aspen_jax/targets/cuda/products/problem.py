"""What a product asks of the kernel that multiplies its blocks: for whom a choice of candidates counts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from aspen_jax.ir.program import Op
from aspen_jax.ops.conv_slices import ConvSlicesAttrs
from aspen_jax.ops.slices import sliced
from aspen_jax.targets.cuda.code.vectors import LINE_BYTES, vector
from aspen_jax.targets.cuda.products.few_rows import FEW_ROWS
from aspen_jax.targets.cuda.products.matrices import Matrices
from aspen_jax.targets.cuda.products.window import Taps

# Elements of 16 bits that are 16 bytes: the vector in which warpgroups want operands.
WHOLE_VECTOR = 8


@dataclasses.dataclass(frozen=True)
class Problem:
    """A product by its numbers; what is computed of its sums afterwards does not count.

    Attributes:
        kind: "product", or "convolution" where rows are gathered.
        dtype: of the operands.
        exact: whether float32 is to be multiplied as it is.
        vector: adjacent elements that may be read at once of both operands.
        along_depth: whether columns lie along the depth.
        rows: of a matrix; pixels.
        columns: of a matrix; channels.
        depth: what is summed.
        matrices: how many there are; slices of a depth too.
        rounded: whether columns of float32 were rounded beforehand.
    """

    kind: str
    dtype: str
    exact: bool
    vector: int
    along_depth: bool
    rows: int
    columns: int
    depth: int
    matrices: int
    rounded: bool = False

    @classmethod
    def of(cls, op: Op) -> Problem | None:
        """The problem of a product or a convolution; None where no block is multiplied, or groups share its columns out.

        Of an op that is summed in slices, it is that of the slices.
        """
        if op.slices > 1:
            op = sliced(op, op.slices) or op
        if op.family.name == "matmul":
            return cls._of_product(op)
        if op.family.name in ("conv2d", "conv2d_slices"):
            return cls._of_convolution(op)
        return None

    @classmethod
    def _of_product(cls, op: Op) -> Problem | None:
        matrices = Matrices.of(op)
        if matrices is None or matrices.depth < 1 or matrices.column is None or not op.output.size:
            return None
        rows, columns = matrices.num_rows(op), op.output.shape[matrices.column]
        if rows <= FEW_ROWS:
            return None
        least = min(matrices.left.vector_along(matrices.depth), matrices.columns_read_at_once(op))
        along_depth, count = matrices.columns_vector(op) is None, op.output.size // (rows * columns)
        return cls("product", *_type(op), least, along_depth, rows, columns, matrices.depth, count, op.rounded)

    @classmethod
    def _of_convolution(cls, op: Op) -> Problem | None:
        x, w = op.inputs[:2]
        if op.attrs.groups > 1 or x.dtype != w.dtype or not op.output.size:
            return None
        (kernel_height, kernel_width, channels, outputs), attrs = w.shape, op.attrs
        depth = kernel_height * kernel_width * channels
        if not depth:
            return None
        least = min(Taps.of(op).vector, vector(w.dtype, depth if op.rounded else outputs, w.view.offset()))
        gathers = (kernel_height, kernel_width) != (1, 1) or max(attrs.strides) > 1 or any(attrs.padding)
        slices = attrs.slices if isinstance(attrs, ConvSlicesAttrs) else 1
        depth = attrs.length(depth) if isinstance(attrs, ConvSlicesAttrs) else depth
        kind = "convolution" if gathers or slices > 1 else "product"
        pixels = math.prod(op.output.shape[-4:-1])
        return cls(kind, *_type(op), least, op.rounded, pixels, outputs, depth, slices, op.rounded)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return 4 if self.dtype == "float32" else 2

    @property
    def by_warpgroups(self) -> bool:
        """Whether warpgroups can multiply it where a GPU has them."""
        if self.itemsize == 4 and not (self.rounded and self.along_depth):
            return False
        return self.vector * self.itemsize == 16 and self.depth * self.itemsize >= LINE_BYTES and self.rows > 32

    @property
    def sort(self) -> tuple[Any, ...]:
        """What is equal for problems of which one's choice may serve another."""
        return self.kind, self.dtype, self.exact, self.vector, self.along_depth, self.rounded

    def distance(self, other: Problem) -> float:
        """How unlike another one of its sort it is: by how many doublings rows, columns, depth and matrices differ, together."""
        pairs = zip(self._extents, other._extents, strict=True)
        return sum(abs(math.log2(own / others)) for own, others in pairs)

    @property
    def _extents(self) -> tuple[int, int, int, int]:
        return self.rows, self.columns, self.depth, self.matrices

    def __str__(self) -> str:
        size = f"{self.rows} x {self.depth} by {self.depth} x {self.columns}"
        return f"{self.kind} of {self.dtype} {size}" + (f", {self.matrices} times" if self.matrices > 1 else "")


def _type(op: Op) -> tuple[str, bool]:
    dtype = op.inputs[0].dtype
    return dtype.name, bool(op.exact and dtype == np.float32)
