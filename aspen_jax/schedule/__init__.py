"""The scheduling lab: who runs which tile when, decided by your own policy, in simulated time or on this machine.

It knows graphs and the engine's clock, and nothing of JAX.
Begin at `simulate` in simulation.py, or with the tutorial docs/tutorials/scheduling_lab.md.
"""

from aspen_jax.schedule.compiled import Compiled, NativePolicy
from aspen_jax.schedule.costs import Costs, measure
from aspen_jax.schedule.machine import Cpu, Fake, Gpu, Link, Machine
from aspen_jax.schedule.policies import (
    AllThroughPool,
    ChildCache,
    CpuOnly,
    Dmda,
    FirstReadyFirst,
    GpuOnly,
    Heft,
    Importance,
    LayerCut,
    ReadyPool,
    Shares,
    SingleQueue,
    Static,
)
from aspen_jax.schedule.policy import Plan, Policy, State, View
from aspen_jax.schedule.result import Bounds, Schedule, compare
from aspen_jax.schedule.search import Search
from aspen_jax.schedule.simulation import run, simulate

__all__ = [
    "AllThroughPool",
    "Bounds",
    "ChildCache",
    "Compiled",
    "Costs",
    "Cpu",
    "CpuOnly",
    "Dmda",
    "Fake",
    "FirstReadyFirst",
    "Gpu",
    "GpuOnly",
    "Heft",
    "Importance",
    "LayerCut",
    "Link",
    "Machine",
    "NativePolicy",
    "Plan",
    "Policy",
    "ReadyPool",
    "Schedule",
    "Search",
    "Shares",
    "SingleQueue",
    "State",
    "Static",
    "View",
    "compare",
    "measure",
    "run",
    "simulate",
]
