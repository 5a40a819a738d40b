"""What a policy is: either it plans the whole run beforehand, or it places each tile when that becomes ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np

from aspen_jax import _engine
from aspen_jax.errors import InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.schedule.costs import Costs, check_fit
from aspen_jax.schedule.machine import Machine

Order = Literal[
    "shallow first",
    "child cache of 4",
    "child cache of 16",
    "important first",
    "all through pool",
    "first ready first",
    "single queue",
    "deep first",
]

Place = str | int | Callable[["View", int], int]

EXACT = "exact"
"""The engine's order of a plan's priorities: it takes them as they are, with no Ready Pool and no child that a lane keeps."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Decisions for all tiles.

    Attributes:
        place: int array [tiles], the number of each tile's resource; None: whoever is idle takes what is ready.
        priority: float array [tiles]: of the tiles that are ready on a resource, the one with the largest number goes first. Of
            equal ones the tile of the lowest number does. None: the policy's `order`.
    """

    place: np.ndarray | None = None
    priority: np.ndarray | None = None

    @property
    def levels(self) -> np.ndarray | None:
        """Levels by priority: equal priorities are one level, the largest is level 0."""
        if self.priority is None:
            return None
        return np.unique(-self.priority, return_inverse=True)[1].reshape(-1)


class View(Protocol):
    """What `Policy.place` sees: the expectation of the engine's clock, and the time."""

    @property
    def now(self) -> int:
        """Nanoseconds since the run began."""
        ...

    @property
    def num_resources(self) -> int:
        """How many resources the machine has."""
        ...

    def earliest_finish(self, tile: int, /) -> np.ndarray:
        """The time at which a tile would end on each resource, int64 [resources]; `NEVER` where it has no kernel."""
        ...


class Policy:
    """Decides who runs which tile. Write `plan` or `place`.

    `plan` runs once, before the run, with numpy arrays. `place` is called for each tile when it becomes ready. A policy may have
    both where the plan gives priorities alone. What it says twice is an error: places and `place`, priorities and `order`.
    """

    order: Order | int = "shallow first"
    """How lanes take tiles where the plan gives no priorities: a policy of the engine (engine/policy.h), at first the paper's; or
    the address of a compiled one."""

    native: str | int | None = None
    """A way to place tiles without Python, instead of `place`: "earliest finish", which the engine's clock knows by itself, or
    the address of a compiled function (engine/place.h). A class that derives from one with `native` may write `place`, which
    counts then, and the other way round."""

    @property
    def name(self) -> str:
        """The policy's name in tables and pictures."""
        return type(self).__name__

    def plan(self, graph: TileGraph, machine: Machine, costs: Costs) -> Plan:
        """Decide for all tiles at once.

        Args:
            graph: what is to run.
            machine: on what.
            costs: what each tile takes on each resource.
        """
        return Plan()

    def place(self, view: View, tile: int) -> int:
        """The number of the resource on which a tile that is ready shall run.

        Args:
            view: what is known at this moment.
            tile: its number.
        """
        raise NotImplementedError

    @property
    def placing(self) -> Place | None:
        """How this policy places tiles when they become ready: its `native` or its `place`; None: it does not.

        Raises:
            InputError: it has both, and neither is that of a class derived from the other's; or `native` is nothing of the kind.
        """
        native, place, by_native, by_place = self.native, self.place, self._who_says("native"), self._who_says("place")
        if native is not None and (isinstance(native, bool) or not isinstance(native, str | int)):
            raise InputError(
                f"{self.name}: native is {native!r}; it must be 'earliest finish', the address of a compiled function, or None"
            )
        if by_place is Policy:
            return native
        if native is None:
            return place
        if isinstance(by_native, type) and by_native is not by_place:
            if not isinstance(by_place, type) or issubclass(by_place, by_native):
                return place
            if issubclass(by_native, by_place):
                return native
        raise InputError(
            f"{self.name} has a `place` and native = {native!r}, and nothing says which of them counts; "
            "delete one of them, or set native = None"
        )

    def _who_says(self, name: str) -> object:
        """What an attribute comes from: this policy itself, or one of its classes."""
        holders = (self, *type(self).__mro__)
        return next(holder for holder in holders if name in getattr(holder, "__dict__", ()))


class State:
    """The engine's own virtual clock for policies that plan: assign tiles one after the other and see when each would end.

    A tile takes the lane of its resource that is free first, behind what was assigned there. What it reads is copied before.

    Args:
        graph: what is to run.
        machine: on what.
        costs: what each tile takes on each resource.
    """

    def __init__(self, graph: TileGraph, machine: Machine, costs: Costs):
        check_fit(graph, machine, costs)
        self._expectation = _engine.Expectation(virtual_graph(graph, machine), machine.virtual, costs.virtual)

    def earliest_finish(self, tile: int) -> np.ndarray:
        """The time at which a tile would end on each resource, int64 [resources] in nanoseconds.

        It is `_engine.NEVER` where a resource has no kernel for the tile.

        Raises:
            InputError: there is no such tile, or one that it waits for is not assigned yet.
        """
        return self._expectation.earliest_finish(int(tile))

    def assign(self, tile: int, resource: int) -> None:
        """Put a tile behind all that was assigned to a resource.

        Raises:
            InputError: the resource has no kernel for it, it is assigned already, or one that it waits for is not.
        """
        self._expectation.assign(int(tile), int(resource))


def virtual_graph(graph: TileGraph, machine: Machine, levels: np.ndarray | None = None) -> _engine.VirtualGraph:
    """A graph as the engine's clock knows it.

    Args:
        graph: the graph.
        machine: where it has one memory, nothing is ever copied, and which arrows carry data need not be known.
        levels: int array [tiles], low ones first; the depths of the ops if None.
    """
    has_copies = len(machine.memories) > 1
    levels = graph.ops[graph.tile_ops, 4] if levels is None else levels
    nothing = np.zeros(0, np.int64)
    return _engine.VirtualGraph(
        np.ascontiguousarray(graph.child_counts, np.int64),
        np.ascontiguousarray(graph.children, np.int64),
        np.ascontiguousarray(graph.tile_ops, np.int64),
        np.ascontiguousarray(levels, np.int64),
        np.ascontiguousarray(graph.tile_bytes if has_copies else nothing, np.int64),
        np.ascontiguousarray(graph.carries_data if has_copies else nothing, np.uint8),
    )


def checked_plan(policy: Policy, graph: TileGraph, machine: Machine, costs: Costs) -> Plan:
    """What a policy plans, once it is known to fit.

    Raises:
        InputError: the arrays have other shapes, name unknown resources, or hold priorities that are no numbers; or what they say
            the policy says in another way too.
    """
    plan = policy.plan(graph, machine, costs)
    if not isinstance(plan, Plan):
        raise InputError(f"{policy.name}.plan returned {type(plan).__name__}; it must return aspen_jax.schedule.Plan")
    place, priority = plan.place, plan.priority
    if place is not None:
        place = _array(policy, "place", place, graph.num_tiles)
        if not np.issubdtype(place.dtype, np.integer):
            raise InputError(f"{policy.name}: place holds {place.dtype}; it must hold the numbers of resources")
        wrong = np.flatnonzero((place < 0) | (place >= len(machine.resources)))
        if wrong.size:
            where = f"resource {place[wrong[0]]} of {len(machine.resources)}"
            raise InputError(f"{policy.name}: tile {wrong[0]} is placed on {where}; they count from 0")
        without = np.flatnonzero(~np.isfinite(costs.ns[np.arange(graph.num_tiles), place]))
        if without.size:
            name = machine.resources[int(place[without[0]])].name
            raise InputError(f"{policy.name}: tile {without[0]} is placed on {name}, which has no kernel for it")
        place = place.astype(np.int32)
    if priority is not None:
        priority = _array(policy, "priority", priority, graph.num_tiles).astype(np.float64)
        if np.isnan(priority).any():
            raise InputError(f"{policy.name}: the priority of tile {np.flatnonzero(np.isnan(priority))[0]} is NaN")
    if place is not None and policy.placing is not None:
        raise InputError(
            f"{policy.name}: its plan gives places, and `place` or `native` would give others; "
            "return a Plan without places, or delete the other"
        )
    if priority is not None and policy._who_says("order") is not Policy:
        raise InputError(
            f"{policy.name}: its plan gives priorities, and its order {policy.order!r} is another; "
            "return a Plan without priorities, or delete the order"
        )
    return Plan(place, priority)


def _array(policy: Policy, what: str, given: object, length: int) -> np.ndarray:
    array = np.asarray(given)
    if array.shape != (length,):
        raise InputError(f"{policy.name}: {what} has shape {list(array.shape)}; it needs one number for each of {length} tiles")
    return array
