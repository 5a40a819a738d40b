"""Joins chains of ops whose values between would leave the cache (BrainSlug, section 4.1), and runs each as one op."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_panels import CONV2D_PANELS
from aspen_jax.ops.matmul import MATMUL, MATMUL_PANELS
from aspen_jax.ops.pool import POOL
from aspen_jax.ops.stack import WEIGHTED, rooms_of, stack_of

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


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Join each op with the one that it reads, if nothing else reads that and both may be parts of one stack."""

    def joined(chain: list[Op]) -> Iterator[Op]:
        def find_in(chain: list[Op]) -> Find:
            return _in_strips(chain, machine.stack_bytes, machine.fewest_bytes)

        def why_not(stack: Op, parts: list[Op]) -> str | None:
            return why_not_worth(stack, parts, machine)

        return as_far_as_it_pays(chain, find_in, why_not, machine.most_parts)

    return program.replace(ops=tuple(op for chain in chains(program, why_not_behind) for op in joined(chain)))


def reasons(program: Program, machine: Machine) -> dict[Op, str]:
    """Why products and convolutions are no part of a stack with the one before, by the op that alone reads that."""

    def why(op: Op, before: Op) -> str | None:
        return why_not_behind(op, before) or _why_not_joined([before, op], machine)

    return why_alone(program, why)


_Why = Callable[[Op, Op], str | None]
"""Of an op and the one before, why they may not be parts of one stack; None where they may."""


def chains(program: Program, why_not: _Why) -> Iterable[list[Op]]:
    """Ops one behind the other, each of which reads the one before, which nothing else reads."""
    readers = {value: len(uses) for value, uses in program.uses().items()}
    found: dict[Value, list[Op]] = {}
    for op in program.ops:
        before = found.get(op.inputs[0].value) if op.inputs else None
        if before is not None and readers[before[-1].output] == 1 and why_not(op, before[-1]) is None:
            del found[before[-1].output]
            found[op.output] = [*before, op]
        else:
            found[op.output] = [op]
    return found.values()


def why_alone(program: Program, why: _Why) -> dict[Op, str]:
    """What `why` says of products and convolutions, by the op that alone reads the one before."""
    readers = {value: len(uses) for value, uses in program.uses().items()}
    writers = {op.output: op for op in program.ops if op.family in WEIGHTED}
    found = {}
    for op in program.ops:
        before = writers.get(op.inputs[0].value) if op.family in WEIGHTED else None
        if before is not None and readers[before.output] == 1 and (reason := why(op, before)) is not None:
            found[op] = reason
    return found


def as_far_as_it_pays(
    chain: list[Op], find_in: Callable[[list[Op]], Find], why_not: Callable[[Op, list[Op]], str | None], most_parts: int
) -> Iterator[Op]:
    """The ops of a chain, joined as far as they fit and as it pays.

    Args:
        chain: ops, each of which reads the one before.
        find_in: of what is left of the chain, what gives the shape of a stack of its first ops.
        why_not: of a stack and its parts, why it does not pay.
        most_parts: of a stack.
    """
    while len(chain) > 1:
        # Sizes grow with the length, so the longest that fits is found by halving.
        counts, find = range(2, min(len(chain), most_parts) + 1), find_in(chain)
        length = 1 + bisect.bisect_left(counts, True, key=lambda count: find(chain[:count]) is None)
        parts, chain = chain[:length], chain[length:]
        shape = find(parts) if length > 1 else None
        stack = None if shape is None else stack_of(parts, axis_of(parts), *shape)
        yield from parts if stack is None or why_not(stack, parts) is not None else (stack,)
    yield from chain


def _why_not_joined(parts: list[Op], machine: Machine) -> str | None:
    """Why two ops that may be a stack are none."""
    shape = _in_strips(parts, machine.stack_bytes, machine.fewest_bytes)(parts)
    if shape is None:
        return "what is between does not fit the cache beside their weights"
    return why_not_worth(stack_of(parts, axis_of(parts), *shape), parts, machine)


def dearer(joined: float, apart: float) -> str | None:
    """Why a stack of that price does not pay, beside its parts apart; None where it does."""
    if joined < _LEAST_GAIN * apart:
        return None
    return f"by the cost model both as one take {joined / apart:.2f} times as long" if apart else "there is nothing to compute"


def why_not_behind(op: Op, before: Op) -> str | None:
    """Why an op may not be a part of a stack behind another; None where it may."""
    value = before.output
    if not op.inputs[0].is_whole or len(value.shape) != len(op.output.shape):
        return "it reads the part before through a view, or has another rank"
    if any(item.value is value for item in op.inputs[1:]):
        return "it reads the part before twice"
    if op.family in _PRODUCTS:
        may = before.family in _PRODUCTS and _has_matrix(before) and _has_matrix(op)
        return None if may else "rows of one of both are not multiplied by one matrix"
    if len(value.shape) != _IMAGE_RANK or not (before.family in (POOL, BLOCK) or _is_dense(before)):
        return "the part before gives no image, or is a convolution of groups"
    if op.family is POOL:
        return None if _is_cheap(before) and _keeps(op) else "rows that two tiles share are dear, or windows leave the image"
    if is_depthwise(op):
        may = _is_cheap(before) and before.family in _CONVOLUTIONS and value.dtype == np.float32
        return None if may else "behind a window other than 1x1, or in 16 bits, rows would be computed twice"
    may = _is_dense(op) and _is_pointwise(op) and before.family in _CONVOLUTIONS
    return None if may else "it reads other rows than it writes"


def _has_matrix(op: Op) -> bool:
    """Whether a product multiplies each row of all but its last dimension by the same matrix."""
    rank = len(op.output.shape)
    return rank > 1 and op.attrs.a[:-1] == tuple(range(rank - 1)) and op.attrs.a[-1] < 0 and len(op.attrs.b) == 2


def is_depthwise(op: Op) -> bool:
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


def why_not_worth(stack: Op, parts: list[Op], machine: Machine) -> str | None:
    """Why a stack does not pay; None where it does."""
    between = [part.output for part in parts[:-1]]
    images = max(between[0].shape[0], 1) if parts[-1].family not in _PRODUCTS else 1
    if max(value.nbytes for value in between) // images < _SMALLEST_BETWEEN:
        return "what is between is small enough to stay in the L2 caches"
    # Arithmetic takes most of a pool's time where the last cache holds what it reads and writes.
    if parts[-1].family is POOL and _HELD * max(value.nbytes for value in between) <= machine.last_cache_bytes:
        return "the last cache holds what is between"
    # Where arithmetic takes most of the time, a stack only keeps the workers from choosing their tiles.
    return dearer(machine.of_ops([stack]), machine.of_ops(parts))


Shape = tuple[int, tuple[int, ...]]
"""Rows of a strip, and the unit behind them."""


def axis_of(parts: list[Op]) -> int:
    """The axis along which strips are cut: rows of an image, or of the last matrix of a product."""
    rank = len(parts[-1].output.shape)
    return rank - 2 if parts[-1].family in _PRODUCTS else rank - _IMAGE_RANK + 1


def _shapes(parts: list[Op]) -> list[Shape]:
    """The shapes of strips to consider, the smallest first."""
    axis = axis_of(parts)
    rows, *inner, channels = (max(extent, 1) for extent in parts[-1].output.shape[axis:])
    # What writes dense rows needs room for all channels.
    whole = any(part.family in WEIGHTED for part in parts)
    widths = [channels] if whole else dict.fromkeys(min(_LANES * 2**n, channels) for n in range(12))
    # A few rows of a matrix at a time would read the other matrix as often.
    first = _FEWEST_ROWS if parts[-1].family in _PRODUCTS else 0
    strips = dict.fromkeys(min(2**n, rows) for n in range(first, first + 6))
    return [(strip, (*inner, width)) for width in widths for strip in strips]


def _ease(shape: Shape) -> tuple[int, int, int]:
    """How fast a stack of this shape is. A few rows at a time save most of what moving kept rows costs; then all channels do."""
    strip, unit = shape
    return min(strip, _A_FEW_ROWS), unit[-1], strip


def _least(parts: list[Op]) -> Shape:
    return _shapes(parts)[0]


def _comfortable(parts: list[Op]) -> Shape:
    """The smallest of the shapes with a few rows of all channels."""
    shapes = _shapes(parts)
    return min(shapes, key=lambda shape: (-_ease(shape)[0], -_ease(shape)[1], shape[0]))


Find = Callable[[list[Op]], Shape | None]
"""The fastest shape of some parts that fits; None where none does."""


def _in_strips(chain: list[Op], limit: int, fewest_bytes: bool) -> Find:
    """Find the shape for a CPU core, which goes through strips and keeps rows."""
    least = _comfortable if _size(chain[:2], _comfortable(chain[:2])) <= limit and not fewest_bytes else _least

    def shape_of(parts: list[Op]) -> Shape | None:
        if _size(parts, least(parts)) > limit:
            return None
        return max((shape for shape in _shapes(parts) if _size(parts, shape) <= limit), key=_ease)

    return shape_of


def _size(parts: list[Op], shape: Shape) -> int:
    """Bytes of the values between, and of the weights, which every strip reads."""
    rooms = rooms_of(parts, axis_of(parts), *shape)
    between = sum(math.prod(room) * part.output.dtype.itemsize for room, part in zip(rooms, parts[:-1], strict=True))
    return between + sum(part.inputs[1].value.nbytes for part in parts if part.family in WEIGHTED)
