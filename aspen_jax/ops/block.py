"""The `block` op family: element-wise programs over views of one shape; and the work of any op's element-wise program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from aspen_jax.ops.block_program import BlockProgram
from aspen_jax.ops.family import OpFamily, Typed, Work

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

# What an instruction costs beside an addition, measured on the vector math of cpu/vmath.h.
_FLOPS_OF_TRANSCENDENTAL = 12


def program_flops(program: BlockProgram | None) -> int:
    """Floating-point operations an element, in additions' worth."""
    if program is None:
        return 0
    heavy = ("exp", "log", "tanh", "erf", "sin", "cos", "tan", "pow", "cbrt", "asin", "acos", "atan", "rem")
    return sum(_FLOPS_OF_TRANSCENDENTAL if i.opcode.startswith(heavy) else 1 for i in program.instructions)


def box_sizes(boxes: np.ndarray) -> np.ndarray:
    """Number of elements of each box [T, rank, 2], as float64."""
    return np.prod(np.maximum(boxes[:, :, 1] - boxes[:, :, 0], 0), axis=1, dtype=np.float64)


def epilogue_work(op: Op, boxes: np.ndarray) -> Work:
    """Work of the element-wise program and of writing the output: what every family adds to its own."""
    sizes = box_sizes(boxes)
    read = sum(op_input.dtype.itemsize for op_input in op.extra_inputs if op_input.value.size >= op.output.size)
    written = sum(value.dtype.itemsize for value in op.outputs)
    return Work(sizes * program_flops(op.program), sizes * (read + written))


class Block(OpFamily):
    """`outputs = program(*inputs)`, element by element; every input view has the outputs' shape."""

    name = "block"
    kernel = "block"
    kernel_inputs = 0
    may_have_further = True

    def infer(self, attrs: Any, inputs: Sequence[Typed]) -> Typed:
        raise ValueError("a block op's shape is that of its output; use Builder.block")

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        return boxes

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        return epilogue_work(op, boxes)

    def reference(self, attrs: Any, *inputs: jax.Array) -> jax.Array:
        raise ValueError("a block op's reference is that of its program")


BLOCK = Block()
