"""A function and the arguments that it is split for: the head and tail of each cut, each made once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from aspen_jax.api.flat import FlatCall
from aspen_jax.errors import InputError
from aspen_jax.split.cut import crossings, cut
from aspen_jax.split.equations import flatten
from aspen_jax.split.fingerprint import fingerprint

# Compiled halves are kept for so many cuts. Each pair holds the function's constants once more.
_LEAST_KEPT, _MOST_KEPT, _KEPT_BYTES = 8, 64, 2**28
# A message is at most as long as its tensors are raw, and this for each of them (docs/explanation/split.md), and for itself.
_BYTES_OF_A_HEADER = 512


class Halves:
    """What a device and a server both know of a function.

    Attributes:
        args: the arguments that it is split for.
        fingerprint: 32 bytes, the same on both sides.
        results: shape and dtype of each result.
        tree: the tree that the results are leaves of.
    """

    def __init__(self, function: Callable[..., Any], args: Sequence[Any]):
        """Trace a function.

        Args:
            function: a function, or one that `aspen` decorated. What it closes over is known to both halves, its arguments
                cross where the tail needs them: close over weights.
            args: arguments, arrays or `jax.ShapeDtypeStruct` or trees of them.
        """
        self._function, self.args = function, tuple(args)
        call = FlatCall.of(function, self.args, {})
        flat = flatten(call)
        self.fingerprint = fingerprint(call, flat)
        self._crossings = [tuple(map(_struct, crossing)) for crossing in crossings(function, *self.args)]
        leaves, self.tree = jax.tree.flatten(call.result)
        self.results = tuple(map(_struct, leaves))
        weights = [call.leaves[index] for index in call.weights]
        held = sum(getattr(value, "nbytes", 0) for value in (*flat.constants.values(), *weights))
        kept = min(max(_KEPT_BYTES // max(held, 1), _LEAST_KEPT), _MOST_KEPT)
        self._pair = functools.lru_cache(kept)(self._made)

    @property
    def num_cuts(self) -> int:
        """How many cuts there are: 0 has all in the tail, the last one all in the head."""
        return len(self._crossings)

    def check(self, number: int) -> None:
        """See that there is such a cut.

        Raises:
            InputError: there is none.
        """
        if not 0 <= number < self.num_cuts:
            raise InputError(f"there is no cut {number}; take 0 to {self.num_cuts - 1}")

    def crossing(self, number: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shape and dtype of what crosses at a cut."""
        return self._crossings[number]

    def head(self, number: int) -> Callable[..., Any]:
        """What comes before a cut: takes the function's arguments, and gives what crosses."""
        return self._pair(number)[0]

    def tail(self, number: int) -> Callable[..., Any]:
        """What comes behind a cut: takes what crosses, and gives the function's result."""
        return self._pair(number)[1]

    def most_bytes(self, cuts: Sequence[int] | None = None) -> int:
        """The longest that a message with what crosses, or with the results, can be."""
        numbers = range(self.num_cuts) if cuts is None else cuts
        return max(most_bytes(item) for item in (self.results, *(self._crossings[number] for number in numbers)))

    def _made(self, number: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        self.check(number)
        head, tail = cut(self._function, number, *self.args)
        return head, tail


def most_bytes(structs: Sequence[jax.ShapeDtypeStruct]) -> int:
    """The longest that a message with arrays of these shapes and dtypes can be."""
    return sum(num_bytes(struct) + _BYTES_OF_A_HEADER for struct in structs) + _BYTES_OF_A_HEADER


def num_bytes(struct: jax.ShapeDtypeStruct) -> int:
    """How many bytes an array of this shape and dtype has."""
    return int(np.prod(struct.shape, dtype=np.int64)) * np.dtype(struct.dtype).itemsize


def _struct(item: Any) -> jax.ShapeDtypeStruct:
    if jax.dtypes.issubdtype(item.dtype, jax.dtypes.extended):
        raise InputError(f"a result of dtype {item.dtype} cannot be sent; return jax.random.key_data of it")
    return jax.ShapeDtypeStruct(item.shape, item.dtype)
