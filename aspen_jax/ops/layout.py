"""Layout primitives: each is a view of its operand, written as a copy that the layout pass folds into the readers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aspen_jax.ir.program import Operand
from aspen_jax.ir.view import View
from aspen_jax.ops.block_program import BlockBuilder
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts


def viewed(build: Builder, operand: Operand, view: View) -> Operand:
    """A dense value of what `view`, in the coordinates of `operand`'s view, shows."""
    return build.copy(Operand(operand.value, view))


def reshaped(build: Builder, operand: Operand, shape: tuple[int, ...]) -> Operand:
    """The operand in another shape, in row-major order."""
    if operand.shape == shape:
        return operand
    view = operand.view.reshape(shape)
    if view is None:
        operand = build.copy(operand)
        view = operand.view.reshape(shape)
        assert view is not None, "a dense value can be reshaped"
    return viewed(build, operand, view)


def transposed(build: Builder, operand: Operand, permutation: Sequence[int]) -> Operand:
    """The operand with dimensions permuted as jax.lax.transpose does."""
    if tuple(permutation) == tuple(range(len(operand.shape))):
        return operand
    return viewed(build, operand, operand.view.transpose(tuple(permutation)))


@converts("reshape")
def _convert_reshape(build: Builder, equation: Equation, operand: Operand) -> Operand:
    if equation.params.get("dimensions") is not None:
        operand = transposed(build, operand, equation.params["dimensions"])
    return reshaped(build, operand, equation.shape)


@converts("squeeze")
def _convert_squeeze(build: Builder, equation: Equation, operand: Operand) -> Operand:
    return reshaped(build, operand, equation.shape)


@converts("transpose")
def _convert_transpose(build: Builder, equation: Equation, operand: Operand) -> Operand:
    return transposed(build, operand, equation.params["permutation"])


@converts("broadcast_in_dim")
def _convert_broadcast(build: Builder, equation: Equation, operand: Operand, *dynamic_shape: Operand) -> Operand:
    if dynamic_shape:
        raise Unsupported("broadcast_in_dim with a dynamic shape")
    dimensions = tuple(equation.params["broadcast_dimensions"])
    return viewed(build, operand, operand.view.broadcast_in_dim(equation.shape, dimensions))


@converts("slice")
def _convert_slice(build: Builder, equation: Equation, operand: Operand) -> Operand:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    return viewed(build, operand, operand.view.slice(tuple(starts), tuple(limits), tuple(strides)))


@converts("split")
def _convert_split(build: Builder, equation: Equation, operand: Operand) -> list[Operand]:
    axis, pieces, start = equation.params["axis"], [], 0
    rank = len(operand.shape)
    for size in equation.params["sizes"]:
        starts = tuple(start if d == axis else 0 for d in range(rank))
        limits = tuple(start + size if d == axis else operand.shape[d] for d in range(rank))
        pieces.append(viewed(build, operand, operand.view.slice(starts, limits, (1,) * rank)))
        start += size
    return pieces


@converts("unstack")
def _convert_unstack(build: Builder, equation: Equation, operand: Operand) -> list[Operand]:
    axis, rank = equation.params["axis"], len(operand.shape)
    pieces = []
    for index in range(operand.shape[axis]):
        starts = tuple(index if d == axis else 0 for d in range(rank))
        limits = tuple(index + 1 if d == axis else operand.shape[d] for d in range(rank))
        view = operand.view.slice(starts, limits).reshape(operand.shape[:axis] + operand.shape[axis + 1 :])
        assert view is not None, "dropping a dimension of one element needs no copy"
        pieces.append(viewed(build, operand, view))
    return pieces


@converts("tile")
def _convert_tile(build: Builder, equation: Equation, operand: Operand) -> Operand:
    repeats, rank = equation.params["reps"], len(operand.shape)
    if len(repeats) != rank:
        raise Unsupported(f"tile of rank {rank} by {len(repeats)} repeats")
    split = [extent for pair in zip(repeats, operand.shape, strict=True) for extent in pair]
    view = operand.view.broadcast_in_dim(split, range(1, 2 * rank, 2))
    return reshaped(build, viewed(build, operand, view), equation.shape)


@converts("rev")
def _convert_reverse(build: Builder, equation: Equation, operand: Operand) -> Operand:
    return viewed(build, operand, operand.view.reverse(tuple(equation.params["dimensions"])))


# Longer ramps are computed from two shorter ones: a constant is copied into each executable.
_LONGEST_RAMP = 1 << 12


def ramp(build: Builder, length: int, dtype: np.dtype) -> Operand:
    """0, 1, 2, ... as a constant; equal ones are written once."""
    array = np.arange(length).astype(dtype)
    for value, known in build.constants:
        if known.dtype == array.dtype and np.array_equal(known, array):
            return Operand.whole(value)
    return build.constant(array)


@converts("iota")
def _convert_iota(build: Builder, equation: Equation) -> Operand:
    dimension, shape, dtype = equation.params["dimension"], equation.shape, equation.dtype
    length = shape[dimension]
    if length <= _LONGEST_RAMP or dtype.name not in ("int32", "float32"):
        row = ramp(build, length, dtype)
    else:
        grid = (-(-length // _LONGEST_RAMP), _LONGEST_RAMP)
        digits = [ramp(build, extent, np.dtype(np.int32)) for extent in grid]
        block = BlockBuilder(2)
        high = block.emit("mul_i", block.input(0), block.constant(np.int32(_LONGEST_RAMP)))
        index = block.emit("add_i", high, block.input(1))
        program = block.build(index if dtype == np.int32 else block.emit("f_from_i", index))
        inputs = [Operand(item.value, item.view.broadcast_in_dim(grid, (axis,))) for axis, item in enumerate(digits)]
        flat = reshaped(build, build.block(program, inputs, grid, dtype), (math.prod(grid),))
        row = viewed(build, flat, flat.view.slice((0,), (length,)))
    return viewed(build, row, row.view.broadcast_in_dim(shape, (dimension,)))
