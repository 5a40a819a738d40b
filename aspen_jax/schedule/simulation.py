"""Runs of a graph under a policy: simulated by the engine's own scheduler on a virtual clock, or real."""

from __future__ import annotations

from typing import Any

import numpy as np

from aspen_jax import _engine
from aspen_jax.errors import AspenError, EngineError, InputError, UnsupportedError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.runtime import num_workers, set_num_workers
from aspen_jax.schedule.costs import Costs, check_fit
from aspen_jax.schedule.machine import Cpu, Machine
from aspen_jax.schedule.policies import ReadyPool
from aspen_jax.schedule.policy import Plan, Policy, checked_plan, virtual_graph
from aspen_jax.schedule.result import Schedule


def simulate(graph: TileGraph, machine: Machine, costs: Costs, policy: Policy | None = None) -> Schedule:
    """Play a run in simulated time: Algorithm 1, the Ready Pool and its order are the engine's own code.

    What the engine does between tiles takes no time, and lanes do not disturb each other. What the call is given is in every
    memory from the beginning, and results stay where they were computed.

    Args:
        graph: what is run.
        machine: on what.
        costs: what each tile takes on each resource.
        policy: who decides; `ReadyPool` if None.

    Raises:
        InputError: the costs are those of another graph or machine, or the policy places a tile where no kernel is.
        EngineError: the policy raised an exception, which is the cause of this one.
    """
    policy = ReadyPool() if policy is None else policy
    check_fit(graph, machine, costs)
    try:
        plan = checked_plan(policy, graph, machine, costs)
        place: Any = plan.place
        if policy.native is not None:
            place = policy.native
        elif policy.places:
            place = policy.place
        elif place is None and not np.isfinite(costs.ns).all():
            tile, resource = np.argwhere(~np.isfinite(costs.ns))[0]
            raise InputError(
                f"{policy.name} places no tiles, and {machine.resources[resource].name} has no kernel for tile {tile}; "
                "take a policy that places tiles, such as Dmda"
            )
        order = policy.order if plan.priority is None else "shallow first"
        tiles = virtual_graph(graph, machine, _levels(plan))
        rows, copies = _engine.simulate(tiles, machine.virtual, costs.virtual, place, order)
    except AspenError:
        raise
    except Exception as error:
        raise EngineError(f"the policy {policy.name} raised {type(error).__name__}: {error}") from error
    lanes, begin, end = rows.T
    return Schedule(graph, machine, policy.name, False, lanes, begin, end, copies, costs)


def run(
    graph: TileGraph, *inputs: Any, machine: Machine | None = None, policy: Policy | None = None, costs: Costs | None = None
) -> Schedule:
    """Run a graph here, and say who ran what when.

    Args:
        graph: what is run.
        *inputs: as `TileGraph.run` takes them.
        machine: one `Cpu`, whose workers run it; the workers of this process if None.
        policy: `ReadyPool`, the engine's own. Others can be simulated.
        costs: what `Schedule.bounds` and pictures compare with.

    Raises:
        UnsupportedError: the machine or the policy can only be simulated so far.
        InputError: the inputs do not fit.
        EngineError: the run failed.
    """
    machine = Machine.here() if machine is None else machine
    policy = ReadyPool() if policy is None else policy
    if len(machine.resources) != 1 or not isinstance(machine.resources[0], Cpu):
        raise UnsupportedError("only a machine of one Cpu can be run here; `simulate` takes any machine")
    if type(policy) is not ReadyPool:
        raise UnsupportedError(f"only ReadyPool can be run here, not {policy.name}; `simulate` takes any policy")
    if costs is not None:
        check_fit(graph, machine, costs)
    before = num_workers()
    try:
        set_num_workers(machine.resources[0].lanes)
        timeline = graph.timeline(*inputs)
    finally:
        set_num_workers(before)
    # The calling thread walks small graphs itself; it stands for the first worker.
    lanes = np.maximum(timeline[:, 0], 0)
    start = timeline[:, 1].min(initial=np.iinfo(np.int64).max) if len(timeline) else 0
    none = np.zeros((0, 5), np.int64)
    return Schedule(graph, machine, policy.name, True, lanes, timeline[:, 1] - start, timeline[:, 2] - start, none, costs)


def _levels(plan: Plan) -> np.ndarray | None:
    """Levels of the Ready Pool by priority: equal priorities are one level, the largest is level 0."""
    if plan.priority is None:
        return None
    return np.unique(-plan.priority, return_inverse=True)[1].reshape(-1)
