"""A function and the arguments that it is split for: the head and tail of each cut, each made once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from aspen_jax.api.decorator import flat_call
from aspen_jax.errors import InputError
from aspen_jax.split.cut import ScanStep, crossings_of, cut_call
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
        kwargs: those given by name.
        fingerprint: 32 bytes, the same on both sides.
        results: shape and dtype of each result.
        tree: the tree that the results are leaves of.
    """

    def __init__(self, function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None):
        """Trace a function.

        Args:
            function: a function, or one that `aspen` decorated. What it closes over is known to both halves, its arguments
                cross where the tail needs them: close over weights.
            args: arguments, arrays or `jax.ShapeDtypeStruct` or trees of them.
            kwargs: arguments by name.

        Raises:
            InputError: the function does not take these arguments, or a callback in it holds what no fingerprint can cover.
        """
        self.args, self.kwargs = tuple(args), dict(kwargs or {})
        _check_signature(function, self.args, self.kwargs)
        self._call = flat_call(function, self.args, self.kwargs)
        self._flat = flatten(self._call)
        self.fingerprint = fingerprint(self._call, self._flat)
        self._crossings = [tuple(map(_struct, crossing)) for crossing in crossings_of(self._flat)]
        self.results = tuple(map(_struct, jax.tree.leaves(self._call.result)))
        held = sum(getattr(value, "nbytes", 0) for value in (*self._flat.constants.values(), *self._flat.weights.values()))
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
        check_number(number, self.num_cuts)

    def crossing(self, number: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shape and dtype of what crosses at a cut."""
        return self._crossings[number]

    def head(self, number: int) -> Callable[..., Any]:
        """What comes before a cut: takes the function's arguments, and gives what crosses."""
        return self._pair(number)[0]

    def tail(self, number: int) -> Callable[..., Any]:
        """What comes behind a cut: takes what crosses, and gives the function's result."""
        return self._pair(number)[1]

    def returned(self, arrays: Sequence[Any]) -> Any:
        """What the function returns, from its arrays."""
        return self._call.returned(arrays)

    def arrays(self, returned: Any) -> list[Any]:
        """The arrays of what a tail returned."""
        return self._call.outputs(returned)

    def closed_head(self, number: int) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The head with its weights and static arguments in it: what takes the other arguments, and those that it was traced for.

        An argument is left out if all of its leaves are weights or static.
        """
        inner: dict[Any, bool] = {}
        static = {index for index, _ in self._call.structure.static}
        traced = iter(range(len(self._call.leaves)))
        for index, (path, _) in enumerate(jax.tree_util.tree_flatten_with_path((self.args, self.kwargs))[0]):
            place = path[1].key if path[0].idx else path[1].idx
            inner[place] = inner.get(place, True) and (index in static or next(traced) in self._call.weights)
        kept = [index for index in range(len(self.args)) if not inner.get(index, False)]
        head = self.head(number)

        def closed(*args: Any, **kwargs: Any) -> Any:
            whole = list(self.args)
            for index, value in zip(kept, args, strict=True):
                whole[index] = value
            return head(*whole, **(self.kwargs | kwargs))

        named = {name: value for name, value in self.kwargs.items() if not inner.get(name, False)}
        return closed, tuple(self.args[index] for index in kept), named

    def most_bytes(self, cuts: Sequence[int] | None = None) -> int:
        """The longest that a message with what crosses, or with the results, can be."""
        numbers = range(self.num_cuts) if cuts is None else cuts
        return max(most_bytes(item) for item in (self.results, *(self._crossings[number] for number in numbers)))

    def _made(self, number: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
        self.check(number)
        head, tail = cut_call(self._call, self._flat, number)
        return head, tail


def check_number(number: Any, count: int) -> None:
    """See that a number names one of so many cuts.

    Raises:
        InputError: it does not.
    """
    if isinstance(number, ScanStep | Sequence) and not isinstance(number, str):
        raise InputError(
            f"a client and a server cut a function once, between two operations, not at {number!r}; take 0 to {count - 1}, "
            "or hand on what crosses yourself (split.cut)"
        )
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < count:
        raise InputError(f"there is no cut {number!r}; take an integer from 0 to {count - 1}")


def _check_signature(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """See that a function takes arguments, as far as it tells."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise InputError(f"{name} cannot be called with these arguments: {error}; give args=, and kwargs= for names") from None


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
