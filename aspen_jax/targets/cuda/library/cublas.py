"""Products that NVIDIA's cublasLt multiplies inside our graph, where timing says that it is faster (cuda/cublas.h).

It comes with jax[cuda13]. It takes a product as a whole, or a convolution by single pixels. It adds the bias of each column and a
matrix like the result, and then a ReLU.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from aspen_jax.ir.program import Op, Operand
from aspen_jax.ir.view import View
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.opcodes import narrowing
from aspen_jax.targets.cuda.library import shared_library
from aspen_jax.targets.cuda.library.shared_library import ELEMENT_TYPES
from aspen_jax.targets.cuda.products.kernel_choices import prefers_cublas
from aspen_jax.targets.cuda.products.matrices import Matrices, Side
from aspen_jax.targets.cuda.products.pointwise import pixels_as_rows
from aspen_jax.targets.cuda.products.problem import Problem

NAMES = ("libcublasLt.so.13", "libcublasLt.so.12")

# Where lines and matrices begin, in bytes, as cuda/cublas.cc promises.
_ALIGNMENT = 16


@dataclasses.dataclass(frozen=True)
class LibraryMatrix:
    """Where a matrix lies, as LibraryMatrix in cuda/kernels/kernel_shape.h.

    Attributes:
        input: its number; -1: it is the output, or there is none.
        is_transposed: whether lines are columns.
        line: from a line to the next, in elements.
        matrix: from a matrix to the next.
    """

    input: int
    is_transposed: bool
    line: int
    matrix: int


@dataclasses.dataclass(frozen=True)
class LibraryProduct:
    """A product as the library is told of it, as LibraryProduct in cuda/kernels/kernel_shape.h.

    Attributes:
        rows, columns, depth: of a matrix.
        matrices: how many there are.
        operands: the type of their elements, by number.
        result: likewise.
        left, right: the operands.
        added: what is added to the result; input -1: nothing.
        output: where the result is.
        bias: the number of the input that has each column's; -1: there is none.
        relu: whether what is negative at last becomes 0.
    """

    rows: int
    columns: int
    depth: int
    matrices: int
    operands: int
    result: int
    left: LibraryMatrix
    right: LibraryMatrix
    added: LibraryMatrix
    output: LibraryMatrix
    bias: int
    relu: bool

    @classmethod
    def of(cls, op: Op) -> LibraryProduct | None:
        """The product of an op; None where the library does not multiply so, or does something else with the sums."""
        if op.family is not MATMUL:
            product = pixels_as_rows(op)
            return None if product is None else cls.of(product)
        problem = Problem.of(op) if op.slices == 1 and not op.further else None
        matrices = None if problem is None else Matrices.of(op)
        if problem is None or matrices is None or problem.exact or matrices.column != len(op.output.shape) - 1:
            return None
        if problem.vector * problem.itemsize != _ALIGNMENT or op.output.dtype.name not in ("float32", problem.dtype):
            return None
        output = _lines(dict(enumerate(View.identity(op.output.shape).strides())), matrices, op)
        left, right = _left(matrices, op), _right(matrices, op)
        if output is None or left is None or right is None:
            return None
        extras = _extras(op, matrices)
        if extras is None:
            return None
        bias, added, relu = extras
        if op.in_place and (added is None or op.inputs[added.input] is not op.family.rewritten(op)):
            return None
        return cls(
            problem.rows,
            problem.columns,
            problem.depth,
            problem.matrices,
            ELEMENT_TYPES[problem.dtype],
            ELEMENT_TYPES[op.output.dtype.name],
            left,
            right,
            added or LibraryMatrix(-1, False, *output),
            LibraryMatrix(-1, False, *output),
            bias,
            relu,
        )


def by_cublas(op: Op) -> LibraryProduct | None:
    """The product that the library multiplies in place of an op's kernel; None where the kernel is launched."""
    return LibraryProduct.of(op) if prefers_cublas(op) and is_there() else None


def is_there() -> bool:
    """Whether this process has the library."""
    return shared_library.is_there(*NAMES)


def _merged(strides: Mapping[int, int], axes: Sequence[int], op: Op) -> int | None:
    """The stride of some of the output's axes as one; None where they are none. Of no axes it is 0."""
    own = [strides.get(axis, 0) for axis in axes]
    for (stride, _), (inner, axis) in itertools.pairwise(zip(own, axes, strict=True)):
        if stride != inner * op.output.shape[axis]:
            return None
    return own[-1] if own else 0


def _lines(strides: Mapping[int, int], matrices: Matrices, op: Op) -> tuple[int, int] | None:
    """Strides from row to row and from matrix to matrix; None where it does not lie as rows of adjacent columns."""
    line, matrix = _merged(strides, matrices.rows, op), _merged(strides, matrices.outer, op)
    *_, columns = op.output.shape
    if line is None or matrix is None or line < columns or strides.get(len(op.output.shape) - 1, 0) != 1:
        return None
    return (line, matrix) if _are_aligned(op.output.dtype, line, matrix) else None


def _left(matrices: Matrices, op: Op) -> LibraryMatrix | None:
    left = matrices.left
    line, matrix = _merged(left.strides, matrices.rows, op), _merged(left.strides, matrices.outer, op)
    if line is None or matrix is None:
        return None
    return _matrix(left, line, left.step, matrix, matrices.num_rows(op), matrices.depth)


def _right(matrices: Matrices, op: Op) -> LibraryMatrix | None:
    right = matrices.right
    matrix = _merged(right.strides, matrices.outer, op)
    if matrix is None or matrices.column is None:
        return None
    column = right.strides[matrices.column]
    return _matrix(right, right.step, column, matrix, matrices.depth, op.output.shape[matrices.column])


def _matrix(side: Side, down: int, across: int, matrix: int, rows: int, columns: int) -> LibraryMatrix | None:
    """The matrix of a side, of rows x columns elements; None where it lies as the library reads none.

    Args:
        side: the operand.
        down: from a row to the next.
        across: from a column to the next.
        matrix: from a matrix to the next.
        rows: of a matrix.
        columns: of a matrix.
    """
    is_transposed = across != 1
    line, other, least = (across, down, rows) if is_transposed else (down, across, columns)
    fits = other == 1 and line >= least and _are_aligned(side.operand.dtype, line, matrix)
    return LibraryMatrix(side.number, is_transposed, line, matrix) if fits else None


def _are_aligned(dtype: np.dtype, *strides: int) -> bool:
    return all(stride >= 0 and stride * dtype.itemsize % _ALIGNMENT == 0 for stride in strides)


def _extras(op: Op, matrices: Matrices) -> tuple[int, LibraryMatrix | None, bool] | None:
    """The bias's number, -1 for none, what else is added, and whether a ReLU follows; None where the op does anything else."""
    bias, added, relu, program = -1, None, False, op.program
    if program is None:
        return bias, added, relu
    if program.constants or program.further:
        return None
    first, current = len(op.main_inputs) - 1, 0
    for register, (opcode, arguments) in enumerate(program.instructions, program.num_inputs):
        others = [argument for argument in arguments if argument != current]
        if opcode == "relu_f" and not others:
            relu = True
        elif opcode == "add_f" and not relu and len(arguments) == 2 and len(others) == 1 and 0 < others[0] < program.num_inputs:
            number = first + others[0]
            operand = op.inputs[number]
            if _is_bias(operand, op) and bias < 0:
                bias = number
            elif added is None and (found := _like_the_result(number, operand, op, matrices)) is not None:
                added = found
            else:
                return None
        elif (opcode, tuple(arguments), register) != (narrowing(op.output.dtype), (current,), program.result):
            return None
        current = register
    return (bias, added, relu) if program.result == current else None


def _is_bias(operand: Operand, op: Op) -> bool:
    *others, last = operand.view.strides()
    broadcast = all(stride == 0 for stride, extent in zip(others, op.output.shape[:-1], strict=True) if extent != 1)
    return operand.dtype == op.output.dtype and broadcast and last == 1 and _are_aligned(operand.dtype, operand.view.offset())


def _like_the_result(number: int, operand: Operand, op: Op, matrices: Matrices) -> LibraryMatrix | None:
    found = _lines(dict(enumerate(operand.view.strides())), matrices, op)
    if found is None or operand.dtype != op.output.dtype or not _are_aligned(operand.dtype, operand.view.offset()):
        return None
    return LibraryMatrix(number, False, *found)
