"""Lets products and convolutions reduce their own result: the partial reductions of a tile are taken while it is in the cache.

Gradients of biases are such sums, and so are the means of squeeze-and-excitation. Of a large result that others read too, one of
the readings from memory disappears, and the reduction that is left is small.
"""

from __future__ import annotations

import math

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops import windows
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_panels import CONV2D_PANELS
from aspen_jax.ops.family import PRODUCT_COLUMNS
from aspen_jax.ops.matmul import MATMUL, MATMUL_PANELS
from aspen_jax.ops.partial_reduce import MOST_AXES, units_of, with_partial
from aspen_jax.ops.reduce import REDUCE
from aspen_jax.ops.winograd import WINOGRAD

_REDUCED = (CONV2D, CONV2D_PANELS, MATMUL, MATMUL_PANELS, WINOGRAD)
_KINDS = (windows.SUM, windows.MAX, windows.MIN)

# A smaller result is still in the L2 caches when it is reduced.
_SMALLEST_RESULT = 1 << 20

# Deeper products are bound by arithmetic, and lose more by strips than a second reading costs: of 4096 x 1024 a depth of 256 took
# 0.93 of the time, the gradient of layers of 1024 took 1.06 (docs/results/residuals.md).
_MOST_DEPTH = 256

# Units of rows that all workers together can share, if there are so many of a fair size.
_ENOUGH_UNITS = 64
# Elements of the result behind one partial result, at least, or writing and reading those costs as much as is saved.
_SMALLEST_UNIT = 16
_MOST_COLUMNS = 512  # that are reduced at once, where there are more


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Let ops reduce their result where that pays."""
    results = {op.output: op for op in program.ops if op.family in _REDUCED and not op.further}
    made: dict[Op, Op] = {}
    for op in program.ops:
        if op.family is not REDUCE or op.attrs.kind not in _KINDS or not op.inputs[0].is_whole:
            continue
        producer = results.get(op.inputs[0].value)
        pair = None if producer is None or producer in made else _pair(producer, op, machine)
        if producer is not None and pair is not None:
            made[producer], made[op] = pair
    return program.replace(ops=tuple(made.get(op, op) for op in program.ops)) if made else program


def _pair(producer: Op, reduce: Op, machine: Machine) -> tuple[Op, Op] | None:
    """The op with partial reductions, and what is left of the reduction; None where that does not pay."""
    shape, axes = producer.output.shape, reduce.attrs.axes
    if producer.output.nbytes < _SMALLEST_RESULT or len(shape) + len(axes) > MOST_AXES or _depth(producer) > _MOST_DEPTH:
        return None
    unit = _unit(shape, axes)
    if math.prod(unit) < _SMALLEST_UNIT:
        return None
    partial = Value(units_of(shape, unit), np.dtype(np.float32))
    first = with_partial(producer, reduce.attrs.kind, axes, unit, partial)
    first = first.replace(name=f"{producer.name} + {reduce.name}")
    second = reduce.replace(inputs=(Operand.whole(partial), *reduce.inputs[1:]))
    if not machine.has_kernel(first) or not machine.are_cheaper([first, second], [producer, reduce]):
        return None
    return first, second


def _depth(op: Op) -> int:
    """What a product sums; 0 for convolutions, whose results are large beside their arithmetic."""
    if op.family not in (MATMUL, MATMUL_PANELS):
        return 0
    return math.prod(extent for label, extent in zip(op.attrs.a, op.inputs[0].shape, strict=True) if label < 0)


def _unit(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """How many indices of each axis are reduced to one partial result.

    They depend on the shape alone, so that results do not depend on who computes them. The outermost reduced axis is cut into
    enough units for all workers, the last one into as many columns as a product likes.
    """
    last = len(shape) - 1
    unit = [extent if axis in axes else 1 for axis, extent in enumerate(shape)]
    if last in axes and shape[last] > _MOST_COLUMNS:
        widths = range(_MOST_COLUMNS, 0, -PRODUCT_COLUMNS)
        unit[last] = next((width for width in widths if shape[last] % width == 0), shape[last])
    cut = next((axis for axis in axes if shape[axis] > 1 and axis < last), None)
    if cut is None:
        return tuple(unit)
    inner = math.prod(unit) // unit[cut]
    outer = math.prod(extent for axis, extent in enumerate(shape[:last]) if axis not in axes)
    sizes = [size for size in _divisors(shape[cut]) if size * inner >= _SMALLEST_UNIT]
    enough = [size for size in sizes if outer * shape[cut] // size >= _ENOUGH_UNITS]
    unit[cut] = max(enough) if enough else min(sizes, default=shape[cut])
    return tuple(unit)


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})
