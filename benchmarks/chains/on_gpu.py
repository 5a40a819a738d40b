"""Bolt's pairs on a GPU, counted without one: kernels and the bytes that they move, with chains of products and without."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Op
from aspen_jax.ops.stack import STACK, parts_of
from aspen_jax.passes import run_passes
from aspen_jax.targets.cuda.families.chain import ChainPlan
from aspen_jax.targets.cuda.passes.stages import UNPLANNED
from aspen_jax.targets.cuda.price import Gpu
from benchmarks import zoo
from benchmarks.zoo.bolt import WORKLOADS
from benchmarks.zoo.model import Model, Size, of_network
from benchmarks.zoo.repvgg import repvgg

HEADER = ("workload", "kernels apart", "joined", "MB apart", "MB joined", "share", "between")
_PAIRS = ("table 1", "table 2")
_REPVGG = ("a0", "b0")


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a function is on a GPU.

    Attributes:
        kernels: ops, each of which is a launch or a few.
        nbytes: that they read and write, each operand once for each op.
        chains: where the values between products of a chain stay, for each chain.
    """

    kernels: int
    nbytes: float
    chains: tuple[str, ...]


def count(model: Model, disabled: Collection[str] = ()) -> Counts:
    """Counts what a model's kernels are. Nothing is compiled or run.

    Args:
        model: parameters are arguments.
        disabled: passes that are left out.
    """
    jaxpr = jax.make_jaxpr(model.apply)(*model.arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    ops = [op for part in trace.parts for op in run_passes(part, disabled, Gpu(), UNPLANNED).ops]
    return Counts(len(ops), sum(map(_nbytes, ops)), tuple(_place(op) for op in ops if op.family is STACK))


def _nbytes(op: Op) -> float:
    whole = np.array([[(0, extent) for extent in op.output.shape]], np.int64).reshape(1, -1, 2)
    return float(op.family.work(op, whole).bytes[0])


def _place(op: Op) -> str:
    plan = ChainPlan.of(parts_of(op), exact=op.exact)
    assert isinstance(plan, ChainPlan), plan
    return "registers" if plan.block.in_registers else "shared memory"


def rows(batch: int) -> Iterator[list[str]]:
    """A row for each pair of tables 1 and 2, and for RepVGG with 1x1 convolutions, in float16."""
    models = [zoo.build(name, Size(batch)) for name, item in WORKLOADS.items() if item.place in _PAIRS]
    models += [of_network(f"RepVGG-{name.upper()} and 1x1", repvgg(Size(batch), variant=name, deepened=True)) for name in _REPVGG]
    for model in models:
        narrow = model.cast(jnp.float16)
        apart, joined = count(narrow, {"stacks"}), count(narrow)
        places = [f"{joined.chains.count(place)} in {place}" for place in dict.fromkeys(joined.chains)]
        numbers = [str(apart.kernels), str(joined.kernels), f"{apart.nbytes / 1e6:.3g}", f"{joined.nbytes / 1e6:.3g}"]
        yield [model.name, *numbers, f"{joined.nbytes / apart.nbytes:.2f}", ", ".join(places) or "apart"]
