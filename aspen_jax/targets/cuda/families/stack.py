"""Stacks of pools and blocks, whose values between lie in shared memory (cuda/kernels/stack.h), and of products."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from aspen_jax.ir.program import Op
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.opcodes import lane_of, narrowing
from aspen_jax.ops.pool import POOL
from aspen_jax.ops.stack import StackAttrs, boxes_of, parts_of
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type, writes
from aspen_jax.targets.cuda.code.lanes import element, function, load, statements
from aspen_jax.targets.cuda.families.chain import arguments
from aspen_jax.targets.cuda.families.pool import PoolShape
from aspen_jax.targets.cuda.families.products import sums_at_once
from aspen_jax.targets.cuda.families.rows import combination

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
    between = all(element(part.output.dtype) and lane_of(part.output.dtype) for part in parts[:-1])
    if not between or any(part.further for part in parts):
        return None
    if parts[0].family in (MATMUL, CONV2D):
        run = sums_at_once(op)
        chain = arguments(op, parts, run)
        return None if chain is None else Kernel("Chain", chain, run, functions=_functions(op, parts), blocks=1)
    types = [_part(part) for part in parts]
    if any(part is None for part in types):
        return None
    own = [input_type(op, 0), constant(StackShape.of(op)), *(part for part in types if part is not None)]
    return Kernel("Stack", own, functions=_functions(op, parts))


def _part(part: Op) -> str | None:
    """What a part reads and makes of it, as C++; None where there is no such part."""
    if part.family is BLOCK:
        return "BlockPart"
    combined = combination(part.inputs[0].dtype, part.attrs.kind) if part.family is POOL else None
    return None if combined is None else f"PoolPart<{combined[0]}, {constant(PoolShape.of(part, combined[1]))}>"


def _functions(op: Op, parts: Sequence[Op]) -> str:
    """A C++ function `part` for each part, which gives its element from its kernel's own lane."""
    functions, begin = [], 0
    at = [f"at[{axis}]" for axis in range(len(op.output.shape))]
    for number, part in enumerate(parts):
        # Register 0 is the own lane: of a block, its first input. What follows the kernel's own inputs are the others.
        end = begin + len(part.inputs) - (number > 0)
        own = ["own", *(load(op, index, at) for index in range(begin + max(part.family.num_main(part), 1) - (number > 0), end))]
        lines, (result,) = statements(part.program, own) if part.program is not None else ([], ["own"])
        narrow = narrowing(part.output.dtype)
        result = f"scalar::{narrow}({result})" if narrow else result
        parameters = f", PartNumber<{number}>, [[maybe_unused]] uint32_t own"
        functions.append(function("uint32_t part", parameters, [*lines, f"return {result};"]))
        begin = end
    return "\n".join(functions)
