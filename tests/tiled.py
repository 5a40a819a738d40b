"""Functions run as tile graphs, to compare with jax.lax: tiny tiles, no fallback, on the CPU target in use."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from aspen_jax import apu
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Value
from aspen_jax.passes import run_passes

# Tiles as small as the grains allow, so that boxes begin and end everywhere.
TINY_TILES = Machine(tile_ns=0.0, shortest_tile_ns=1.0, tiles_per_worker=16)


def run_tiled(function, arguments, disabled=(), machine: Machine = TINY_TILES) -> list[np.ndarray]:
    """The function's outputs by tile graphs; it must have no fallback."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    assert not trace.fallbacks, [(item.name, item.reason) for item in trace.fallbacks]
    values: dict[Value, np.ndarray] = dict(zip(trace.inputs, map(np.asarray, jax.tree.leaves(arguments)), strict=True))
    for part in trace.parts:
        graph = apu.build(run_passes(part, disabled), 2, machine)
        graph.verify()
        results = graph.run(*(values[value] for value in part.inputs))
        values.update((operand.value, result) for operand, result in zip(part.outputs, results, strict=True))
    return [values[item] if isinstance(item, Value) else item for item in trace.outputs]


def check(function, *arguments, tolerance: float = 1e-5, disabled=(), reference=None, machine: Machine = TINY_TILES) -> None:
    """Within `tolerance` of the largest output of `reference`, or of `function` by XLA; integers and bools exactly."""
    expected = jax.tree.leaves(jax.jit(reference or function)(*arguments))
    for ours, theirs in zip(run_tiled(function, arguments, disabled, machine), expected, strict=True):
        theirs = np.asarray(theirs)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if theirs.dtype != np.float32:
            np.testing.assert_array_equal(ours, theirs)
            continue
        assert np.isfinite(theirs).all()
        largest = float(np.abs(theirs).max(initial=1e-30))
        assert float(np.abs(ours - theirs).max(initial=0)) <= tolerance * largest


NARROW = (jnp.bfloat16, np.float16)


def check_narrow(function, dtype, *arguments, reference=None, machine: Machine = TINY_TILES) -> None:
    """As float32 on the same narrow arguments, rounded once: within one unit of the last place."""
    narrow = [np.asarray(item).astype(dtype) for item in arguments]
    expected = jax.tree.leaves(jax.jit(reference or function)(*(item.astype(np.float32) for item in narrow)))
    for ours, theirs in zip(run_tiled(function, narrow, machine=machine), expected, strict=True):
        theirs = np.asarray(theirs)
        assert ours.dtype == dtype
        assert ours.shape == theirs.shape
        assert np.isfinite(theirs).all()
        ulp = float(jnp.finfo(dtype).eps)
        bound = ulp * np.abs(theirs) + 2e-5 * np.abs(theirs).max(initial=0) + float(jnp.finfo(dtype).smallest_subnormal)
        assert (np.abs(ours.astype(np.float32) - theirs) <= bound).all()
