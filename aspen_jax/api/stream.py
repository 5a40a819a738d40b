"""A function for inputs that change little from call to call, such as the images of a video."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from aspen_jax import forks
from aspen_jax.api.flat import FlatCall
from aspen_jax.errors import EngineError, InputError
from aspen_jax.graph.incremental import Incremental
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.targets import registry

if TYPE_CHECKING:
    from aspen_jax.api.function import AspenFunction


@dataclasses.dataclass(frozen=True)
class OpReach:
    """How far a change came in one op.

    Attributes:
        name: named scopes and primitive that it came from.
        depth: the longest way to it from the arguments, in ops.
        tiles_run: how many of its tiles ran.
        num_tiles: how many it has.
        share: of the elements of its output those in tiles that ran, from 0 to 1.
    """

    name: str
    depth: int
    tiles_run: int
    num_tiles: int
    share: float


@dataclasses.dataclass(frozen=True)
class Reach:
    """Which tiles a call of a `Stream` ran. It prints as a table of ops, from which you see how the change spreads.

    Attributes:
        ops: an entry an op, in the order in which they follow each other.
    """

    ops: tuple[OpReach, ...]

    @classmethod
    def of(cls, graph: TileGraph, ran: np.ndarray) -> Reach:
        """The reach of a change in a run of a graph.

        Args:
            graph: the graph.
            ran: which tiles ran, bool [T].
        """
        ops = []
        for number, name in enumerate(graph.op_names):
            tiles, boxes = graph.tiles_of(number)
            sizes = (boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1)
            share = float(sizes[ran[tiles]].sum() / max(sizes.sum(), 1))
            ops.append(OpReach(name, int(graph.ops[number, 4]), int(ran[tiles].sum()), len(tiles), share))
        return cls(tuple(ops))

    @property
    def tiles_run(self) -> int:
        """How many tiles ran."""
        return sum(op.tiles_run for op in self.ops)

    @property
    def num_tiles(self) -> int:
        """How many tiles the function has."""
        return sum(op.num_tiles for op in self.ops)

    def __str__(self) -> str:
        width = max((len(op.name) for op in self.ops), default=0)
        lines = [f"{self.tiles_run} of {self.num_tiles} tiles ran", f"{'op':{width}}  depth  tiles run       of   share"]
        lines += [f"{op.name:{width}}  {op.depth:5}  {op.tiles_run:9}  {op.num_tiles:7}  {op.share:6.1%}" for op in self.ops]
        return "\n".join(lines)


class Stream:
    """A function that computes anew only what a change of its arguments reaches; made by `AspenFunction.stream`.

    Call it as the function. Every bit is what a call that computes all of it gives. Several threads may call it; calls go one
    after the other. It holds all values of the function, each in memory of its own.
    """

    def __init__(self, call: FlatCall, graph: TileGraph, leading: Callable[[], tuple[Any, ...]] = tuple):
        self._call = call
        self._leading = leading
        self._incremental = Incremental(graph)
        self._lock = forks.Lock()
        self._runs_in: tuple[int, int] | None = None  # a process and its thread

    @classmethod
    def of(
        cls,
        function: AspenFunction[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leading: Callable[[], tuple[Any, ...]] = tuple,
    ) -> Stream:
        """The stream of `AspenFunction.stream`, behind arguments that are asked for at each call."""
        device = function._choices.device
        if not registry.of_function(device).runs_graphs:
            raise InputError(f"{function.__name__} is for {device!r} and streams run on the CPU; decorate it with device='cpu'")
        whole = (*leading(), *args)
        stream = cls(FlatCall.of(function, whole, kwargs), function.graph_without_reuse(*whole, **kwargs), leading)
        stream(*args, **kwargs)
        return stream

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function of these arguments.

        Raises:
            InputError: structure, a shape, a dtype or a static argument is another one than in the first call.
            EngineError: the run failed. The next call computes all. Or a handler of a signal made the call during another one.
        """
        kinds = set(map(type, jax.tree.leaves((args, kwargs))))
        if any(issubclass(kind, Tracer | jax.ShapeDtypeStruct) for kind in kinds):
            raise InputError(f"{self!r} computes with arrays, so it cannot be traced; call it with arrays, outside of jax.jit")
        leaves = self._call.inputs((*self._leading(), *args), kwargs)
        avals: list[Any] = self._call.jaxpr.in_avals
        inputs = [  # numpy's float64 is float32 to JAX, unless jax_enable_x64 is set
            leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, aval.dtype)
            for leaf, aval in zip(leaves, avals, strict=True)
        ]
        with self._lock, self._running():
            computed, ran = self._incremental.run(inputs)
            copies = [jnp.asarray(np.array(result)) for result in computed]  # NumPy's, done before the next run writes there
            self._ran = ran
        return self._call.returned(copies)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        me = os.getpid(), threading.get_ident()
        if self._runs_in == me:
            raise EngineError(f"{self!r} is called by a handler of a signal while it runs; call it when that has ended")
        self._runs_in = me
        try:
            yield
        finally:
            self._runs_in = None

    @property
    def last(self) -> Reach:
        """Which tiles the last call ran."""
        return Reach.of(self._incremental.graph, self._ran)

    def __repr__(self) -> str:
        return f"<stream of {self._call.function.__name__}>"
