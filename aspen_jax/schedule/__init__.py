"""The scheduling lab: who runs which tile when, decided by your own policy, in simulated time or on this machine.

It knows graphs and the engine's clock, and nothing of JAX.
Begin at `simulate` in simulation.py, or with the tutorial docs/tutorials/scheduling_lab.md.
"""

from aspen_jax.schedule.costs import Costs, measure
from aspen_jax.schedule.machine import Cpu, Gpu, Link, Machine
from aspen_jax.schedule.policies import CpuOnly, Dmda, FirstReadyFirst, GpuOnly, Heft, LayerCut, ReadyPool, Shares, Static
from aspen_jax.schedule.policy import Plan, Policy, State, View
from aspen_jax.schedule.result import Bounds, Schedule, compare
from aspen_jax.schedule.simulation import run, simulate

__all__ = [
    "Bounds",
    "Costs",
    "Cpu",
    "CpuOnly",
    "Dmda",
    "FirstReadyFirst",
    "Gpu",
    "GpuOnly",
    "Heft",
    "LayerCut",
    "Link",
    "Machine",
    "Plan",
    "Policy",
    "ReadyPool",
    "Schedule",
    "Shares",
    "State",
    "Static",
    "View",
    "compare",
    "measure",
    "run",
    "simulate",
]
