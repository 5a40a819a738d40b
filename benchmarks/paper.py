"""ASPEN's section 4 at the scale of this machine: the other benchmarks on the paper's models, into one folder."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from aspen_jax.errors import InputError
from benchmarks import zoo
from benchmarks.benchmark import Run, benchmark
from benchmarks.options import Folder, Models, Names, Sizes
from benchmarks.page import read
from benchmarks.peers.case import read_case
from benchmarks.peers.sides import SIDES
from benchmarks.record import Record, of_this_build
from benchmarks.zoo.model import Size

MODELS = ("vgg16", "resnet50", "yolov3", "bert-base", "bert-large", "gpt2")
# Figure 6's. The paper's text names bert-base:S480B8 and gpt2:S1024B1; the others are our choice.
_BERT = ("S128B1", "S128B8", "S480B1", "S480B8")
SIZES = {
    "vgg16": ("B1", "B8"),
    "resnet50": ("B1", "B8"),
    "yolov3": ("B1", "B8"),
    "bert-base": _BERT,
    "bert-large": _BERT,
    "gpt2": ("S1024B1",),
}
_ROOT = Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A part of the paper, and the benchmark that repeats it.

    Attributes:
        title: what the paper measures there.
        section: number of the section or figure.
        command: name of the benchmark.
        of_models: whether each model has a run, a table and a picture of its own.
    """

    title: str
    section: str
    command: str
    of_models: bool = True


EXPERIMENTS = {
    "latency": Experiment("Latency beside other runtimes", "4.1, figure 6", "peers", of_models=False),
    "scaling": Experiment(
        "Time over the number of workers, and Karp and Flatt's parallel fraction; beyond this machine's cores simulated",
        "4.2, figures 7 and 8",
        "scaling",
    ),
    "unequal": Experiment("Throughput where another process takes half of one core", "4.3", "unequal"),
    "hybrid": Experiment("Simulated: throughput on performance and efficiency cores", "4.3, figure 9", "hybrid"),
    "tiles": Experiment("Tiles a layer", "4.4, figure 10 (a)", "tiles"),
    "layers": Experiment("Number of layers, image size and channels", "4.4, figure 10 (b) to (d)", "layers", of_models=False),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """An experiment on a model, or without one, or on several that it compares."""

    experiment: str
    model: str | None
    cases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.experiment if self.model is None else f"{self.experiment}-{self.model}"

    @property
    def key(self) -> str:
        """All that says what is measured."""
        return " ".join((self.name, *self.cases))

    def record(self, folder: Path) -> Path:
        """Where its figures go; latencies have a folder of their own, from which they go on."""
        return folder / (f"{self.name}/peers.json" if self.experiment == "latency" else f"{self.name}.json")

    def picture(self, folder: Path) -> Path:
        """Where its picture goes."""
        return folder / (f"{self.name}/speedups.png" if self.experiment == "latency" else f"{self.name}.png")

    @property
    def title(self) -> str:
        experiment = EXPERIMENTS[self.experiment]
        return f"{experiment.title} (section {experiment.section})" + (f": {self.model}" if self.model else "")


@benchmark
def paper(
    models: Models = MODELS,
    experiments: Names = tuple(EXPERIMENTS),
    size: Sizes = Size(),  # noqa: B008 - immutable
    latency: Names | None = None,
    peers: Names = tuple(SIDES),
    rounds: int | None = None,
    output: Folder = None,
) -> Run:
    """ASPEN's section 4 on this machine: latency, scaling, unequal cores, tiles a layer, and layers, size and channels.

    More cores than there are, and cores of two speeds, are simulated.

    Each experiment is one of the other benchmarks, in a process of its own. With three rounds and without TVM the latencies
    take about an hour on two cores, and the rest three quarters of one. TVM takes hours more.

    Args:
        models: names in the zoo; the paper's by default.
        experiments: which of them.
        size: of the inputs, where an experiment takes it and names no other.
        latency: models and sizes whose latencies are taken, such as resnet50:B8 and bert-base:S480B8 (480 tokens, a batch of 8).
            By default those of figure 6, and the usual size of a model that is not in it.
        peers: whose latencies are taken beside ours.
        rounds: how often each time is taken; as often as each benchmark takes it by default.
        output: folder for paper.md, which shows all tables and pictures, and for the figures of each; a new one by default. Where
            it has a record of the same settings, what is in it is not measured again.
    """
    assert output is not None  # the skeleton names one
    for name in experiments:
        if name not in EXPERIMENTS:
            raise InputError(f"no experiment is called {name!r}; take {', '.join(EXPERIMENTS)}")
    for name in models:
        zoo.describe(name, size)  # what cannot be built is refused before anything is measured
    cases = tuple(latency if latency is not None else figure_6(models))
    for name in cases:
        read_case(name, size)
    settings = {"size": dataclasses.asdict(size), "peers": peers, "rounds": rounds}
    found = Record(output / "steps.json", "paper", {**settings, **of_this_build()})
    status = 0
    for step in tqdm(list(_steps(experiments, models, cases)), unit="experiment", dynamic_ncols=True):
        results = found.results.get(step.key)
        if results is None:  # what failed is tried again
            results, ended = _measure(step, output, size, peers, rounds)
            if ended == 0:
                found.add(step.key, results)
            else:
                command = EXPERIMENTS[step.experiment].command
                print(f"FAILED: {step.name}: `python -m benchmarks {command}` ended with status {ended}", file=sys.stderr)
                status = 1
        yield {step.title: results}
        if (picture := step.picture(output)).exists():
            yield picture
    yield status


def figure_6(models: tuple[str, ...]) -> Iterator[str]:
    """Names of models with figure 6's sizes, where it has the model."""
    for model in models:
        yield from (f"{model}:{size}" for size in SIZES[model]) if model in SIZES else (model,)


def _steps(experiments: tuple[str, ...], models: tuple[str, ...], cases: tuple[str, ...]) -> Iterator[Step]:
    for experiment in experiments:
        if experiment == "latency":
            yield Step(experiment, None, cases)
        elif EXPERIMENTS[experiment].of_models:
            yield from (Step(experiment, model) for model in models)
        else:
            yield Step(experiment, None)


def _measure(step: Step, folder: Path, size: Size, peers: tuple[str, ...], rounds: int | None) -> tuple[Any, int]:
    """Run the benchmark, and give its results and its exit status."""
    record, picture = step.record(folder).resolve(), step.picture(folder).resolve()
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks", EXPERIMENTS[step.experiment].command]
    models = step.cases if step.model is None else (step.model,)
    if models:
        command += ["--models", *models]
        if step.experiment != "unequal":
            given = {name: value for name, value in dataclasses.asdict(size).items() if value is not None}
            command += [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    if rounds is not None:
        command += ["--rounds", str(rounds)]
    if step.experiment == "latency":
        command += ["--peers", *peers, "--output", str(record.parent)]
    else:
        command += ["--json", str(record), "--picture", str(picture)]
    status = subprocess.run(command, cwd=_ROOT, check=False).returncode
    return read(record)["results"] if record.exists() else [], status
