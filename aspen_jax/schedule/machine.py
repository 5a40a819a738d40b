"""Machines: resources that take tiles, the memories in which they compute, and the links between these."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from aspen_jax import _engine, forks
from aspen_jax.errors import InputError
from aspen_jax.files import SMALL, read_text
from aspen_jax.runtime import num_workers
from aspen_jax.schedule import topology


@dataclasses.dataclass(frozen=True)
class Cpu:
    """Cores of one kind; each worker is a lane.

    Cores of two kinds (P and E) are two resources of one memory, NUMA nodes two resources of two memories.

    Attributes:
        workers: how many tiles it runs at once.
        name: of the resource.
        memory: in which it computes.
        cores: of this machine, to which the workers are bound in a real run; free to move if there are none.
    """

    workers: int
    name: str = "cpu"
    memory: str = "host"
    cores: tuple[int, ...] = ()

    @property
    def lanes(self) -> int:
        """How many tiles it runs at once."""
        return self.workers


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU, or some of its multiprocessors.

    Attributes:
        lanes: streams, each of which runs one tile at a time.
        name: of the resource.
        memory: in which it computes.
    """

    lanes: int = 1
    name: str = "gpu"
    memory: str = "gpu"


@dataclasses.dataclass(frozen=True)
class Fake:
    """A device that is played by cores of this machine: slower by a whole factor, in a memory of its own.

    Each tile is run `repeat` times. In a real run the memory begins as NaN, so that a copy that is missing shows in the results.

    Attributes:
        lanes: how many tiles it runs at once; each is a thread.
        repeat: how often it runs each tile. An op that rewrites its operand runs once, and waits for the rest of the time.
        name: of the resource.
        memory: in which it computes.
        cores: to which its lanes are bound; free to move if there are none.
    """

    lanes: int = 1
    repeat: int = 1
    name: str = "fake"
    memory: str = "fake"
    cores: tuple[int, ...] = ()


Resource = Cpu | Gpu | Fake


def _is_whole(number: object) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


@dataclasses.dataclass(frozen=True)
class Link:
    """A way from one memory to another; it carries one copy at a time.

    Attributes:
        source: a memory.
        target: another.
        latency_ns: of a copy, in nanoseconds.
        bytes_per_second: behind that.
    """

    source: str
    target: str
    latency_ns: int
    bytes_per_second: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a graph is scheduled on.

    Attributes:
        resources: with different names.
        links: one in each direction between memories that exchange tiles.

    Raises:
        InputError: no resource, one without lanes, two of one name, a `Fake` that runs a tile less than once, a link of unknown
            memories, or a time that is negative or no number.
    """

    resources: tuple[Resource, ...]
    links: tuple[Link, ...] = ()

    def __init__(self, resources: Sequence[Resource], links: Sequence[Link] = ()):
        object.__setattr__(self, "resources", tuple(resources))
        object.__setattr__(self, "links", tuple(links))
        for kinds, given in ((Resource, self.resources), (Link, self.links)):
            for item in given:
                if not isinstance(item, kinds):
                    what = f"the class {item.__name__} itself" if isinstance(item, type) else repr(item)
                    raise InputError(f"a machine has resources, as sched.Cpu(2), and links; {what} is none")
        names = [resource.name for resource in self.resources]
        if len(set(names)) < len(names):
            raise InputError(f"two resources of a machine have one name, of {', '.join(names)}; give each its own")
        for resource in self.resources:
            for what, cores_or_lanes in (("lanes", [resource.lanes]), ("cores", getattr(resource, "cores", ()))):
                for number in cores_or_lanes:
                    if not _is_whole(number):
                        raise InputError(f"{resource.name} has {what} of {number!r}; give whole numbers")
            if isinstance(resource, Fake) and not (_is_whole(resource.repeat) and 1 <= resource.repeat <= 1_000_000):
                raise InputError(f"{resource.name} runs a tile {resource.repeat!r} times; give it a number from 1 to 1000000")
        for link in self.links:
            unknown = {link.source, link.target} - set(self.memories)
            if unknown:
                raise InputError(
                    f"no resource computes in memory {unknown.pop()!r}, which a link names; there are {', '.join(self.memories)}"
                )
            if not (link.latency_ns >= 0 and link.bytes_per_second > 0 and math.isfinite(link.latency_ns)):
                raise InputError(f"{link} needs a latency of 0 or more and more than 0 bytes a second")
        self.virtual  # noqa: B018 - it checks the rest

    @classmethod
    def here(cls) -> Machine:
        """The workers of this process.

        Where the process may use cores of several kinds or near several memories (NUMA), each such group is a resource whose
        workers are bound to its cores, fast ones first. Links between NUMA memories are a guess: a microsecond and 20 GB/s. With
        another number of workers than there are cores (`aspen_jax.set_num_workers`), they are one resource.
        """
        count, groups = num_workers(), topology.groups()
        if len(groups) == 1 or count != sum(len(group.cores) for group in groups):
            return cls([Cpu(count)])
        nodes = {group.node for group in groups}
        memories = {node: f"node{node}" if len(nodes) > 1 else "host" for node in nodes}
        resources = [
            Cpu(len(group.cores), f"cpu{number}", memories[group.node], group.cores) for number, group in enumerate(groups)
        ]
        return cls(resources, [Link(a, b, 1_000, 20e9) for a, b in itertools.permutations(memories.values(), 2)])

    @property
    def memories(self) -> tuple[str, ...]:
        """The names of the memories, in the order of the resources."""
        return tuple(dict.fromkeys(resource.memory for resource in self.resources))

    @property
    def lane_names(self) -> list[str]:
        """A name for each lane, resource by resource."""
        return [f"{resource.name} {lane}" for resource in self.resources for lane in range(resource.lanes)]

    @forks.cached_property
    def lane_resources(self) -> np.ndarray:
        """The resource of each lane, int64 [lanes]."""
        return np.repeat(np.arange(len(self.resources)), [resource.lanes for resource in self.resources])

    def index(self, name: str) -> int:
        """The number of the resource of this name.

        Raises:
            InputError: there is none.
        """
        names = [resource.name for resource in self.resources]
        if name not in names:
            raise InputError(f"the machine has no resource {name!r}; it has {', '.join(names)}")
        return names.index(name)

    def scaled(self, **lanes: int) -> Machine:
        """The same machine with other numbers of lanes, as in `scaled(cpu=64)`.

        Raises:
            InputError: there is no resource of such a name.
        """
        numbers = {self.index(name): count for name, count in lanes.items()}
        resources = []
        for number, resource in enumerate(self.resources):
            field = "workers" if isinstance(resource, Cpu) else "lanes"
            resources.append(dataclasses.replace(resource, **{field: numbers.get(number, resource.lanes)}))
        return Machine(resources, self.links)

    def copy_ns(self, num_bytes: np.ndarray) -> np.ndarray:
        """What copies of so many bytes take on the mean of all links, in nanoseconds; 0 without links."""
        if not self.links:
            return np.zeros(len(num_bytes))
        latency = np.mean([link.latency_ns for link in self.links])
        return latency + np.asarray(num_bytes) * np.mean([1e9 / link.bytes_per_second for link in self.links])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, which `load` reads.

        Raises:
            OSError: it cannot be written.
        """
        kinds = [{"kind": type(item).__name__.lower(), **dataclasses.asdict(item)} for item in self.resources]
        links = [dataclasses.asdict(link) for link in self.links]
        Path(path).write_text(json.dumps({"resources": kinds, "links": links}, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Machine:
        """Read what `save` wrote.

        Raises:
            InputError: the file describes no machine.
            OSError: it cannot be read.
        """
        try:
            found = json.loads(read_text(path, SMALL))
            resources = [_resource(dict(item)) for item in found["resources"]]
            return cls(resources, [Link(**item) for item in found["links"]])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"{os.fspath(path)} describes no machine: {error}") from None

    @forks.cached_property
    def virtual(self) -> _engine.VirtualMachine:
        """The machine as the engine's clock knows it."""
        memories = self.memories
        links = {(link.source, link.target): (int(link.latency_ns), 1e9 / link.bytes_per_second) for link in self.links}
        none: tuple[int, float] = (_engine.NEVER, 0.0)
        own: tuple[int, float] = (0, 0.0)
        return _engine.VirtualMachine(
            [_count(resource.lanes) for resource in self.resources],
            [memories.index(resource.memory) for resource in self.resources],
            [own if a == b else links.get((a, b), none) for a in memories for b in memories],
        )

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), (self.resources, self.links)


def _count(lanes: int) -> int:
    if not isinstance(lanes, int) or not 1 <= lanes <= 1024:
        raise InputError(f"a resource has {lanes!r} lanes; give it a number from 1 to 1024")
    return lanes


def _resource(item: dict[str, Any]) -> Resource:
    kinds: dict[str, type[Resource]] = {"cpu": Cpu, "gpu": Gpu, "fake": Fake}
    kind = item.pop("kind")
    if kind not in kinds:
        raise ValueError(f"there is no resource of the kind {kind!r}")
    if "cores" in item:
        item["cores"] = tuple(item["cores"])
    return kinds[kind](**item)
