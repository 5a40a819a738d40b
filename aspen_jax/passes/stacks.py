"""Joins chains of ops whose values between would leave the cache (BrainSlug, section 4.1), and runs each as one op."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_panels import CONV2D_PANELS
from aspen_jax.ops.matmul import MATMUL, MATMUL_PANELS
from aspen_jax.ops.pool import POOL
from aspen_jax.ops.stack import WEIGHTED, boxes_of, rooms_of, stack_of
from aspen_jax.passes.split_depth import price

# A smaller value is still in the L2 caches when it is read.
_SMALLEST_BETWEEN = 1 << 20

# Values that an op reads and writes.
_HELD = 2

_LEAST_GAIN = 0.97  # of the estimated time

_A_FEW_ROWS = 4
_FEWEST_ROWS = 4  # of a strip of products: 2^4
_IMAGE_RANK = 4  # batch, rows, columns, channels
_PRODUCTS = (MATMUL, MATMUL_PANELS)
_CONVOLUTIONS = (CONV2D, CONV2D_PANELS)
_LANES = 16  # floats in the widest vector
# What a thread block computes at once: rows and columns, and channels, of which neighbours are read together.
_BLOCK_ROWS = (4, 8, 16, 32)
_BLOCK_CHANNELS = (8, 16, 32)
_LANE_BYTES = 4
_MOST_REPEATED = 1.6  # what the parts of a block compute, by what the output has of it


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Join each op with the one that it reads, if nothing else reads that and both may be parts of one stack."""
    readers = {value: len(uses) for value, uses in program.uses().items()}
    chains: dict[Value, list[Op]] = {}
    for op in program.ops:
        before = chains.get(op.inputs[0].value) if op.inputs else None
        if before is not None and readers[before[-1].output] == 1 and _may_follow(op, before[-1], machine):
            del chains[before[-1].output]
            chains[op.output] = [*before, op]
        else:
            chains[op.output] = [op]
    ops = (op for chain in chains.values() for op in _stacks(chain, machine))
    return program.replace(ops=tuple(ops))


def reasons(program: Program, machine: Machine) -> dict[Op, str]:
    """Why products and convolutions are no part of a stack with the one before, by the op that alone reads that."""
    readers = {value: len(uses) for value, uses in program.uses().items()}
    writers = {op.output: op for op in program.ops if op.family in WEIGHTED}
    found = {}
    for op in program.ops:
        before = writers.get(op.inputs[0].value) if op.family in WEIGHTED else None
        if before is not None and readers[before.output] == 1:
            parts = [before, op]
            reason = machine.why_apart(parts) or _why_not_behind(op, before, machine) or _why_not_joined(parts, machine)
            if reason is not None:
                found[op] = reason
    return found


def _why_not_joined(parts: list[Op], machine: Machine) -> str | None:
    """Why two ops that may be a stack are none."""
    if not machine.keeps_rows:
        stack = _in_rows(parts)
        if not machine.has_kernel(stack):
            return "there is no kernel for both"
        return _dearer(price([stack], machine), price(parts, machine))
    shape = _in_strips(parts, machine.stack_bytes, machine.fewest_bytes)(parts)
    if shape is None:
        return "what is between does not fit the cache beside their weights"
    return _why_not_worth(stack_of(parts, _axis(parts), *shape), parts, machine)


def _dearer(joined: float, apart: float) -> str | None:
    if joined < _LEAST_GAIN * apart:
        return None
    return f"by the cost model both as one take {joined / apart:.2f} times as long" if apart else "there is nothing to compute"


def _may_follow(op: Op, before: Op, machine: Machine) -> bool:
    """Whether an op may be a part of a stack behind another."""
    return _why_not_behind(op, before, machine) is None


def _why_not_behind(op: Op, before: Op, machine: Machine) -> str | None:
    """Why an op may not be a part of a stack behind another; None where it may."""
    value = before.output
    if not op.inputs[0].is_whole or len(value.shape) != len(op.output.shape):
        return "it reads the part before through a view, or has another rank"
    if any(item.value is value for item in op.inputs[1:]):
        return "it reads the part before twice"
    if not machine.keeps_rows and not _is_for_blocks(op, before):
        return "a thread block computes pools and blocks, or products, but none behind the other"
    if op.family in _PRODUCTS:
        may = before.family in _PRODUCTS and _has_matrix(before) and _has_matrix(op)
        return None if may else "rows of one of both are not multiplied by one matrix"
    if len(value.shape) != _IMAGE_RANK or not (before.family in (POOL, BLOCK) or _is_dense(before)):
        return "the part before gives no image, or is a convolution of groups"
    if op.family is POOL:
        return None if _is_cheap(before) and _keeps(op) else "rows that two tiles share are dear, or windows leave the image"
    if _is_depthwise(op):
        may = _is_cheap(before) and before.family in _CONVOLUTIONS and value.dtype == np.float32
        return None if may else "behind a window other than 1x1, or in 16 bits, rows would be computed twice"
    may = _is_dense(op) and _is_pointwise(op) and before.family in _CONVOLUTIONS
    return None if may else "it reads other rows than it writes"


def _is_for_blocks(op: Op, before: Op) -> bool:
    """Whether a thread block may compute an op behind another: pools and blocks, or products and convolutions."""
    if op.family is POOL:
        return before.family in (POOL, BLOCK)
    return op.family in WEIGHTED and before.family in WEIGHTED and not _is_depthwise(op)


def _has_matrix(op: Op) -> bool:
    """Whether a product multiplies each row of all but its last dimension by the same matrix."""
    rank = len(op.output.shape)
    return rank > 1 and op.attrs.a[:-1] == tuple(range(rank - 1)) and op.attrs.a[-1] < 0 and len(op.attrs.b) == 2


def _is_depthwise(op: Op) -> bool:
    return op.family is CONV2D and op.attrs.groups == op.inputs[0].shape[3] == op.output.shape[3]


def _is_dense(op: Op) -> bool:
    return op.family in _CONVOLUTIONS and op.attrs.groups == 1


def _is_pointwise(op: Op) -> bool:
    """Whether an op reads of its first input just what it writes of its output."""
    if op.family in _CONVOLUTIONS:
        return _window(op) == (1, 1) == tuple(op.attrs.strides) and not any(op.attrs.padding)
    return op.family is BLOCK


def _is_cheap(op: Op) -> bool:
    """Whether an op may be computed again for the rows that two tiles share."""
    return op.family in (POOL, BLOCK) or _window(op) == (1, 1)


def _window(op: Op) -> tuple[int, ...]:
    """Rows and columns of a convolution's window."""
    family = CONV2D_PANELS if op.family is CONV2D_PANELS else CONV2D
    return tuple(family.kernel_shape(op)[:2])


def _keeps(op: Op) -> bool:
    """Whether windows of a pool lie within an image and a channel."""
    attrs = op.attrs
    fields = (attrs.window, attrs.strides, attrs.base_dilation, attrs.window_dilation)
    return all(field[axis] == 1 for field in fields for axis in (0, 3)) and not any(
        pad[axis] for pad in (attrs.padding_lo, attrs.padding_hi) for axis in (0, 3)
    )


def _stacks(chain: list[Op], machine: Machine) -> Iterator[Op]:
    """The ops of a chain, joined as far as they fit and as it pays."""
    if not machine.keeps_rows and chain[0].family in WEIGHTED:
        yield from _products_in_blocks(chain, machine)
        return
    find = functools.partial(_in_strips, fewest_bytes=machine.fewest_bytes) if machine.keeps_rows else _in_blocks
    while len(chain) > 1:
        # Sizes grow with the length, so the longest that fits is found by halving.
        counts = range(2, min(len(chain), machine.most_parts) + 1)
        shapes = find(chain, machine.stack_bytes)
        length = 1 + bisect.bisect_left(counts, True, key=lambda count: shapes(chain[:count]) is None)
        parts, chain = chain[:length], chain[length:]
        shape = shapes(parts) if length > 1 else None
        stack = None if shape is None else stack_of(parts, _axis(parts), *shape)
        yield from parts if stack is None or _why_not_worth(stack, parts, machine) is not None else (stack,)
    yield from chain


def _products_in_blocks(chain: list[Op], machine: Machine) -> Iterator[Op]:
    """Products of a chain, of which the most that pay are one op of thread blocks, each with some rows (Bolt, section 3.1.1)."""
    while chain:
        lengths = range(min(len(chain), machine.most_parts), 1, -1)
        stacks = ((length, _of_rows(chain[:length], machine)) for length in lengths)
        length, stack = next(((length, stack) for length, stack in stacks if stack is not None), (1, chain[0]))
        yield stack
        chain = chain[length:]


def _of_rows(parts: list[Op], machine: Machine) -> Op | None:
    """The stack of products whose thread blocks own rows; None where there is no kernel for it, or it does not pay."""
    stack = _in_rows(parts)
    if not machine.has_kernel(stack):
        return None
    return stack if _dearer(price([stack], machine), price(parts, machine)) is None else None


def _in_rows(parts: list[Op]) -> Op:
    """Products as one op of rows."""
    axis, output = _axis(parts), parts[-1].output
    inner = output.shape[axis + 1 :]
    return stack_of(parts, axis, 1, (*(1 for _ in inner[1:]), max(inner[-1], 1)))


def _why_not_worth(stack: Op, parts: list[Op], machine: Machine) -> str | None:
    """Why a stack does not pay; None where it does."""
    between = [part.output for part in parts[:-1]]
    images = max(between[0].shape[0], 1) if parts[-1].family not in _PRODUCTS else 1
    if max(value.nbytes for value in between) // images < _SMALLEST_BETWEEN:
        return "what is between is small enough to stay in the L2 caches"
    # Arithmetic takes most of a pool's time where the last cache holds what it reads and writes.
    if parts[-1].family is POOL and _HELD * max(value.nbytes for value in between) <= machine.last_cache_bytes:
        return "the last cache holds what is between"
    if not machine.has_kernel(stack):
        return "there is no kernel for both"
    # Where arithmetic takes most of the time, a stack only keeps the workers from choosing their tiles.
    return _dearer(machine.of_ops([stack]), machine.of_ops(parts))


_Shape = tuple[int, tuple[int, ...]]
"""Rows of a strip, and the unit behind them."""


def _axis(parts: list[Op]) -> int:
    """Of the strips: rows of an image, or of the last matrix of a product."""
    rank = len(parts[-1].output.shape)
    return rank - 2 if parts[-1].family in _PRODUCTS else rank - _IMAGE_RANK + 1


def _shapes(parts: list[Op]) -> list[_Shape]:
    """Those that are considered, the smallest first."""
    axis = _axis(parts)
    rows, *inner, channels = (max(extent, 1) for extent in parts[-1].output.shape[axis:])
    # What writes dense rows needs room for all channels.
    whole = any(part.family in WEIGHTED for part in parts)
    widths = [channels] if whole else dict.fromkeys(min(_LANES * 2**n, channels) for n in range(12))
    # A few rows of a matrix at a time would read the other matrix as often.
    first = _FEWEST_ROWS if parts[-1].family in _PRODUCTS else 0
    strips = dict.fromkeys(min(2**n, rows) for n in range(first, first + 6))
    return [(strip, (*inner, width)) for width in widths for strip in strips]


def _ease(shape: _Shape) -> tuple[int, int, int]:
    """How fast a stack of this shape is. A few rows at a time save most of what moving kept rows costs; then all channels do."""
    strip, unit = shape
    return min(strip, _A_FEW_ROWS), unit[-1], strip


def _least(parts: list[Op]) -> _Shape:
    return _shapes(parts)[0]


def _comfortable(parts: list[Op]) -> _Shape:
    """The smallest of the shapes with a few rows of all channels."""
    shapes = _shapes(parts)
    return min(shapes, key=lambda shape: (-_ease(shape)[0], -_ease(shape)[1], shape[0]))


_Find = Callable[[list[Op]], _Shape | None]
"""The fastest shape of some parts that fits; None where none does."""


def _in_strips(chain: list[Op], limit: int, fewest_bytes: bool) -> _Find:
    """For a core, which goes through strips and keeps rows."""
    least = _comfortable if _size(chain[:2], _comfortable(chain[:2])) <= limit and not fewest_bytes else _least

    def shape_of(parts: list[Op]) -> _Shape | None:
        if _size(parts, least(parts)) > limit:
            return None
        return max((shape for shape in _shapes(parts) if _size(parts, shape) <= limit), key=_ease)

    return shape_of


def _in_blocks(chain: list[Op], limit: int) -> _Find:
    """For a thread block, which computes the halos of its block of the output itself, in two places taken in turn."""

    def shape_of(parts: list[Op]) -> _Shape | None:
        axis, output = _axis(parts), parts[-1].output
        shape, whole = output.shape, sum(part.output.size for part in parts)
        found: dict[_Shape, float] = {}
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


def _size(parts: list[Op], shape: _Shape) -> int:
    """Bytes of the values between, and of the weights, which every strip reads."""
    rooms = rooms_of(parts, _axis(parts), *shape)
    between = sum(math.prod(room) * part.output.dtype.itemsize for room, part in zip(rooms, parts[:-1], strict=True))
    return between + sum(part.inputs[1].value.nbytes for part in parts if part.family in WEIGHTED)
