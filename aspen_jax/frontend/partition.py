"""Cuts a converted jaxpr into tileable parts, as few as order allows, and equations that stay with XLA between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jax.extend import core

from aspen_jax.cost import equations as cost
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.family import is_registered


@dataclasses.dataclass(frozen=True, eq=False)
class Fallback:
    """An equation that stays with XLA.

    Attributes:
        equation: the jaxpr equation.
        inputs: a value for each operand; literals are constants of the trace.
        outputs: the values it produces.
        reason: why no tile kernel runs it.
        name: its named scope and primitive.
        source: the user's source line; may be empty.
        is_tileable: whether a kernel would run it, were there more to do.
    """

    equation: core.JaxprEqn
    inputs: tuple[Value | np.ndarray, ...]
    outputs: tuple[Value, ...]
    reason: str
    name: str
    source: str
    is_tileable: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Converted:
    """An equation that became ops; an output may be an input or the output of one of the ops. For the rest see Fallback.

    Attributes:
        body: of a loop, the equations of a turn, whose program no pass has rewritten; None for others.
    """

    equation: core.JaxprEqn
    inputs: tuple[Value | np.ndarray, ...]
    outputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    name: str
    source: str
    body: Tileable | None = None

    def left_to_xla(self, reason: str) -> Fallback:
        """The equation as one that XLA runs, though a kernel could."""
        return Fallback(self.equation, self.inputs, self.outputs, reason, self.name, self.source, is_tileable=True)


Item = Converted | Fallback

_TOO_SMALL = "too little work beside what XLA runs for a custom call of its own"


@dataclasses.dataclass(frozen=True, eq=False)
class Tileable:
    """A part that tiles can run.

    Attributes:
        program: its ops.
        items: the equations that they are of, in order.
    """

    program: Program
    items: tuple[Converted, ...]

    def left_to_xla(self, reason: str) -> tuple[Fallback, ...]:
        """Leave the part's equations to XLA."""
        return tuple(item.left_to_xla(reason) for item in self.items)


def partition(
    items: Sequence[Item], constants: Sequence[tuple[Value, np.ndarray]], outputs: Sequence[Value | np.ndarray]
) -> Iterator[Tileable | Fallback]:
    """Parts and fallbacks in an order in which they can run.

    Even levels hold ops, odd levels fallbacks, and an item's level is the lowest that is not below any of its producers'. A
    path that leaves a part through a fallback returns at a higher level, so each even level is convex, and there are no more
    of them than some path has stretches of ops between fallbacks.
    """
    items = [item for item in items if isinstance(item, Fallback) or item.ops]
    while True:
        levels = _levels(items)
        small = _too_small(items, levels)
        if not small:
            break
        items = [item.left_to_xla(_TOO_SMALL) if isinstance(item, Converted) and item in small else item for item in items]

    wanted: dict[Value, None] = {value: None for value in outputs if isinstance(value, Value)}
    reading: dict[Value, set[int]] = {}
    for item, level in zip(items, levels, strict=True):
        for value in _read(item):
            reading.setdefault(value, set()).add(level)
    for level in sorted(set(levels)):
        members = [item for item, its in zip(items, levels, strict=True) if its == level]
        converted = [item for item in members if isinstance(item, Converted)]
        ops = [op for item in converted for op in item.ops]
        yield from (item for item in members if isinstance(item, Fallback))
        made = (value for op in ops for value in op.outputs)
        leaving = [value for value in made if value in wanted or reading.get(value, set()) - {level}]
        part = _part(constants, ops, leaving)
        if part.ops:
            yield Tileable(part, tuple(converted))


def _read(item: Item) -> Iterator[Value]:
    """The values that an item reads; of several ops also those in between.

    A product reads the bools of a mask in place of its numbers. XLA reads the numbers, if the product is left to it.
    """
    yield from (value for value in item.inputs if isinstance(value, Value))
    if isinstance(item, Converted):
        yield from (operand.value for op in item.ops for operand in op.inputs)


def _levels(items: Sequence[Item]) -> list[int]:
    """The level of each item; those that need no ops come first, at -1."""
    level_of: dict[Value, int] = {}
    levels = []
    for item in items:
        level = max((level_of.get(value, -1) for value in _read(item)), default=-1)
        level += (level % 2 == 1) == isinstance(item, Converted)
        produced = item.outputs if isinstance(item, Fallback) else (value for op in item.ops for value in op.outputs)
        level_of.update((value, level) for value in produced)
        levels.append(level)
    return levels


def _too_small(items: Sequence[Item], levels: Sequence[int]) -> set[Converted]:
    """What of some level is not worth its custom call: all of it, or what fallbacks behind it wait for.

    Without the latter the rest of the level need not run before those fallbacks, and so joins what comes after them.
    """
    if not any(isinstance(item, Fallback) for item in items):
        return set()
    awaited: dict[int, set[Value]] = {}  # by fallbacks of the level above
    waiting: dict[int, list[Converted]] = {}
    whole: dict[int, list[Converted]] = {}
    for item, level in reversed(list(zip(items, levels, strict=True))):
        if isinstance(item, Fallback):
            awaited.setdefault(level - 1, set()).update(_read(item))
            continue
        whole.setdefault(level, []).append(item)
        if any(value in awaited.get(level, ()) for op in item.ops for value in op.outputs):
            awaited[level].update(_read(item))
            waiting.setdefault(level, []).append(item)
    for level in sorted(whole):
        for candidates in (whole[level], waiting.get(level, [])):
            if any(is_registered(op.family) for item in candidates for op in item.ops):
                continue  # its operations cannot be counted
            if candidates and not cost.is_worth_a_call(item.equation for item in candidates):
                return set(candidates)
    return set()


def _part(constants: Sequence[tuple[Value, np.ndarray]], ops: Sequence[Op], outputs: Sequence[Value]) -> Program:
    """The ops that the outputs need, as a Program whose inputs are the values that they read from outside."""
    part = Program((), tuple(constants), tuple(ops), tuple(map(Operand.whole, outputs))).pruned()
    inside = {value for op in part.ops for value in op.outputs} | {value for value, _ in part.constants}
    read = dict.fromkeys(operand.value for op in part.ops for operand in op.inputs)
    return part.replace(inputs=tuple(value for value in read if value not in inside))
