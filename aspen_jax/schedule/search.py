"""Search for a good plan on the virtual clock."""

from __future__ import annotations

import numpy as np

from aspen_jax import _engine
from aspen_jax.errors import InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.schedule.costs import Costs
from aspen_jax.schedule.machine import Machine
from aspen_jax.schedule.policies import Dmda, Heft, Shares, Static
from aspen_jax.schedule.policy import EXACT, Plan, Policy, virtual_graph
from aspen_jax.schedule.simulation import simulate


class Search(Policy):
    """Random search: begins with the best of Heft, Dmda and Shares, moves tiles of one op at a time, keeps what is not slower.

    Args:
        rounds: how many moves are tried; ResNet-50 on a CPU and a GPU takes about 1 ms each.
        seed: of the moves. The same seed gives the same plan.

    Raises:
        InputError: the rounds are negative.
    """

    def __init__(self, rounds: int = 20_000, seed: int = 0):
        if rounds < 0:
            raise InputError(f"{rounds} rounds of search; take 0 or more")
        self._rounds, self._seed = rounds, seed

    def plan(self, graph: TileGraph, machine: Machine, costs: Costs) -> Plan:
        rank = Heft().plan(graph, machine, costs).priority
        places = [simulate(graph, machine, costs, policy).resources for policy in (Heft(), Dmda(), Shares())]
        starts = [Plan(place.astype(np.int32), priority) for place in places for priority in (rank, None)]
        spans = [simulate(graph, machine, costs, Static(start.place, start.priority)).makespan for start in starts]
        best = int(np.argmin(spans))
        place, span = places[best // 2].astype(np.int32), spans[best]
        order = Policy.order if starts[best].priority is None else EXACT
        tiles, times = virtual_graph(graph, machine, starts[best].levels), costs.virtual
        usable = np.isfinite(costs.ns)
        of_ops = [graph.tiles_of(op)[0] for op in range(graph.num_ops)]
        random = np.random.default_rng(self._seed)
        for _ in range(self._rounds if graph.num_tiles else 0):
            tried = place.copy()
            moved = of_ops[random.integers(len(of_ops))]
            # Neighbours together, for they read the same.
            first, last = np.sort(random.integers(0, len(moved) + 1, 2))
            moved = moved[first : last + 1]
            resource = random.integers(len(machine.resources))
            tried[moved[usable[moved, resource]]] = resource
            rows, _ = _engine.simulate(tiles, machine.virtual, times, tried, order)
            took = rows[:, 2].max() - rows[:, 1].min()
            if took <= span:
                place, span = tried, took
        return Plan(place, starts[best].priority)
