"""Policies whose `place` is compiled: by numba from Python, or by this machine's compiler from C++."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aspen_jax.cache.shared_library import shared_library
from aspen_jax.errors import InputError
from aspen_jax.schedule.policy import Policy, View

_RAISED = -(2**31)
"""What a compiled function answers where it raised an exception (engine/place.h)."""

Decide = Callable[[int, int, Any, int], int]
"""Of (tile, now, earliest_finish, num_resources): the number of a resource. `earliest_finish` is indexed by resource."""


class Compiled(Policy):
    """Places each ready tile by a function of plain numbers, compiled by numba where that is installed.

    Without numba the function is called through Python, which takes some microseconds a tile. Example:

        def nearest(tile, now, earliest_finish, num_resources):
            best = 0
            for resource in range(num_resources):
                if earliest_finish[resource] < earliest_finish[best]:
                    best = resource
            return best

        policy = sched.Compiled(nearest)

    Args:
        decide: a function of the tile, nanoseconds since the run began, when the tile would end on each resource, and how many
            there are. It returns the number of a resource. numba compiles it in nopython mode; arrays that it closes over are
            constants to it.

    Raises:
        InputError: numba cannot compile it; the message is numba's.
    """

    def __init__(self, decide: Decide):
        self.decide = decide
        try:
            from numba import cfunc, njit  # pyright: ignore[reportMissingImports] - optional
            from numba.core.errors import NumbaError  # pyright: ignore[reportMissingImports]
        except ImportError:
            self.place = self._place_in_python
            return
        try:
            inner = njit(decide)

            def guarded(tile: int, now: int, earliest_finish: Any, num_resources: int) -> int:
                # numba prints an exception that leaves a cfunc, and answers 0.
                try:
                    return inner(tile, now, earliest_finish, num_resources)
                except Exception:
                    return _RAISED

            self._compiled = cfunc("int32(int64, int64, CPointer(int64), int64)")(guarded)
        except NumbaError as error:
            raise InputError(f"numba cannot compile {self.name}: {error}") from None
        self.native = self._compiled.address

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.decide, "__name__", "Compiled")

    def _place_in_python(self, view: View, tile: int) -> int:
        return self.decide(tile, view.now, view.earliest_finish(tile), view.num_resources)


class NativePolicy(Policy):
    """Places each ready tile by `aspen_place` of a C++ file, which this machine's compiler compiles.

    The file includes "aspen_jax/engine/place.h", which says what the function is given. What was compiled is kept on disk, by
    the contents of the file and of all that it includes.

    Args:
        path: the C++ file.

    Raises:
        InputError: there is no C++ compiler, the file does not compile, or defines no `aspen_place`.
        OSError: the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._name = Path(path).stem
        # Comparisons of sums come out as in Python, on each processor.
        with shared_library(Path(path), "-O2", "-ffp-contract=off") as found:
            library = ctypes.CDLL(str(found))
        place, order = _address(library, "aspen_place"), _address(library, "aspen_order")
        if place is None:
            raise InputError(f'{os.fspath(path)} defines no aspen_place; write it as extern "C", as engine/place.h declares it')
        self.native = place
        if order is not None:
            self.order = order

    @property
    def name(self) -> str:
        """The file's name."""
        return self._name


def _address(library: ctypes.CDLL, symbol: str) -> int | None:
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
    except ValueError:
        return None
