"""Joins chains of ops, each as one op: pools and blocks (BrainSlug, section 4.1), or products (Bolt, section 3.1.1).

A thread block keeps what lies between in shared memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from aspen_jax.ir.program import Op, Program
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.pool import POOL
from aspen_jax.ops.stack import WEIGHTED, boxes_of, stack_of
from aspen_jax.passes.stacks import (
    Find,
    Shape,
    as_far_as_it_pays,
    axis_of,
    chains,
    dearer,
    is_depthwise,
    why_alone,
    why_not_behind,
    why_not_worth,
)
from aspen_jax.targets.cuda.passes.split_depth import price
from aspen_jax.targets.cuda.price import Gpu

# What a thread block computes at once: rows and columns, and channels, of which neighbours are read together.
_BLOCK_ROWS = (4, 8, 16, 32)
_BLOCK_CHANNELS = (8, 16, 32)
_LANE_BYTES = 4
_MOST_REPEATED = 1.6  # what the parts of a block compute, by what the output has of it


def run(program: Program, machine: Gpu) -> Program:
    """Join each op with the one that it reads, if nothing else reads that and both may be parts of one stack."""

    def why_not(stack: Op, parts: list[Op]) -> str | None:
        return why_not_worth(stack, parts, machine) if machine.has_kernel(stack) else "there is no kernel for both"

    def joined(chain: list[Op]) -> Iterator[Op]:
        if chain[0].family in WEIGHTED:
            return _products_in_blocks(chain, machine)
        return as_far_as_it_pays(chain, lambda _: _in_blocks(machine.stack_bytes), why_not, machine.most_parts)

    return program.replace(ops=tuple(op for chain in chains(program, _why_not_behind) for op in joined(chain)))


def reasons(program: Program, machine: Gpu) -> dict[Op, str]:
    """Why products and convolutions are no part of a stack with the one before, by the op that alone reads that."""

    def why(op: Op, before: Op) -> str | None:
        parts = [before, op]
        return machine.why_apart(parts) or _why_not_behind(op, before) or _why_not_joined(parts, machine)

    return why_alone(program, why)


def _why_not_joined(parts: list[Op], machine: Gpu) -> str | None:
    """Why two products that may be a stack are none."""
    stack = _in_rows(parts)
    if not machine.has_kernel(stack):
        return "there is no kernel for both"
    return dearer(price([stack], machine), price(parts, machine))


def _why_not_behind(op: Op, before: Op) -> str | None:
    """Why an op may not be a part of a stack behind another; None where it may."""
    if not _is_for_blocks(op, before):
        return "a thread block computes pools and blocks, or products, but none behind the other"
    return why_not_behind(op, before)


def _is_for_blocks(op: Op, before: Op) -> bool:
    """Whether a thread block may compute an op behind another: pools and blocks, or products and convolutions."""
    if op.family is POOL:
        return before.family in (POOL, BLOCK)
    return op.family in WEIGHTED and before.family in WEIGHTED and not is_depthwise(op)


def _products_in_blocks(chain: list[Op], machine: Gpu) -> Iterator[Op]:
    """Products of a chain, of which the most that pay are one op of thread blocks, each with some rows (Bolt, section 3.1.1)."""
    while chain:
        lengths = range(min(len(chain), machine.most_parts), 1, -1)
        stacks = ((length, _of_rows(chain[:length], machine)) for length in lengths)
        length, stack = next(((length, stack) for length, stack in stacks if stack is not None), (1, chain[0]))
        yield stack
        chain = chain[length:]


def _of_rows(parts: list[Op], machine: Gpu) -> Op | None:
    """The stack of products whose thread blocks own rows; None where there is no kernel for it, or it does not pay."""
    stack = _in_rows(parts)
    if not machine.has_kernel(stack):
        return None
    return stack if dearer(price([stack], machine), price(parts, machine)) is None else None


def _in_rows(parts: list[Op]) -> Op:
    """Products as one op of rows."""
    axis, output = axis_of(parts), parts[-1].output
    inner = output.shape[axis + 1 :]
    return stack_of(parts, axis, 1, (*(1 for _ in inner[1:]), max(inner[-1], 1)))


def _in_blocks(limit: int) -> Find:
    """Find the shape for a thread block, which computes the halos of its output itself, in two places taken in turn."""

    def shape_of(parts: list[Op]) -> Shape | None:
        axis, output = axis_of(parts), parts[-1].output
        shape, whole = output.shape, sum(part.output.size for part in parts)
        found: dict[Shape, float] = {}
        for extents in itertools.product(_BLOCK_ROWS, _BLOCK_ROWS, _BLOCK_CHANNELS):
            strip, *unit = (max(min(size, extent), 1) for size, extent in zip(extents, shape[axis:], strict=True))
            boxes = boxes_of(parts, axis, strip, unit)
            if 2 * _LANE_BYTES * max(map(math.prod, boxes)) > limit:
                continue
            own = strip * math.prod(unit)
            found[strip, tuple(unit)] = sum(map(math.prod, boxes), own) / (own * whole / max(output.size, 1))
        best = min(found, key=lambda item: (found[item], -item[0]), default=None)
        return best if best is not None and found[best] <= _MOST_REPEATED else None

    return shape_of
