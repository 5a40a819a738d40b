"""The engine's virtual clock beside SimGrid's: the same tiles and copies, placed and ordered alike, end at the same time."""
# pyright: reportMissingImports=false
# SimGrid is optional, also where types are checked.

from __future__ import annotations

import importlib.util
import json as jsons
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import aspen_jax.schedule as sched
from aspen_jax import TileGraph
from aspen_jax.errors import InputError
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.child import measure_in_child, serve
from benchmarks.lab import graph_of
from benchmarks.options import File
from benchmarks.zoo.model import Size

# Whole nanoseconds a byte, since our clock rounds.
MACHINE = sched.Machine(
    [sched.Cpu(1), sched.Fake(1)], [sched.Link("host", "fake", 10_000, 1e9), sched.Link("fake", "host", 20_000, 0.5e9)]
)


@benchmark
def simgrid(model: str = "squeezenet1_1", image_size: int = 64, times: int = 20, json: File = None) -> Run:
    """Makespans of our simulation beside SimGrid's, which Debian's package python3-simgrid or PyPI's simgrid has.

    Two hosts with a link in each direction run a network's graph, whose tiles have random times and random places. SimGrid
    is told which host runs a tile, in which order, in which order a link copies, and which copies are joined to the one before.
    It finds out when.

    Args:
        model: a network of the zoo.
        image_size: of its images.
        times: how often, each time with other numbers.
        json: where to write the figures as well.
    """
    if importlib.util.find_spec("simgrid") is None:
        raise InputError("this Python has no module simgrid; install it (Debian: python3-simgrid)")
    graph = graph_of(model, Size(image_size=image_size))
    schedules = [random_schedule(graph, seed) for seed in range(times)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "runs.json"
        path.write_text(jsons.dumps([describe(schedule) for schedule in schedules]))
        theirs = measure_in_child("benchmarks.beside_simgrid", [str(path)])  # a process has one engine of SimGrid
    ours = [schedule.makespan for schedule in schedules]
    apart = [abs(mine - other) for mine, other in zip(ours, theirs, strict=True)]
    table = Table("", {"seed": "d", "ours, ns": ".0f", "SimGrid, ns": ".1f"})
    for seed, both in enumerate(zip(ours, theirs, strict=True)):
        table.add(seed, *both)
    yield table
    yield f"{graph.num_tiles} tiles; at most {max(apart):.1f} ns apart"
    yield 0 if max(apart) < 1 else 1


def random_schedule(graph: TileGraph, seed: int) -> sched.Schedule:
    """Simulate a graph whose tiles have random times and random places."""
    random = np.random.default_rng(seed)
    costs = sched.Costs(random.integers(1_000, 100_000, (graph.num_tiles, 2)).astype(np.float64))
    return sched.simulate(graph, MACHINE, costs, sched.Static(random.integers(0, 2, graph.num_tiles)))


def describe(schedule: sched.Schedule) -> dict[str, Any]:
    """What SimGrid is told of a schedule: numbers of nanoseconds and bytes, and orders, but no points in time."""
    graph, machine, place = schedule.graph, schedule.machine, schedule.resources
    parents, children = graph.dag.edges()
    order = np.argsort(schedule.begin, kind="stable")
    copies = schedule.copies[np.argsort(schedule.copies[:, 3], kind="stable")]
    links = {(machine.memories.index(link.source), machine.memories.index(link.target)): link for link in machine.links}
    return {
        "ns": (schedule.end - schedule.begin).tolist(),
        "orders": [order[place[order] == host].tolist() for host in range(len(machine.resources))],
        "edges": np.stack([parents, children, graph.carries_data], axis=1).tolist(),
        "copies": [_copy(schedule, links, *row) for row in copies.tolist()],
        "links": [[*ends, link.bytes_per_second / 1e9] for ends, link in links.items()],
    }


def _copy(
    schedule: sched.Schedule, links: dict[tuple[int, int], sched.Link], tile: int, source: int, target: int, begin: int, end: int
) -> list[int]:
    """Tile, ends, bytes and latency of a copy; one that is joined to the copy before has no latency."""
    size, link = int(schedule.graph.tile_bytes[tile]), links[source, target]
    is_joined = end - begin == round(size * 1e9 / link.bytes_per_second)
    return [tile, source, target, size, 0 if is_joined else link.latency_ns]


def _simulate(path: str) -> list[float]:
    """Makespans by SimGrid. A nanosecond is a second there, so that its precision does not matter."""
    from simgrid import Engine, NetZone

    engine = Engine(
        [
            "lab",
            "--cfg=network/model:CM02",
            "--cfg=network/TCP-gamma:0",
            "--cfg=network/crosstraffic:0",
            "--log=root.thres:critical",
        ]
    )
    zone = NetZone.create_full_zone("all")
    runs = [_Run(zone, number, run) for number, run in enumerate(jsons.loads(Path(path).read_text()))]
    zone.seal()
    for run in runs:
        run.start()
    engine.run()
    return [run.ended for run in runs]


class _Run:
    """One schedule, on hosts of its own."""

    def __init__(self, zone: Any, number: int, described: dict[str, Any]):
        from simgrid import LinkInRoute, Semaphore

        self.ended = 0.0
        self._what = described
        self._hosts = [zone.create_host(f"{number}/{host}", 1.0) for host in range(len(described["orders"]))]
        for source, target, rate in described["links"]:
            link = zone.create_link(f"{number}/{source}-{target}", rate)
            link.set_latency(0).seal()
            ends = (self._hosts[end].netpoint for end in (source, target))
            zone.add_route(*ends, None, None, [LinkInRoute(link)], False)
        place = {tile: host for host, tiles in enumerate(described["orders"]) for tile in tiles}
        copied = {(tile, target) for tile, _, target, *_ in described["copies"]}
        # What a tile waits for: that others end, and then that copies of what they wrote are there.
        self._parents, self._copies_for = defaultdict(list), defaultdict(list)
        for parent, child, carries in described["edges"]:
            self._parents[child].append(parent)
            if carries and (parent, place[child]) in copied and place[parent] != place[child]:
                self._copies_for[child].append((parent, place[child]))
        self._events: dict[Any, Any] = defaultdict(lambda: Semaphore(0))

    def start(self) -> None:
        from simgrid import Actor

        for host, order in enumerate(self._what["orders"]):
            Actor.create("lane", self._hosts[host], self._lane, order)
        for tile, wanted in self._copies_for.items():
            Actor.create("ready", self._hosts[0], self._ask, tile, wanted)
        for source, target, *_ in self._what["links"]:
            copies = [copy for copy in self._what["copies"] if (copy[1], copy[2]) == (source, target)]
            Actor.create("link", self._hosts[source], self._link, copies)

    def _lane(self, order: list[int]) -> None:
        from simgrid import Engine, this_actor

        for tile in order:
            self._wait(
                *(("end", parent) for parent in self._parents[tile]), *(("copy", *copy) for copy in self._copies_for[tile])
            )
            this_actor.execute(self._what["ns"][tile])
            self._happened("end", tile)
            self.ended = max(self.ended, Engine.clock)

    def _ask(self, tile: int, wanted: list[tuple[int, int]]) -> None:
        """A copy begins when a tile that reads it has no other to wait for."""
        self._wait(*(("end", parent) for parent in self._parents[tile]))
        for copy in wanted:
            self._happened("wanted", *copy)

    def _link(self, copies: list[list[int]]) -> None:
        from simgrid import Comm, this_actor

        for tile, source, target, size, latency in copies:
            self._wait(("wanted", tile, target))
            this_actor.sleep_for(latency)
            Comm.sendto(self._hosts[source], self._hosts[target], size)
            self._happened("copy", tile, target)

    def _wait(self, *events: tuple[Any, ...]) -> None:
        for event in events:
            semaphore = self._events[event]
            semaphore.acquire()
            semaphore.release()  # for whoever else waits

    def _happened(self, *event: Any) -> None:
        self._events[event].release()


if __name__ == "__main__":
    serve(_simulate)
