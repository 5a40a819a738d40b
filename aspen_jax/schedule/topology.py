"""Which cores this machine has: their kinds and the memory that each is near."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Group(NamedTuple):
    """Cores of one kind near one memory.

    Attributes:
        node: number of the NUMA node.
        capacity: how fast a core is, beside others of the machine; all are equal where the kernel does not say.
        cores: their numbers.
    """

    node: int
    capacity: int
    cores: tuple[int, ...]


def groups(usable: Sequence[int] | None = None, sysfs: str | os.PathLike[str] | None = None) -> list[Group]:
    """The cores of this machine, by node, fast ones first.

    The kernel names nodes everywhere. Of kinds it tells in two ways: capacities on Arm and on hybrid machines from Linux 6.12
    on, and lists of performance and efficiency cores (`cpu_core`, `cpu_atom`) on Intel's.

    Args:
        usable: numbers of the cores that count; those that this process may use if None.
        sysfs: where the kernel's files are; those of this machine, read once, if None.
    """
    cores = tuple(sorted(os.sched_getaffinity(0) if usable is None else usable))
    return list(_groups_here(cores) if sysfs is None else _groups(cores, Path(sysfs)))


@functools.cache  # a run of the lab asks anew, and there is a file for each core
def _groups_here(usable: tuple[int, ...]) -> list[Group]:
    return _groups(usable, Path("/sys/devices"))


def _groups(usable: tuple[int, ...], root: Path) -> list[Group]:
    nodes = dict.fromkeys(usable, 0)
    for folder in (root / "system" / "node").glob("node[0-9]*"):
        nodes |= dict.fromkeys(_cores(folder / "cpulist"), int(folder.name.removeprefix("node")))
    efficient = _cores(root / "cpu_atom" / "cpus")
    found: dict[tuple[int, int], list[int]] = {}
    for core in usable:
        capacity = _number(root / "system" / "cpu" / f"cpu{core}" / "cpu_capacity")
        if capacity is None:
            capacity = 512 if core in efficient else 1024
        found.setdefault((nodes[core], capacity), []).append(core)
    ordered = sorted(found.items(), key=lambda item: (item[0][0], -item[0][1]))
    return [Group(node, capacity, tuple(cores)) for (node, capacity), cores in ordered]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _cores(path: Path) -> set[int]:
    """The numbers in a list such as 0-3,8,10-11; none where the file is not there."""
    try:
        parts = path.read_text().strip().split(",")
        ranges = [part.partition("-")[::2] for part in parts if part]
        return {core for first, last in ranges for core in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return set()
