"""Graphs of networks with stacks of chosen lengths, and what the pass finds in a network."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

from aspen_jax import apu
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Program
from aspen_jax.ops.stack import STACK, parts_of
from aspen_jax.passes import run_passes
from benchmarks.zoo.network.in_jax import Params, in_jax
from benchmarks.zoo.network.network import Network

# More than the pass ever joins where it has the choice.
MOST_STEPS = 64

# Of these are optimisable layers, where no pass has made them part of another op.
_OPTIMISABLE = ("pool", "reduce", "block")


def program_of(network: Network, params: Params, inputs: Sequence[np.ndarray], machine: Machine, steps: int | None) -> Program:
    """A network's program after all passes, weights being constants.

    Args:
        network: all of it must have tile kernels.
        params: its parameters.
        inputs: of the shapes to trace for.
        machine: the cost model, with the size of the cache that stacks must fit.
        steps: the most parts of a stack; 1: no stacks; None: as many as fit, however short their strips.
    """
    jaxpr = jax.make_jaxpr(functools.partial(in_jax(network), params))(*inputs)
    (part,) = frontend.trace(jaxpr).parts
    if steps == 1:
        return run_passes(part, ("stacks",), machine)
    limits = {"fewest_bytes": True} if steps is None else {"most_parts": steps}
    return run_passes(part, (), dataclasses.replace(machine, **limits))


def graph_of(
    network: Network, params: Params, inputs: Sequence[np.ndarray], machine: Machine, steps: int | None, workers: int
) -> TileGraph:
    """Build the graph of tiles of `program_of`, for so many workers."""
    return apu.build(program_of(network, params, inputs, machine, steps), workers, machine)


@dataclasses.dataclass(frozen=True)
class Found:
    """What has become of a network's optimisable layers.

    Attributes:
        ops: ops that are pools, reductions or element-wise, in stacks or not. The other layers are in epilogues of convolutions,
            or nothing is left of them.
        stacks: ops that are stacks.
        parts: ops in these.
    """

    ops: int
    stacks: int
    parts: int


def found_in(program: Program) -> Found:
    """Count a program's stacks."""
    members = [parts_of(op) if op.family is STACK else [op] for op in program.ops]
    optimisable = sum(part.family.kernel in _OPTIMISABLE for parts in members for part in parts)
    lengths = [len(parts) for parts in members if len(parts) > 1]
    return Found(optimisable, len(lengths), sum(lengths))


def is_optimisable(op: Op) -> bool:
    """Whether an op is made of optimisable layers alone."""
    return all(part.family.kernel in _OPTIMISABLE for part in (parts_of(op) if op.family is STACK else [op]))
