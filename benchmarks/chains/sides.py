"""A workload with its ops joined, with them apart, and by XLA."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from aspen_jax import TileGraph, aspen
from aspen_jax.cost.timing import Timing
from aspen_jax.passes import DISABLE_VARIABLE, disabled_by_environment
from aspen_jax.report.comparison import PLAIN
from benchmarks.benchmark import timed
from benchmarks.zoo.bolt import ALIGNMENT
from benchmarks.zoo.model import Model

JOINED, APART = "joined", "apart"
ALIGNED, PADDED, UNPADDED, PLAIN_PADDED = "aligned", "padded", "as it is", f"{PLAIN} padded"


@dataclasses.dataclass(frozen=True)
class Joining:
    """What joining ops gains.

    Attributes:
        is_joined: whether fewer values lie between the ops than without the passes that join them.
        bytes_between: that the ops write for each other where they are apart.
        timings: for `APART`, `PLAIN` and, where they are joined, `JOINED`.
    """

    is_joined: bool
    bytes_between: int
    timings: dict[str, Timing]


def join(model: Model, passes: Collection[str], rounds: int) -> Joining:
    """Time a workload with its ops apart, joined, and by XLA, in turns; weights are constants.

    Args:
        model: the workload.
        passes: those that join its ops.
        rounds: how often each side is timed.

    Raises:
        Disagreement: the results differ.
    """
    with _without(passes):
        apart, apart_graph = _tiled(model.apply, model.params, model.inputs)
    joined, joined_graph = _tiled(model.apply, model.params, model.inputs)
    is_joined = bytes_between(joined_graph) < bytes_between(apart_graph)
    calls = {PLAIN: functools.partial(jax.jit(model.apply), *model.arguments), APART: apart}
    if is_joined:
        calls[JOINED] = joined
    return Joining(is_joined, bytes_between(apart_graph), timed(model.name, calls, rounds))


def pad(model: Model, rounds: int) -> dict[str, Timing]:
    """Time a convolution as it is, with its channels padded first, with padded ones given, and by XLA, in turns.

    Raises:
        Disagreement: the results differ.
    """
    (x,) = model.inputs
    missing = -x.shape[-1] % ALIGNMENT
    (name,) = model.params
    weight = model.params[name]["weight"]
    wide = {name: {**model.params[name], "weight": jnp.pad(weight, ((0, 0), (0, 0), (0, missing), (0, 0)))}}

    def widened(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing)))

    def padded(params: Any, x: jax.Array) -> jax.Array:
        return model.apply(params, widened(x))

    calls = {
        PLAIN: functools.partial(jax.jit(model.apply), model.params, x),
        UNPADDED: _tiled(model.apply, model.params, (x,))[0],
        PADDED: _tiled(padded, wide, (x,))[0],
        ALIGNED: _tiled(model.apply, wide, (widened(x),))[0],
        PLAIN_PADDED: functools.partial(jax.jit(padded), wide, x),
    }
    return timed(model.name, calls, rounds)


def bytes_between(graph: TileGraph) -> int:
    """Bytes of the values that ops write and only ops read."""
    program = graph.program()
    returned = {operand.value for operand in program.outputs}
    return sum(op.output.size * op.output.dtype.itemsize for op in program.ops if op.output not in returned)


def _tiled(apply: Callable[..., Any], params: Any, inputs: tuple[Any, ...]) -> tuple[Callable[[], Any], TileGraph]:
    """The compiled call and its graph."""
    decorated = aspen(functools.partial(apply, params), strict=True)
    compiled = jax.jit(decorated).lower(*inputs).compile()
    (part,) = decorated.explain(*inputs).parts
    return functools.partial(compiled, *inputs), part.graph


@contextmanager
def _without(passes: Collection[str]) -> Iterator[None]:
    """What is compiled meanwhile is compiled without these passes."""
    before = os.environ.get(DISABLE_VARIABLE)
    os.environ[DISABLE_VARIABLE] = ",".join(sorted({*disabled_by_environment(), *passes}))
    try:
        yield
    finally:
        if before is None:
            del os.environ[DISABLE_VARIABLE]
        else:
            os.environ[DISABLE_VARIABLE] = before
