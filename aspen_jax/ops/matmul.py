"""Matrix products: `dot_general` with any dimensions in any order, on both sides and in the output.

Weights that are known beforehand are stored in panels: the order in which a tile reads them, from beginning to end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ir.view import MAX_RANK
from aspen_jax.ops import masks, windows
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import BLOCK, box_sizes, epilogue_work
from aspen_jax.ops.block_program import single
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts, need_dtypes
from aspen_jax.ops.family import PRODUCT_COLUMNS, OpFamily, Typed, Work, may_lie_in, pieces, unpermuted
from aspen_jax.ops.layout import reshaped, transposed
from aspen_jax.ops.opcodes import FLOATS
from aspen_jax.ops.reduce import REDUCE, ReduceAttrs

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

PANEL = 32  # columns of a panel of stored weights, on all targets


@dataclasses.dataclass(frozen=True)
class MatmulAttrs(Attrs):
    """Attributes of matmul: a label for each dimension of an operand, as einsum has letters.

    Attributes:
        a: label l >= 0 is the output's dimension l, label -1 - j the j-th summed dimension.
        b: the same. Summed dimensions are in both operands, the output's in one or, for batches, in both.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]


class Matmul(OpFamily):
    """Sums of products of a and b, floats, over the summed dimensions."""

    name = "matmul"
    kernel = "matmul"
    kernel_inputs = 2
    takes_epilogue = True
    weight_inputs = (1,)
    attrs_type = MatmulAttrs

    def infer(self, attrs: MatmulAttrs, inputs: Sequence[Typed]) -> Typed:
        (a, dtype), (b, _) = inputs
        if len(a) != len(attrs.a) or len(b) != len(attrs.b):
            raise ValueError(f"matmul of {a} by {b} with {attrs}")
        extents: dict[int, int] = {}
        for label, extent in (*zip(attrs.a, a, strict=True), *zip(attrs.b, b, strict=True)):
            if extents.setdefault(label, extent) != extent:
                raise ValueError(f"matmul of {a} by {b} with {attrs}: they disagree on label {label}")
        summed = {label for label in extents if label < 0}
        rank = len(extents) - len(summed)
        # Labels may be any numbers here: nothing may grow with them.
        if len(set(attrs.a)) < len(a) or len(set(attrs.b)) < len(b) or not all(label in extents for label in range(rank)):
            raise ValueError(f"matmul with {attrs}: a label is missing or twice on an operand")
        if not summed <= set(attrs.a) & set(attrs.b):
            raise ValueError(f"matmul with {attrs}: a summed dimension is in one operand only")
        return tuple(extents[label] for label in range(rank)), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        labels, shape = (op.attrs.a, op.attrs.b)[index], op.inputs[index].shape
        region = np.empty((len(boxes), len(shape), 2), np.int64)
        for d, (label, extent) in enumerate(zip(labels, shape, strict=True)):
            region[:, d] = (0, extent) if label < 0 else boxes[:, label]
        return region

    def rewritten(self, op: Op) -> Operand | None:
        """C of `alpha * a @ b + beta * C` (Bolt, section 3.1.1): kernels read an epilogue's operand before they store there."""
        return next((operand for operand in op.extra_inputs if may_lie_in(op, operand)), None)

    def grain(self, op: Op) -> tuple[int, ...]:
        *rows, columns = (1, *op.output.shape)
        return (*(1 for _ in rows[1:]), min(PRODUCT_COLUMNS, columns)) if op.output.shape else ()

    def written_as(self, op: Op, permutation: Sequence[int]) -> MatmulAttrs | None:
        new = unpermuted(range(len(permutation)), permutation)
        attrs = MatmulAttrs(
            *(tuple(new[label] if label >= 0 else label for label in labels) for labels in (op.attrs.a, op.attrs.b))
        )
        last = max((d for d, source in enumerate(permutation) if op.output.shape[source] > 1), default=-1)
        # A batch dimension has no columns to be innermost.
        return None if last in attrs.a and last in attrs.b else attrs

    def reads_across(self, op: Op, index: int) -> bool:
        labels = (op.attrs.a, op.attrs.b)
        # The operand that has the output's last dimension is read along that.
        columns = max((d for d, extent in enumerate(op.output.shape) if extent > 1), default=-1)
        return index < 2 and columns in labels[index] and columns not in labels[1 - index] and labels[index][-1] < 0

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        inner = math.prod(extent for label, extent in zip(op.attrs.a, op.inputs[0].shape, strict=True) if label < 0)
        regions = [self.main_region(op, index, boxes) for index in range(2)]
        a, b = (box_sizes(region) * item.dtype.itemsize for region, item in zip(regions, op.inputs, strict=False))
        return Work(own.flops + 2.0 * box_sizes(boxes) * inner, own.bytes + a + b, pieces(op.inputs[1], regions[1]))

    def reference(self, attrs: MatmulAttrs, *inputs: jax.Array) -> jax.Array:
        a, b = inputs
        batch = [label for label in attrs.a if label >= 0 and label in attrs.b]
        summed = [label for label in attrs.a if label < 0]
        free = [label for label in (*attrs.a, *attrs.b) if label >= 0 and label not in batch]

        def places(labels: tuple[int, ...], group: list[int]) -> list[int]:
            return [labels.index(label) for label in group]

        contracting = (places(attrs.a, summed), places(attrs.b, summed))
        batches = (places(attrs.a, batch), places(attrs.b, batch))
        product = lax.dot_general(a, b, (contracting, batches), precision=lax.Precision.HIGHEST)
        order = [*batch, *free]
        return lax.transpose(product, [order.index(d) for d in range(len(order))])


@dataclasses.dataclass(frozen=True)
class MatmulPanelsAttrs(Attrs):
    """Attributes of matmul_panels: labels as of matmul, for b as it was before it was stored in panels.

    Attributes:
        a: labels of a.
        b: labels of b: first those of summed dimensions, then those of the output's last ones in order.
        shape: that of b then.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def summed(self) -> int:
        """How many of b's dimensions are summed."""
        return sum(label < 0 for label in self.b)


def to_panels(matrix: Any, numpy: Any) -> Any:
    """A matrix [K,N] as [ceil(N/32), K, 32], by the functions of `numpy` (numpy or jax.numpy)."""
    rows, columns = matrix.shape
    if columns % PANEL:
        matrix = numpy.pad(matrix, ((0, 0), (0, -columns % PANEL)))
    return matrix.reshape(rows, -1, PANEL).transpose(1, 0, 2)


def from_panels(panels: Any, shape: Sequence[int]) -> Any:
    """The array of this shape whose last dimensions are the columns of the matrix in panels; as a copy and views of that."""
    rows, columns = panels.shape[1], math.prod(shape) // panels.shape[1]
    return panels.transpose(1, 0, 2).reshape(rows, -1)[:, :columns].reshape(shape)


class MatmulPanels(Matmul):
    """Matrix multiplication with b, float32, stored in panels [ceil(N/32), K, 32]."""

    name = "matmul_panels"
    kernel = "matmul_panels"
    attrs_type = MatmulPanelsAttrs

    def infer(self, attrs: MatmulPanelsAttrs, inputs: Sequence[Typed]) -> Typed:
        (a, dtype), (b, _) = inputs
        output, _ = MATMUL.infer(MatmulAttrs(attrs.a, attrs.b), [(a, dtype), (attrs.shape, dtype)])
        if not panels_suit(attrs.a, attrs.b, len(output)) or min(attrs.shape, default=0) < 1 or b != panels_shape(attrs):
            raise ValueError(f"matmul_panels of {a} by {b} with {attrs}")
        return output, dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        if index == 0:
            return super().main_region(op, 0, boxes)
        attrs: MatmulPanelsAttrs = op.attrs
        first = np.zeros(len(boxes), np.int64)
        last = np.zeros(len(boxes), np.int64)
        unit = 1
        for label, extent in zip(reversed(attrs.b), reversed(attrs.shape), strict=True):
            if label >= 0:
                first += unit * boxes[:, label, 0]
                last += unit * (boxes[:, label, 1] - 1)
                unit *= extent
        region = np.empty((len(boxes), 3, 2), np.int64)
        region[:] = [(0, extent) for extent in op.inputs[1].shape]
        region[:, 0, 0] = first // PANEL
        region[:, 0, 1] = last // PANEL + 1
        region[(boxes[:, :, 0] >= boxes[:, :, 1]).any(axis=1)] = 0
        return region

    def written_as(self, op: Op, permutation: Sequence[int]) -> MatmulPanelsAttrs | None:
        return None

    def reference(self, attrs: MatmulPanelsAttrs, *inputs: jax.Array) -> jax.Array:
        a, b = inputs
        return MATMUL.reference(MatmulAttrs(attrs.a, attrs.b), a, from_panels(b, attrs.shape))


def panels_suit(a: Sequence[int], b: Sequence[int], rank: int) -> bool:
    """Whether an operand of labels b may be stored in panels, where the output has this rank."""
    summed = sum(label < 0 for label in b)
    columns = tuple(range(rank - len(b) + summed, rank))
    return tuple(b[summed:]) == columns and not set(columns) & set(a)


def panels_shape(attrs: MatmulPanelsAttrs) -> tuple[int, int, int]:
    """The shape of b in panels."""
    return -(-math.prod(attrs.shape[attrs.summed :]) // PANEL), math.prod(attrs.shape[: attrs.summed]), PANEL


MATMUL = Matmul()
MATMUL_PANELS = MatmulPanels()


@converts("dot_general")
def _convert_dot(build: Builder, equation: Equation, lhs: Operand, rhs: Operand) -> Operand:
    need_dtypes(equation, (lhs, rhs), *FLOATS)
    if len(equation.shape) > MAX_RANK:
        raise Unsupported(f"dot_general with an output of rank {len(equation.shape)}; kernels take up to {MAX_RANK}")
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = equation.params["dimension_numbers"]
    lhs_free = [d for d in range(len(lhs.shape)) if d not in (*lhs_contract, *lhs_batch)]
    rhs_free = [d for d in range(len(rhs.shape)) if d not in (*rhs_contract, *rhs_batch)]
    if math.prod(lhs.shape[d] for d in lhs_free) * math.prod(rhs.shape[d] for d in rhs_free) == 1:
        orders = [(*lhs_batch, *lhs_contract, *lhs_free), (*rhs_batch, *rhs_contract, *rhs_free)]
        total = _masked_sum(build, equation, (lhs, rhs), orders, len(lhs_batch))
        if total is not None:
            return total
    if math.prod(lhs.shape[d] for d in lhs_contract) == 1 and not _continues_chain(build, lhs, lhs_contract):
        a = transposed(build, lhs, (*lhs_batch, *lhs_free, *lhs_contract))
        b = transposed(build, rhs, (*rhs_batch, *rhs_free, *rhs_contract))
        return _outer(build, equation, (a, b), len(lhs_batch), (len(lhs_free), len(rhs_free)))
    # The order in which they are read fastest, which is that in which weights are worth storing.
    a = transposed(build, lhs, (*lhs_batch, *lhs_free, *lhs_contract))
    b = transposed(build, rhs, (*rhs_batch, *rhs_contract, *rhs_free))
    columns_from = len(lhs_batch) + len(lhs_free)
    batch, rows, columns = range(len(lhs_batch)), range(len(lhs_batch), columns_from), range(columns_from, len(equation.shape))
    summed = [-1 - j for j in range(len(lhs_contract))]
    return build.op(MATMUL, MatmulAttrs((*batch, *rows, *summed), (*batch, *summed, *columns)), [a, b], dtype=equation.dtype)


def _continues_chain(build: Builder, lhs: Operand, contracted: Sequence[int]) -> bool:
    """Whether the rows of a product are those of another one, which passes may join to a chain (`passes/stacks.py`).

    Such a product stays a sum, even of one summand. It begins at +0, so a product of zeros loses its sign there.
    """
    writer = build.writer(lhs.value) if tuple(contracted) == (len(lhs.shape) - 1,) else None
    while writer is not None and writer.family is BLOCK and writer.inputs:
        writer = build.writer(writer.inputs[0].value)
    return writer is not None and writer.family is MATMUL


def _outer(build: Builder, equation: Equation, operands: Sequence[Operand], num_batch: int, num_free: tuple[int, int]) -> Operand:
    """A product over a depth of one, of operands whose dimensions are batch, free and contracted ones: no sum, as in XLA.

    So a product of zeros keeps its sign, and what follows joins it.
    """
    shape = equation.shape
    left = (*shape[: num_batch + num_free[0]], *[1] * num_free[1])
    right = (*shape[:num_batch], *[1] * num_free[0], *shape[num_batch + num_free[0] :])
    inputs = []
    for operand, own in zip(operands, (left, right), strict=True):
        item = reshaped(build, operand, own)
        inputs.append(Operand(item.value, item.view.broadcast_in_dim(shape, tuple(range(len(shape))))))
    return build.block(single("mul_f"), inputs, shape, equation.dtype)


def _masked_sum(
    build: Builder, equation: Equation, operands: Sequence[Operand], orders: Sequence[Sequence[int]], num_batch: int
) -> Operand | None:
    """A product without rows and columns, which XLA takes for a sum of products, where a side is a mask; else None."""
    if {operand.dtype.name for operand in operands} | {equation.dtype.name} != {"float32"}:
        return None
    for side in (0, 1):
        mask = masks.mask_of(build, operands[side])
        if mask is None:
            continue
        value = transposed(build, operands[1 - side], orders[1 - side])
        mask = reshaped(build, transposed(build, mask, orders[side]), value.shape)
        terms = masks.selected(build, mask, value)
        total = build.op(REDUCE, ReduceAttrs(windows.SUM, tuple(range(num_batch, len(value.shape)))), [terms])
        return reshaped(build, total, equation.shape)
    return None
