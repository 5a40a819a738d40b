"""Attributes of ops, and the parameter words that carry them to C++ (docs/graph_format.md, "Parameter words")."""

from __future__ import annotations

import dataclasses
import functools
import numbers
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, Self, get_origin, get_type_hints

import numpy as np

from aspen_jax.errors import InputError


class Words:
    """Reads parameter words in order."""

    def __init__(self, words: Sequence[int]):
        self._words = [int(word) for word in words]
        self._next = 0

    def integer(self) -> int:
        if self._next >= len(self._words):
            raise ValueError("parameter words end early")
        self._next += 1
        return self._words[self._next - 1]

    def list(self) -> tuple[int, ...]:
        size = self.integer()
        if not 0 <= size <= len(self._words) - self._next:
            raise ValueError(f"parameter list of impossible length {size}")
        self._next += size
        return tuple(self._words[self._next - size : self._next])

    def name(self) -> str:
        """The name of a kernel, a word a letter."""
        letters = self.list()
        if not all(0 < letter < 128 for letter in letters):
            raise ValueError("a kernel has no name")
        return bytes(letters).decode("ascii")

    def done(self) -> bool:
        return self._next == len(self._words)


_MAKE: dict[type, Callable[[Any], Any]] = {
    bool: lambda value: bool(value) if isinstance(value, np.bool_) else bool(operator.index(value)),
    int: operator.index,
    float: lambda value: float(value) if isinstance(value, numbers.Real) else operator.index(value),
    tuple: lambda value: tuple(map(operator.index, value)),
}


@functools.cache
def _kinds(attrs: type) -> tuple[tuple[str, type], ...]:
    """The fields of an attribute dataclass that are plain words, and their types."""
    kinds = ((name, get_origin(hint) or hint) for name, hint in get_type_hints(attrs).items())
    names = {field.name for field in dataclasses.fields(attrs)}
    return tuple((name, kind) for name, kind in kinds if name in names and kind in _MAKE)


@dataclasses.dataclass(frozen=True)
class Attrs:
    """Base of attribute dataclasses; fields are int, bool, float or tuple[int, ...].

    Raises:
        InputError: a value is of another kind: a float where an integer belongs.
    """

    def __post_init__(self) -> None:
        # Models hand in numpy integers. Equal attributes must compare, hash and print alike, and a word means what C++ reads.
        for name, kind in _kinds(type(self)):
            value = getattr(self, name)
            if type(value) is kind and kind is not tuple:
                continue
            try:
                made = _MAKE[kind](value)
            except TypeError:
                wanted = "a tuple of integers" if kind is tuple else f"of type {kind.__name__}"
                raise InputError(f"{type(self).__name__}.{name} is {value!r}; it must be {wanted}") from None
            object.__setattr__(self, name, made)

    def to_words(self) -> list[int]:
        words: list[int] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                words += [len(value), *map(int, value)]
            elif isinstance(value, float):
                words.append(struct.unpack("<q", struct.pack("<d", value))[0])
            else:
                words.append(int(value))
        return words

    @classmethod
    def from_words(cls, words: Words) -> Self:
        hints = get_type_hints(cls)
        values: list[Any] = []
        for field in dataclasses.fields(cls):
            hint = hints[field.name]
            if hint is float:
                values.append(struct.unpack("<d", struct.pack("<q", words.integer()))[0])
            elif hint in (int, bool):
                values.append(hint(words.integer()))
            else:
                values.append(words.list())
        return cls(*values)
