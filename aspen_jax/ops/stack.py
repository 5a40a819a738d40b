"""Ops one behind the other, whose values between exist only some rows at a time (BrainSlug, section 4.1). A pass makes them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aspen_jax.ir.dtypes import DTYPES
from aspen_jax.ops.attrs import Attrs, Words
from aspen_jax.ops.block import box_sizes
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_panels import CONV2D_PANELS
from aspen_jax.ops.family import FAMILIES, OpFamily, Typed, Work
from aspen_jax.ops.matmul import MATMUL, MATMUL_PANELS

if TYPE_CHECKING:
    import jax

    from aspen_jax.ir.program import Op
    from aspen_jax.ops.block_program import BlockProgram

WEIGHTED = (CONV2D, CONV2D_PANELS, MATMUL, MATMUL_PANELS)
"""Families whose input 1 has dimensions of its own, and which write dense rows."""

_MOST_POSITIONS = 4096
_FLOAT = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True)
class Part:
    """One op of a stack.

    Attributes:
        kernel: of the op.
        words: its parameter words.
        follows: for each of its inputs, without that of the part before, whether it follows the axes before the strips' as the
            output does; weights do not.
        shape: of its result from the strips' axis on, if another part reads that. Axes before are the output's.
        dtype: likewise.
        room: extents that the buffer of its result has, likewise.
    """

    kernel: str
    words: tuple[int, ...]
    follows: tuple[bool, ...]
    shape: tuple[int, ...] = ()
    dtype: np.dtype = _FLOAT
    room: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class StackAttrs(Attrs):
    """Attributes of stack.

    Attributes:
        axis: along which strips of the output are computed one after the other.
        strip: rows of the output at a time.
        unit: extents of the output at a time, behind that axis.
        parts: the ops.
    """

    axis: int
    strip: int
    unit: tuple[int, ...]
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", tuple(map(int, self.unit)))

    def __str__(self) -> str:
        return f"({' + '.join(part.kernel for part in self.parts)}, {self.strip} rows at a time)"

    def to_words(self) -> list[int]:
        words = [self.axis, self.strip, len(self.unit), *self.unit, len(self.parts)]
        for number, part in enumerate(self.parts):
            for item in (tuple(part.kernel.encode("ascii")), part.words, tuple(map(int, part.follows))):
                words += [len(item), *item]
            if number + 1 < len(self.parts):
                words += [DTYPES.index(part.dtype), len(part.shape), *part.shape, len(part.room), *part.room]
        return words

    @classmethod
    def from_words(cls, words: Words) -> StackAttrs:
        axis, strip, unit, count = words.integer(), words.integer(), words.list(), words.integer()
        parts = []
        for number in range(count):
            kernel, own, follows = words.name(), words.list(), words.list()
            part = Part(kernel, own, tuple(map(bool, follows)))
            if number + 1 < count:
                dtype = words.integer()
                if not 0 <= dtype < len(DTYPES):
                    raise ValueError(f"there is no dtype {dtype}")
                shape, room = words.list(), words.list()
                if not all(0 <= extent < 1 << 31 for extent in (*shape, *room)):
                    raise ValueError(f"a stack keeps {list(room)} of {list(shape)} between its parts")
                part = dataclasses.replace(part, dtype=DTYPES[dtype], shape=shape, room=room)
            parts.append(part)
        return cls(axis, strip, unit, tuple(parts))


class Stack(OpFamily):
    """part(...part(part(x, ...), ...)...), each with its epilogue."""

    name = "stack"
    kernel = "stack"
    attrs_type = StackAttrs
    repeats = True

    def infer(self, attrs: StackAttrs, inputs: Sequence[Typed]) -> Typed:
        raise ValueError("a stack's shape is that of its last part; use stack_of")

    def check(self, op: Op) -> None:
        attrs: StackAttrs = op.attrs
        if len(attrs.parts) < 2:
            raise ValueError(f"a stack of {len(attrs.parts)} parts")
        rank = len(op.output.shape)
        if not 0 <= attrs.axis < rank or len(attrs.unit) != rank - attrs.axis - 1 or min(attrs.strip, *attrs.unit, 1) < 1:
            raise ValueError(f"a stack takes {attrs.strip} x {list(attrs.unit)} of {list(op.output.shape)} at a time")
        if sum(len(part.follows) for part in attrs.parts) != len(op.inputs):
            raise ValueError(f"a stack has {len(op.inputs)} inputs, and its parts take others")
        if op.program is not None:
            raise ValueError("a stack has an epilogue of its own beside those of its parts")
        parts = parts_of(op)
        for part, described in zip(parts, attrs.parts, strict=True):
            part.family.check(part)
            if part is not parts[-1] and len(described.room) != rank - attrs.axis:
                raise ValueError("a value between has room for other dimensions than it has")
        for described, least in zip(attrs.parts, rooms_of(parts, attrs.axis, attrs.strip, attrs.unit), strict=False):
            if any(map(operator.lt, described.room, least)):
                raise ValueError(f"a value between has room for {list(described.room)} and needs {list(least)}")

    def may_store(self, op: Op, dtype: np.dtype) -> bool:
        last = parts_of(op)[-1]
        return last.family.may_store(last, dtype)

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        number, own = _place_of(op.attrs, index)
        parts = parts_of(op)
        return parts[number].family.region(parts[number], own, _needed(parts, boxes)[number])

    def grain(self, op: Op) -> tuple[int, ...]:
        attrs: StackAttrs = op.attrs
        return (*(1 for _ in range(attrs.axis + 1)), *attrs.unit)

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        parts = parts_of(op)
        flops, moved = np.zeros(len(boxes)), op.output.dtype.itemsize * box_sizes(boxes)
        for number, (part, needed) in enumerate(zip(parts, _needed(parts, boxes), strict=True)):
            flops += part.family.work(part, needed).flops
            for index in range(number > 0, len(part.inputs)):  # what is between stays in the cache
                operand = part.inputs[index]
                own = [axis for axis, stride in enumerate(operand.view.strides()) if stride]  # others repeat the same elements
                moved += operand.dtype.itemsize * box_sizes(part.family.region(part, index, needed)[:, own])
        return Work(flops, moved)

    def reference(self, attrs: StackAttrs, *inputs: jax.Array) -> jax.Array:
        raise ValueError("a stack's reference is that of its parts; see ops/reference.py")


STACK = Stack()


def parts_of(op: Op) -> list[Op]:
    """The ops of a stack, with values between them."""
    from aspen_jax.ir.program import Op, Operand, Value

    attrs: StackAttrs = op.attrs
    parts: list[Op] = []
    first = 0
    for number, ((family, own, program), part) in enumerate(zip(_parsed(attrs), attrs.parts, strict=True)):
        inputs = op.inputs[first : first + len(part.follows)]
        first += len(part.follows)
        if parts:
            inputs = (Operand.whole(parts[-1].output), *inputs)
        output = op.output if number + 1 == len(attrs.parts) else Value(op.output.shape[: attrs.axis] + part.shape, part.dtype)
        parts.append(Op(family, own, inputs, output, program, plan=op.plan))
    return parts


def stack_of(parts: Sequence[Op], axis: int, strip: int, unit: Sequence[int]) -> Op:
    """The stack of ops of which each reads the result of the one before as its first input, whole.

    Args:
        parts: two or more.
        axis: of the strips.
        strip: rows of the output at a time.
        unit: extents of the output at a time, behind that axis.
    """
    from aspen_jax.ir.program import Op

    described, inputs = [], []
    for number, (part, room) in enumerate(zip(parts, [*rooms_of(parts, axis, strip, unit), ()], strict=True)):
        own = part.inputs[number > 0 :]
        inputs += own
        # Weights have dimensions of their own, and do not follow the output's.
        follows = tuple(part.family not in WEIGHTED or index != 1 for index in range(number > 0, len(part.inputs)))
        words = tuple(part.family.params(part))
        described.append(
            Part(part.family.kernel, words, follows, part.output.shape[axis:] if room else (), part.output.dtype, room)
        )
    last = parts[-1]
    return Op(
        STACK,
        StackAttrs(axis, strip, tuple(unit), tuple(described)),
        tuple(inputs),
        last.output,
        name=" + ".join(dict.fromkeys(part.name for part in parts)),
        source=parts[0].source,
        exact=any(part.exact for part in parts),
    )


def rooms_of(parts: Sequence[Op], axis: int, strip: int, unit: Sequence[int]) -> list[tuple[int, ...]]:
    """The extents that parts but the last need, from the strips' axis on: what the next one reads for a strip of its own rows."""
    extents = []
    for _, behind in itertools.pairwise(parts):
        strips = behind.family.region(behind, 0, _units(behind.output.shape, axis, strip))
        extents.append([_most(strips, axis)])
    for d, size in enumerate(unit, axis + 1):
        needed = _needed(parts, _units(parts[-1].output.shape, d, size))
        for of_part, boxes in zip(extents, needed, strict=False):
            of_part.append(_most(boxes, d))
    return [_dense(part, axis, tuple(room)) for part, room in zip(parts, extents, strict=False)]


def boxes_of(parts: Sequence[Op], axis: int, strip: int, unit: Sequence[int]) -> list[tuple[int, ...]]:
    """The extents of parts but the last, from the strips' axis on, that one strip of the output needs where no rows are kept."""
    extents: list[list[int]] = [[] for _ in parts[:-1]]
    for d, size in enumerate((strip, *unit), axis):
        needed = _needed(parts, _units(parts[-1].output.shape, d, size))
        for of_part, boxes in zip(extents, needed, strict=False):
            of_part.append(_most(boxes, d))
    return list(map(tuple, extents))


def _most(boxes: np.ndarray, axis: int) -> int:
    return max(int(np.diff(boxes[:, axis]).max()), 1)


def _units(shape: Sequence[int], axis: int, size: int) -> np.ndarray:
    """Boxes of a shape that hold `size` indices of one axis, from each of its indices on, and all of the others."""
    extent = max(shape[axis], 1)
    begins = np.arange(extent)
    if extent > _MOST_POSITIONS:  # what windows at the edges need, and in between all need the same
        begins = np.concatenate([begins[: _MOST_POSITIONS // 2], begins[-_MOST_POSITIONS // 2 :]])
    whole = np.array([[(0, max(extent, 1)) for extent in shape]], np.int64)
    boxes = np.repeat(whole, len(begins), axis=0)
    boxes[:, axis, 0], boxes[:, axis, 1] = begins, np.minimum(begins + size, extent)
    return boxes


def _dense(part: Op, axis: int, room: tuple[int, ...]) -> tuple[int, ...]:
    """Products and convolutions write dense rows, so that theirs have room for all."""
    if part.family not in WEIGHTED:
        return room
    return (room[0], *(max(extent, 1) for extent in part.output.shape[axis + 1 :]))


@functools.lru_cache(maxsize=256)
def _parsed(attrs: StackAttrs) -> tuple[tuple[OpFamily, Any, BlockProgram | None], ...]:
    found = []
    for part in attrs.parts:
        family = FAMILIES.get(part.kernel)
        if family is None or family is STACK:
            raise ValueError(f"no kernel {part.kernel!r} can be a part of a stack")
        found.append((family, *family.parse(part.words)))
    return tuple(found)


def _needed(parts: Sequence[Op], boxes: np.ndarray) -> list[np.ndarray]:
    """The boxes of each part's result that boxes of the output need."""
    needed = [boxes]
    for part in reversed(parts[1:]):
        needed.append(part.family.region(part, 0, needed[-1]))
    return needed[::-1]


def _place_of(attrs: StackAttrs, index: int) -> tuple[int, int]:
    """Part and own index of an input of a stack."""
    for number, count in enumerate(_counts(attrs)):
        if index < count:
            return number, index + (number > 0)
        index -= count
    raise IndexError(index)


def _counts(attrs: StackAttrs) -> Iterator[int]:
    return (len(part.follows) for part in attrs.parts)
