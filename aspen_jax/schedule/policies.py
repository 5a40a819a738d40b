"""The policies that come with the lab. Each is meant to be read, copied and changed."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.schedule.costs import Costs
from aspen_jax.schedule.machine import Cpu, Gpu, Machine
from aspen_jax.schedule.policy import Order, Plan, Policy, State


class ReadyPool(Policy):
    """The paper's (ASPEN, section 3.3): whoever is idle takes the shallowest tile. It does not see which resource is fast."""


class ChildCache(Policy):
    """The paper's, and a lane keeps up to 4 or 16 ready children to itself (section 3.2, left there for later work).

    Args:
        size: 4 or 16.
    """

    def __init__(self, size: Literal[4, 16] = 4):
        self.order = "child cache of 16" if size == 16 else "child cache of 4"


class Importance(Policy):
    """Tiles first that most others wait for, as those of pools and strided convolutions (section 3.2, likewise)."""

    order: Order = "important first"


class AllThroughPool(Policy):
    """The paper's without the step to the first ready child: all children go through the Ready Pool."""

    order: Order = "all through pool"


class SingleQueue(Policy):
    """Algorithm 1 with one queue for all lanes, first in, first out, in place of the Ready Pool."""

    order: Order = "single queue"


class FirstReadyFirst(Policy):
    """Idle resources take the tile that became ready first; StarPU calls this policy eager."""

    order: Order = "first ready first"


class _Only(Policy):
    """All tiles on the resources of one kind; the first of them."""

    kind: type[Cpu] | type[Gpu]

    def plan(self, graph: TileGraph, machine: Machine, costs: Costs) -> Plan:
        for number, resource in enumerate(machine.resources):
            if isinstance(resource, self.kind):
                return Plan(np.full(graph.num_tiles, number))
        raise InputError(f"{self.name}: the machine has no {self.kind.__name__}")


class CpuOnly(_Only):
    """All tiles on the first CPU."""

    kind = Cpu


class GpuOnly(_Only):
    """All tiles on the first GPU."""

    kind = Gpu


class LayerCut(Policy):
    """The best cut by depth: ops above run on one resource, ops below on another (Neurosurgeon, ASPLOS 2017)."""

    def plan(self, graph: TileGraph, machine: Machine, costs: Costs) -> Plan:
        from aspen_jax.schedule.simulation import simulate

        depths = graph.ops[graph.tile_ops, 4]
        count = len(machine.resources)
        pairs = [(a, b) for a in range(count) for b in range(count)]
        cuts = np.unique(np.linspace(0, graph.max_depth + 1, 17).astype(int))
        places = [np.where(depths < cut, a, b) for a, b in pairs for cut in cuts]
        places = [place for place in places if np.isfinite(costs.ns[np.arange(graph.num_tiles), place]).all()]
        if not places:
            raise InputError("LayerCut: no cut in two gives every tile a kernel")
        spans = [simulate(graph, machine, costs, Static(place)).makespan for place in places]
        return Plan(places[int(np.argmin(spans))])


class Dmda(Policy):
    """Each ready tile where it is expected to end first, copies included; StarPU's dmda. The clock decides, in C++."""

    native = "earliest finish"


class Heft(Policy):
    """HEFT: tiles by upward rank, each where it ends first (Topcuoglu, Hariri and Wu, TPDS 2002). It fills no gaps."""

    def plan(self, graph: TileGraph, machine: Machine, costs: Costs) -> Plan:
        rank = graph.upward_rank(costs.mean_ns + machine.copy_ns(graph.tile_bytes))
        state = State(graph, machine, costs)
        place = np.empty(graph.num_tiles, np.int32)
        order = np.argsort(-graph.upward_rank(np.ones(graph.num_tiles)), kind="stable")  # of equal ranks, parents first
        for tile in order[np.argsort(-rank[order], kind="stable")].tolist():
            place[tile] = best = int(state.earliest_finish(tile).argmin())
            state.assign(tile, best)
        return Plan(place, priority=rank)


class Shares(Policy):
    """Each op split: a resource takes the share of its tiles that its speed allows, neighbours together."""

    def plan(self, graph: TileGraph, machine: Machine, costs: Costs) -> Plan:
        lanes = np.array([resource.lanes for resource in machine.resources])
        place = np.zeros(graph.num_tiles, np.int32)
        for op in range(graph.num_ops):
            tiles = np.flatnonzero(graph.tile_ops == op)
            speed = lanes / np.maximum(costs.ns[tiles].mean(axis=0), 1)
            ends = np.cumsum(speed) / speed.sum()
            place[tiles] = np.searchsorted(ends, (np.arange(len(tiles)) + 0.5) / len(tiles))
        return Plan(place)


class Static(Policy):
    """Places and priorities that you know already.

    Args:
        place: int array [tiles], the number of each tile's resource.
        priority: float array [tiles], large ones first; shallow tiles first if None.
    """

    def __init__(self, place: Any, priority: Any = None):
        self._plan = Plan(np.asarray(place), None if priority is None else np.asarray(priority))

    def plan(self, graph: TileGraph, machine: Machine, costs: Costs) -> Plan:
        return self._plan
