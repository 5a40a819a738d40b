"""Attributes of ops, and the parameter words that carry them to C++ (docs/graph_format.md, "Parameter words")."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any, Self, get_type_hints


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


@dataclasses.dataclass(frozen=True)
class Attrs:
    """Base of attribute dataclasses; fields are int, bool, float or tuple[int, ...]."""

    def __post_init__(self) -> None:
        # Models hand in numpy integers; equal attributes must compare, hash and print alike.
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                object.__setattr__(self, field.name, tuple(map(int, value)))

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
