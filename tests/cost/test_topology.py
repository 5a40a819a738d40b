"""Kinds of cores and NUMA nodes, read from trees of files as kernels write them."""

from __future__ import annotations

import pytest

from aspen_jax import schedule as sched
from aspen_jax.schedule import machine as machines
from aspen_jax.schedule import topology
from aspen_jax.schedule.topology import Group, groups


def tree(root, files: dict[str, str]):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_plain_machine_is_one_group(tmp_path):
    sysfs = tree(tmp_path, {"system/node/node0/cpulist": "0-3\n"})
    assert groups(range(4), sysfs) == [Group(0, 1024, (0, 1, 2, 3))]
    assert groups(range(4), tmp_path / "nothing") == [Group(0, 1024, (0, 1, 2, 3))]


def test_performance_and_efficiency_cores_of_intel(tmp_path):
    sysfs = tree(tmp_path, {"cpu_core/cpus": "0-7\n", "cpu_atom/cpus": "8-9,11\n", "system/node/node0/cpulist": "0-11\n"})
    assert groups(range(12), sysfs) == [Group(0, 1024, (*range(8), 10)), Group(0, 512, (8, 9, 11))]
    assert groups([2, 9], sysfs) == [Group(0, 1024, (2,)), Group(0, 512, (9,))]


def test_three_kinds_of_arm_and_two_nodes(tmp_path):
    capacities = {f"system/cpu/cpu{core}/cpu_capacity": f"{capacity}\n" for core, capacity in enumerate([430, 430, 870, 1024])}
    nodes = {"system/node/node0/cpulist": "0,2\n", "system/node/node1/cpulist": "1,3\n"}
    found = groups(range(4), tree(tmp_path, capacities | nodes))
    assert found == [Group(0, 870, (2,)), Group(0, 430, (0,)), Group(1, 1024, (3,)), Group(1, 430, (1,))]


@pytest.mark.parametrize("text", ["", "\n", "all", "3-", "-"])
def test_files_that_say_nothing_are_no_error(tmp_path, text):
    sysfs = tree(tmp_path, {"system/node/node0/cpulist": text, "cpu_atom/cpus": text, "system/cpu/cpu0/cpu_capacity": text})
    assert groups([0, 1], sysfs) == [Group(0, 1024, (0, 1))]


def test_a_machine_has_a_resource_for_each_kind_and_memory(monkeypatch):
    monkeypatch.setattr(machines, "num_workers", lambda: 4)
    hybrid = [Group(0, 1024, (0, 1)), Group(0, 512, (2, 3))]
    monkeypatch.setattr(topology, "groups", lambda: hybrid)
    assert sched.Machine.here() == sched.Machine([sched.Cpu(2, "cpu0", "host", (0, 1)), sched.Cpu(2, "cpu1", "host", (2, 3))])
    monkeypatch.setattr(topology, "groups", lambda: [Group(0, 1024, (0, 1)), Group(1, 1024, (2, 3))])
    here = sched.Machine.here()
    assert here.memories == ("node0", "node1")
    assert {(link.source, link.target) for link in here.links} == {("node0", "node1"), ("node1", "node0")}
    monkeypatch.setattr(machines, "num_workers", lambda: 3)
    assert sched.Machine.here() == sched.Machine([sched.Cpu(3)])


def test_this_machine():
    found = groups()
    assert found
    assert all(group.cores for group in found)
