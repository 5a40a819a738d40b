"""Stacks of pools and element-wise blocks, whose values between lie in shared memory (cuda/kernels/stack.h)."""

from __future__ import annotations

import dataclasses
import math

from aspen_jax.cuda.kernel import Kernel, constant, input_type, writes
from aspen_jax.cuda.lanes import element, function, load, statements
from aspen_jax.cuda.pool import PoolShape
from aspen_jax.cuda.rows import combination
from aspen_jax.ir.program import Op
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.opcodes import lane_of, narrowing
from aspen_jax.ops.pool import POOL
from aspen_jax.ops.stack import StackAttrs, boxes_of, parts_of

THREADS = 256


@dataclasses.dataclass(frozen=True)
class StackShape:
    """What a thread block computes at once, as StackShape in cuda/kernels/stack.h.

    Attributes:
        rank: of all parts.
        block: extents of the output at a time.
        lanes: of each of the two places for values between.
        threads: of a thread block.
    """

    rank: int
    block: tuple[int, ...]
    lanes: int
    threads: int

    @classmethod
    def of(cls, op: Op) -> StackShape:
        attrs: StackAttrs = op.attrs
        block = (*(1 for _ in range(attrs.axis)), attrs.strip, *attrs.unit)
        boxes = boxes_of(parts_of(op), attrs.axis, attrs.strip, attrs.unit)
        return cls(len(block), block, max(map(math.prod, boxes)), THREADS)


@writes("stack")
def _stack(op: Op) -> Kernel | None:
    parts = parts_of(op)
    types = [_part(part) for part in parts]
    between = all(element(part.output.dtype) and lane_of(part.output.dtype) for part in parts[:-1])
    if not between or any(part is None for part in types) or any(part.further for part in parts):
        return None
    functions, first = [], 0
    for number, part in enumerate(parts):
        functions.append(_function(op, part, number, first))
        first += len(part.inputs) - (number > 0)
    arguments = [input_type(op, 0), constant(StackShape.of(op)), *(part for part in types if part is not None)]
    return Kernel("Stack", arguments, functions="\n".join(functions))


def _part(part: Op) -> str | None:
    """What a part reads and makes of it, as C++; None where there is no such part."""
    if part.family is BLOCK:
        return "BlockPart"
    combined = combination(part.inputs[0].dtype, part.attrs.kind) if part.family is POOL else None
    return None if combined is None else f"PoolPart<{combined[0]}, {constant(PoolShape.of(part, combined[1]))}>"


def _function(op: Op, part: Op, number: int, first: int) -> str:
    """A function `part` that gives a part's element from its kernel's own lane. Its inputs are the stack's from `first` on."""
    at = [f"at[{axis}]" for axis in range(len(op.output.shape))]
    lines, result = [], "own"
    if part.program is not None:
        # Register 0 is the own lane: of a block, its first input.
        begin, end = (1, len(part.inputs)) if number == 0 else (first, first + len(part.inputs) - 1)
        own = [load(op, index, at) for index in range(begin, end)]
        lines, (result,) = statements(part.program, ["own", *own])
    narrow = narrowing(part.output.dtype)
    result = f"scalar::{narrow}({result})" if narrow else result
    return function("uint32_t part", f", PartNumber<{number}>, [[maybe_unused]] uint32_t own", [*lines, f"return {result};"])
