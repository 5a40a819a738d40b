"""Strassen's algorithm: a matrix product as seven products of quarters where the direct way takes eight.

One step of it, in Winograd's form (Huang, Smith, Henry and van de Geijn, "Strassen's Algorithm Reloaded", 2016, show that it pays
for such sizes where no more than a tile's worth of the seven products ever exists). Rows 2i and 2i + 1 of the left operand make a
pair, panels 2p and 2p + 1 of 32 columns of the right one, and elements k and k + K/2 of the inner dimension: so an element of the
result is the same wherever tiles are cut, and rows mix with their neighbours only.

The error is bounded by norms, not by elements: it is about 1e-6 of the largest output near by, also for an output that is much
smaller itself. Where a pair of rows, or of columns of two panels, is not finite or lies further apart than 2^12, it is multiplied
directly, so that nothing spreads to the row or column beside it. Rows that are examples or tokens give the same bits whatever the
others are; so the pass that chooses it gives it the pixels of images, and keeps away from higher precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.family import OpFamily, Typed, Work

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

PRODUCTS = 7
FACTORS = 8  # the eighth is the quarter that no other factor is
PANEL = 32
COLUMNS = 2 * PANEL  # of a pair of panels

# Additions' worth of an element: of a left factor, counted with its loads and its store, and of the output.
_LEFT_FLOPS, _OUTPUT_FLOPS = 16.0, 12.0

_LINE = 16  # floats of a cache line

# How far apart the largest elements of two columns may lie, how large they may be, and what columns of zeros count as;
# cpu/strassen.cc has the same for rows.
_MOST_APART, _LARGEST, _OF_ZEROS = 2.0**12, 2.0**120, 2.0**16


def padding_for(inner: int) -> int:
    """Zeros, at least one, behind the inner dimension of left factors: neighbouring rows share no places in the L1 cache."""
    half = inner // 2
    return (-(-(half + 1) // _LINE) | 1) * _LINE - half


def left_factors(a: Any, padding: int, numpy: Any) -> Any:
    """A [..., M, K] as [8, ..., ceil(M/2), K/2 + padding], by the functions of `numpy` (numpy or jax.numpy)."""
    half = a.shape[-1] // 2
    no_pad = [(0, 0)] * (a.ndim - 2)
    a = numpy.pad(a, (*no_pad, (0, a.shape[-2] % 2), (0, 0)))
    upper, lower = a[..., 0::2, :], a[..., 1::2, :]
    a11, a12, a21, a22 = upper[..., :half], upper[..., half:], lower[..., :half], lower[..., half:]
    s1 = a21 + a22
    s2 = s1 - a11
    factors = numpy.stack([a11, a12, s1, s2, a11 - a21, a12 - s2, a22, a21])
    return numpy.pad(factors, ((0, 0), *no_pad, (0, 0), (0, padding)))


def right_shape(inner: int, columns: int) -> tuple[int, ...]:
    """The shape of the right factors of a matrix [inner, columns]."""
    return FACTORS, -(-columns // COLUMNS), inner // 2, PANEL


def right_factors(b: np.ndarray) -> np.ndarray:
    """B [K,N] as [8, ceil(N/64), K/2, 32]; the third factor of a pair of panels that is multiplied directly is NaN."""
    shape = right_shape(*b.shape)
    b = np.pad(b, ((0, 0), (0, -b.shape[1] % COLUMNS))).reshape(2, shape[2], shape[1], 2, PANEL)
    (b11, b12), (b21, b22) = np.ascontiguousarray(b.transpose(0, 3, 2, 1, 4))
    factors = np.empty(shape, b.dtype)
    factors[0], factors[1], factors[5], factors[7] = b11, b21, b22, b12
    with np.errstate(invalid="ignore", over="ignore"):  # those are marked
        t1 = np.subtract(b12, b11, out=factors[2])
        t2 = np.subtract(b22, t1, out=factors[3])
        np.subtract(b22, b12, out=factors[4])
        np.subtract(b21, t2, out=factors[6])
    factors[2, _are_apart(b)] = np.nan
    return factors


def _are_apart(b: np.ndarray) -> np.ndarray:
    """Whether a pair of panels has a column that would spoil its neighbour: b [2, K/2, pairs, 2, 32] -> bool [pairs]."""
    largest = np.abs(b).max(axis=(0, 1))
    most, least = largest.max(axis=1), np.where(largest > 0, largest, _OF_ZEROS).min(axis=1)
    return ~((most <= least * _MOST_APART) & (most <= _LARGEST)).all(axis=1)


def _added(p: Any, columns: int, numpy: Any) -> Any:
    """The seven products [7, ..., pairs of rows, pairs of panels, 32] as rows [..., 2 pairs, columns]."""
    u = p[0] + p[3]
    v = u + p[2]
    upper, lower = (numpy.stack(pair, axis=-2) for pair in ((p[0] + p[1], v + p[5]), (u + p[4] + p[6], v + p[4])))
    both = numpy.stack([upper, lower], axis=-4)
    return both.reshape(*both.shape[:-5], -1, both.shape[-3] * COLUMNS)[..., :columns]


@dataclasses.dataclass(frozen=True)
class StrassenRowsAttrs(Attrs):
    """Attributes of strassen_rows: zeros behind the inner dimension."""

    padding: int


class StrassenRows(OpFamily):
    """a [..., M, K] -> left factors [8, ..., ceil(M/2), K/2 + padding], float32; K is even, padding at least 1."""

    name = "strassen_rows"
    kernel = "strassen_rows"
    kernel_inputs = 1
    attrs_type = StrassenRowsAttrs

    def infer(self, attrs: Any, inputs: Sequence[Typed]) -> Typed:
        ((shape, dtype),) = inputs
        if len(shape) < 2 or shape[-1] % 2 or attrs.padding < 1:
            raise ValueError(f"strassen_rows of {shape} with {attrs}")
        return (FACTORS, *shape[:-2], -(-shape[-2] // 2), shape[-1] // 2 + attrs.padding), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        region = boxes[:, 1:].copy()
        region[:, -2] = np.minimum(2 * boxes[:, -2], op.inputs[0].shape[-2])
        region[:, -1] = (0, op.inputs[0].shape[-1])
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        return (FACTORS, *(1 for _ in op.output.shape[1:-1]), max(op.output.shape[-1], 1))

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        return operand.shape[-1] == 1 or operand.view.strides()[-1] == 1

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        # What it reads was written just before, and what it writes is read at once: all of it stays in the caches.
        return Work(_LEFT_FLOPS * box_sizes(boxes), np.zeros(len(boxes)))

    def reference(self, attrs: Any, *inputs: jax.Array) -> jax.Array:
        return left_factors(inputs[0], attrs.padding, jnp)


@dataclasses.dataclass(frozen=True)
class StrassenAttrs(Attrs):
    """Attributes of strassen: rows and columns of a matrix of the result; the factors may hold more."""

    rows: int
    columns: int


class Strassen(OpFamily):
    """Left factors [8, ..., ceil(M/2), more than K/2], right factors [8, ceil(N/64), K/2, 32] -> [..., M, N], float32."""

    name = "strassen"
    kernel = "strassen"
    kernel_inputs = 2
    takes_epilogue = True
    weight_inputs = (1,)
    attrs_type = StrassenAttrs

    def infer(self, attrs: StrassenAttrs, inputs: Sequence[Typed]) -> Typed:
        (left, dtype), (right, _) = inputs
        half = right[2] if len(right) == 4 else 0
        fits = len(left) >= 3 and 1 <= half < left[-1] and (left[0], left[-2]) == (FACTORS, -(-attrs.rows // 2))
        if not fits or right != right_shape(2 * half, attrs.columns):
            raise ValueError(f"strassen of {left} by {right} with {attrs}")
        return (*left[1:-2], attrs.rows, attrs.columns), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        shape = op.inputs[index].shape
        region = np.empty((len(boxes), len(shape), 2), np.int64)
        region[:] = [(0, extent) for extent in shape]
        axis, step, size = ((-2, 2, -2), (1, COLUMNS, -1))[index]
        region[:, axis, 0] = boxes[:, size, 0] // step
        region[:, axis, 1] = -(-boxes[:, size, 1] // step)
        if index == 0:
            region[:, 1:-2] = boxes[:, :-2]
        return region

    def grain(self, op: Op) -> tuple[int, ...]:
        *lead, rows, columns = op.output.shape
        return (*(1 for _ in lead), max(1, min(2, rows)), max(1, min(COLUMNS, columns)))

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        left, right = self.main_region(op, 0, boxes), self.main_region(op, 1, boxes)
        pairs = box_sizes(left[:, 1:-1]) * (right[:, 1, 1] - right[:, 1, 0])
        flops = pairs * PANEL * (2.0 * PRODUCTS * op.inputs[1].shape[2] + 4 * _OUTPUT_FLOPS)
        # Left factors were written just before and are in the caches that workers share; weights come from memory.
        return Work(own.flops + flops, own.bytes + 4 * (box_sizes(left) / 2 + box_sizes(right)))

    def reference(self, attrs: StrassenAttrs, *inputs: jax.Array) -> jax.Array:
        left, right = inputs
        left, right = left[:PRODUCTS, ..., : right.shape[2]], right[:PRODUCTS]
        products = jnp.einsum("i...hk,ipkc->i...hpc", left, right, precision=lax.Precision.HIGHEST)
        return _added(products, attrs.columns, jnp)[..., : attrs.rows, :]


STRASSEN_ROWS = StrassenRows()
STRASSEN = Strassen()
