"""The scheduling lab against the machine: what it foretells beside what happens, and graphs for others to schedule."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

import aspen_jax.schedule as sched
from aspen_jax import TileGraph, aspen
from aspen_jax.cost.timing import check_rounds
from aspen_jax.errors import InputError
from aspen_jax.schedule.costs import random_inputs
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark
from benchmarks.options import File, Models, Sizes
from benchmarks.zoo.model import Size

_LINKS = [sched.Link("host", "fake", 10_000, 10e9), sched.Link("fake", "host", 10_000, 10e9)]
MACHINES = {
    "1 worker": sched.Machine([sched.Cpu(1)]),
    "2 workers": sched.Machine([sched.Cpu(2)]),
    "two speeds": sched.Machine([sched.Cpu(1), sched.Fake(1, repeat=2, memory="host")]),
    "two memories": sched.Machine([sched.Cpu(1), sched.Fake(1, repeat=2)], _LINKS),
}
POLICIES = {
    policy.name: policy
    for policy in (
        sched.ReadyPool(),
        sched.FirstReadyFirst(),
        sched.CpuOnly(),
        sched.LayerCut(),
        sched.Shares(),
        sched.Dmda(),
        sched.Heft(),
    )
}
_AGREE = 0.03
"""Minima of the two halves of a measurement that differ by more are not counted; nor are policies nearer to each other."""


@benchmark
def lab(
    models: Models = ("resnet50", "mobilenet_v2", "bert-base"),
    size: Sizes = Size(),  # noqa: B008 - immutable
    machines: tuple[str, ...] = tuple(MACHINES),
    policies: tuple[str, ...] = tuple(POLICIES),
    rounds: int = 30,
    json: File = None,
) -> Run:
    """Makespans that the scheduling lab simulates beside those of real runs, and whether it ranks policies rightly.

    A measurement is the minimum of runs that take turns with those of the other policies.

    Args:
        models: names in the zoo, as `models` takes them; the part with most tiles counts where XLA keeps some.
        size: of the inputs.
        machines: some of those in benchmarks/lab.py, such as "2 workers".
        policies: names of policies.
        rounds: how often each is run.
        json: where to write the figures as well.
    """
    for kind, wanted, known in (("machine", machines, MACHINES), ("policy", policies, POLICIES)):
        if unknown := set(wanted) - set(known):
            raise InputError(f"there is no {kind} {min(unknown)!r}; there are {', '.join(known)}")
    columns = {"model": "", "machine": "", "policy": "", "simulated, ms": ".3f", "measured, ms": ".3f"}
    table = Table("", {**columns, "error": "+.1%", "halves": ".1%", "place ns": ".0f"})
    errors, concordant = [], []
    built = {name: graph_of(name, size) for name in models}
    for name, machine in itertools.product(models, machines):
        graph = built[name]
        inputs = random_inputs(graph)
        costs = sched.measure(graph, MACHINES[machine], rounds=max(rounds // 2, 1), inputs=inputs)
        chosen: list[sched.Policy] = [POLICIES[policy] for policy in policies if _fits(POLICIES[policy], MACHINES[machine])]
        check_results(graph, inputs, MACHINES[machine], chosen, costs)
        simulated = [sched.simulate(graph, MACHINES[machine], costs, policy).makespan for policy in chosen]
        real = [
            [sched.run(graph, *inputs, machine=MACHINES[machine], policy=policy, costs=costs) for policy in chosen]
            for _ in range(rounds)
        ]
        spans = np.array([[schedule.makespan for schedule in turn] for turn in real])
        measured = spans.min(axis=0)
        halves = np.abs(spans[::2].min(axis=0) / spans[1::2].min(axis=0) - 1) if rounds > 1 else np.zeros(len(chosen))
        for number, policy in enumerate(chosen):
            error = simulated[number] / measured[number] - 1
            price = float(np.median([turn[number].place_ns for turn in real]))
            spans_ms = simulated[number] / 1e6, float(measured[number]) / 1e6
            table.add(name, machine, policy.name, *spans_ms, float(error), float(halves[number]), price or None)
            if halves[number] <= _AGREE:
                errors.append(abs(error))
        steady = np.flatnonzero(halves <= _AGREE)
        for one, other in itertools.combinations(steady.tolist(), 2):
            if abs(np.log(measured[one] / measured[other])) > _AGREE:
                concordant.append((simulated[one] - simulated[other]) * (int(measured[one]) - int(measured[other])) > 0)
    yield table
    calls = Table("", {"model": "", "TileGraph.run, ms": ".3f", "run of the lab, ms": ".3f", "more": "+.1%"})
    for name, graph in built.items():
        run, lab_run = beside_run(graph, rounds)
        calls.add(name, run / 1e6, lab_run / 1e6, lab_run / run - 1)
    yield calls
    if errors:
        least = f"median error {np.median(errors):.1%}, 90% below {np.quantile(errors, 0.9):.1%}"
        yield f"{len(errors)} of {len(table.rows)} counted: {least}"
    if concordant:
        tau = 2 * float(np.mean(concordant)) - 1
        yield f"Kendall's tau over {len(concordant)} pairs of policies more than 3% apart: {tau:.2f}"


def beside_run(graph: TileGraph, rounds: int) -> tuple[int, int]:
    """Nanoseconds of a call of `TileGraph.run`, and of one of the lab's `run` on as many lanes as there are workers.

    Calls take turns, after one of each that does not count; the minimum counts.
    """
    inputs = random_inputs(graph)
    machine, policy = sched.Machine.here(), sched.ReadyPool()
    calls = lambda: graph.run(*inputs), lambda: sched.run(graph, *inputs, machine=machine, policy=policy)
    times = [[_nanoseconds(call) for call in calls] for _ in range(rounds + 1)][1:]
    run, lab_run = map(min, zip(*times, strict=True))
    return run, lab_run


def _nanoseconds(call: Callable[[], object]) -> int:
    begin = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin


def check_results(
    graph: TileGraph, inputs: list[np.ndarray], machine: sched.Machine, policies: list[sched.Policy], costs: sched.Costs
) -> None:
    """Check that every policy's run gives the bits of `TileGraph.run`.

    Raises:
        InputError: one does not.
    """
    expected = graph.run(*inputs)
    for policy in policies:
        results = sched.run(graph, *inputs, machine=machine, policy=policy, costs=costs).results
        if any(mine.tobytes() != other.tobytes() for mine, other in zip(results, expected, strict=True)):
            raise InputError(f"{policy.name} gives other results than TileGraph.run")


def graph_of(name: str, size: Size) -> TileGraph:
    """The graph of a network, its part with most tiles; weights are inputs of it."""
    model = zoo.build(name, size)
    parts = aspen(model.apply).explain(*model.arguments).parts
    return max((part.graph for part in parts), key=lambda graph: graph.num_tiles)


def _fits(policy: sched.Policy, machine: sched.Machine) -> bool:
    """Whether it places tiles where it must, and is none of several that are the same where there is one resource."""
    is_native = policy.native is not None or type(policy).plan is not sched.Policy.plan
    return is_native if len(machine.memories) > 1 else len(machine.resources) > 1 or not is_native


_README = """# Graphs of tiles of neural networks

Written by `python -m benchmarks graphs` of aspen_jax. Each network is a pair of files.

- `NAME.aspen`: the graph. `aspen_jax.TileGraph.load` reads it and checks it; its `to_networkx` gives a `networkx.DiGraph`. The
  format is described in docs/graph_format.md. Weights are inputs and not in the file.
- `NAME.csv`: what tiles took on the machine that wrote this, a row for each tile. `aspen_jax.schedule.Costs.load` reads it.

| column of NAME.csv | what it is |
|---|---|
| tile | number of the tile, as in the graph |
| op | name of its op |
| resource | `cpu`: a worker of that machine |
| ns | nanoseconds; a low quantile over all tiles that do the same |
| samples | how many measurements that is taken from |
| spread | half the distance between their quartiles, as a share of the median |

`index.csv` has a row for each network.

| column of index.csv | what it is |
|---|---|
| network | NAME |
| ops, tiles, edges | how many the graph has |
| data_edges | edges along which a tile reads what another wrote; the others order tiles that use the same memory |
| bytes | what all tiles write |
| workers | how many workers were busy when times were taken |
| work_ns | sum of the times of all tiles |
| critical_path_ns | of the longest chain of tiles |
"""


def graphs(
    output: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")],
    /,
    models: Models = tuple(zoo.NETWORKS),
    size: Sizes = Size(),  # noqa: B008 - immutable
    rounds: int = 10,
) -> int:
    """The networks' graphs and the measured times of their tiles, as files for research on scheduling.

    Args:
        output: the folder to write.
        models: names in the zoo; all of its networks by default.
        size: of the inputs.
        rounds: how often each graph is run to time its tiles.
    """
    check_rounds(rounds)
    output.mkdir(parents=True, exist_ok=True)
    machine = sched.Machine.here()
    lines = ["network,ops,tiles,edges,data_edges,bytes,workers,work_ns,critical_path_ns"]
    for name in models:
        graph = graph_of(name, size)
        costs = sched.measure(graph, machine, rounds)
        graph.save(output / f"{name}.aspen")
        costs.save(output / f"{name}.csv", graph, machine)
        times = np.rint(costs.ns[:, 0]).astype(np.int64)
        counts = graph.num_ops, graph.num_tiles, graph.num_edges, int(graph.carries_data.sum()), int(graph.tile_bytes.sum())
        critical = int(graph.dag.finish_times(times).max(initial=0))
        lines.append(",".join(map(str, (name, *counts, machine.resources[0].lanes, int(times.sum()), critical))))
        print(lines[-1], flush=True)
    (output / "index.csv").write_text("\n".join(lines) + "\n")
    (output / "README.md").write_text(_README)
    return 0
