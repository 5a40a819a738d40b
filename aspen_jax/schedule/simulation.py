"""Runs of a graph under a policy: simulated by the engine's own scheduler on a virtual clock, or real."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from aspen_jax import _engine
from aspen_jax.errors import AspenError, EngineError, InputError, UnsupportedError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.schedule.costs import Costs, check_fit, estimated
from aspen_jax.schedule.machine import Cpu, Fake, Machine
from aspen_jax.schedule.policies import ReadyPool
from aspen_jax.schedule.policy import EXACT, Policy, checked_plan, virtual_graph
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
    _check_kinds(graph=graph, machine=machine, policy=policy, costs=costs)
    check_fit(graph, machine, costs)
    with _blaming(policy):
        tiles, nanoseconds, place, order = _decisions(policy, graph, machine, costs)
        if place is None and not np.isfinite(costs.ns).all():
            tile, resource = np.argwhere(~np.isfinite(costs.ns))[0]
            raise InputError(
                f"{policy.name} places no tiles, and {machine.resources[resource].name} has no kernel for tile {tile}; "
                "take a policy that places tiles, such as Dmda"
            )
        with _naming(policy):
            rows, copies = _engine.simulate(tiles, machine.virtual, nanoseconds, place, order)
    lane, begin, end = rows.T
    return Schedule(graph, machine, policy.name, False, lane, begin, end, copies, costs)


def run(
    graph: TileGraph, *inputs: Any, machine: Machine | None = None, policy: Policy | None = None, costs: Costs | None = None
) -> Schedule:
    """Run a graph here, and say who ran what when.

    The same Algorithm 1 and Ready Pool as in `simulate`, on threads of its own, one for each lane. The engine keeps them for the
    next run; the workers of the process have no part in it. A tile is placed when it becomes ready, one at a time, and
    `Schedule.place_ns` says what that cost. The calling thread calls a `place` of Python, so Ctrl-C ends a run in any state.

    Over several memories the graph has memory of its own for each value (`TileGraph.apart`), so it takes more than `graph.run`.

    Args:
        graph: what is run.
        *inputs: as `TileGraph.run` takes them.
        machine: of `Cpu` and `Fake` resources. The first one's memory is the host's; each other memory is an arena of its own,
            to which copies go at the pace of the links. The workers of this process if None.
        policy: who decides; `ReadyPool` if None. It must place tiles where there are two memories.
        costs: what the policy decides by, and `Schedule.bounds` compares with. If None, policies get the graph's own estimates;
            those that decide by times want measured ones.

    Raises:
        UnsupportedError: the machine has a `Gpu`, which can only be simulated.
        InputError: the inputs do not fit, the policy places a tile where no resource is, no link leads to where it places one, or
            a core is not there.
        EngineError: a tile failed, the run was beyond `aspen_jax.limits`, or the policy raised an exception, which is the
            cause of this one.
    """
    machine = Machine.here() if machine is None else machine
    policy = ReadyPool() if policy is None else policy
    _check_kinds(graph=graph, machine=machine, policy=policy, **({} if costs is None else {"costs": costs}))
    lanes = _lanes(machine)
    if costs is not None:
        check_fit(graph, machine, costs)
    operands = graph.operands_of(inputs)
    with _blaming(policy):
        tiles, nanoseconds, place, order = _decisions(
            policy, graph, machine, estimated(graph, machine) if costs is None else costs
        )
        with _naming(policy):
            # A copy may come late. It must not find newer bytes where it goes.
            plan = graph.plan if len(machine.memories) == 1 else graph.apart.plan
            results, ran = plan.run_placed(operands, tiles, machine.virtual, nanoseconds, place, order, lanes, policy)
    rows, copies, price = ran
    start = rows[:, 1].min(initial=np.iinfo(np.int64).max) if len(rows) else 0
    rows[:, 1:] -= start
    copies[:, 3:] -= start
    place_ns = price / max(graph.num_tiles, 1)
    lane, begin, end = rows.T
    return Schedule(graph, machine, policy.name, True, lane, begin, end, copies, costs, tuple(results), place_ns)


@contextlib.contextmanager
def _blaming(policy: Policy) -> Iterator[None]:
    """What a policy raises becomes an error that names it."""
    try:
        yield
    except AspenError:
        raise
    except Exception as error:
        raise EngineError(f"the policy {policy.name} raised {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _naming(policy: Policy) -> Iterator[None]:
    """What the engine refuses is where a policy places a tile, so its error names the policy too."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{policy.name}: {error}") from error


def _decisions(
    policy: Policy, graph: TileGraph, machine: Machine, costs: Costs
) -> tuple[_engine.VirtualGraph, np.ndarray, Any, str | int]:
    """What the engine asks: the graph with the policy's levels, the costs, who places tiles, in which order lanes take them."""
    plan = checked_plan(policy, graph, machine, costs)
    place = policy.placing if plan.place is None else plan.place
    order = policy.order if plan.priority is None else EXACT
    if isinstance(order, bool) or not isinstance(order, str | int):
        raise InputError(f"{policy.name}: order is {order!r}; it must be the name of one, or the address of a compiled one")
    return virtual_graph(graph, machine, plan.levels), costs.virtual, place, order


def _check_kinds(**given: object) -> None:
    """Check that each argument is what its name says.

    Raises:
        InputError: one is not.
    """
    for name, argument in given.items():
        kind = {"graph": TileGraph, "machine": Machine, "policy": Policy, "costs": Costs}[name]
        if isinstance(argument, kind):
            continue
        if isinstance(argument, type) and issubclass(argument, kind):
            raise InputError(f"the {name} is the class {argument.__name__} itself; make one of it, as {argument.__name__}(...)")
        if name == "graph" and callable(getattr(argument, "graph", None)):
            raise InputError("what is run is a function; give the graph of its arguments, as f.graph(x)")
        raise InputError(f"the {name} is of type {type(argument).__name__}; it must be a {kind.__name__}")


def _lanes(machine: Machine) -> list[tuple[int, tuple[int, ...]]]:
    """How often each resource runs a tile, and the resource's cores."""
    allowed = os.sched_getaffinity(0)
    lanes = []
    for resource in machine.resources:
        if not isinstance(resource, Cpu | Fake):
            raise UnsupportedError(f"{resource.name} can only be simulated; a machine of Cpu and Fake resources can be run here")
        if missing := set(resource.cores) - allowed:
            raise InputError(
                f"{resource.name} wants core {min(missing)}, and this process may use {', '.join(map(str, sorted(allowed)))}"
            )
        lanes.append((resource.repeat if isinstance(resource, Fake) else 1, tuple(resource.cores)))
    return lanes
