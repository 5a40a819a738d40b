"""ASPEN's section 4 at the scale of this machine: the other benchmarks on the paper's models, into one folder."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from aspen_jax.cost.timing import check_rounds
from aspen_jax.errors import InputError
from benchmarks import zoo
from benchmarks.options import Folder, Models, Names, Sizes
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
_PEERS_FILES = {"json": "peers.json", "md": "peers.md", "png": "speedups.png"}


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

    def files(self, folder: Path) -> dict[str, Path]:
        """Where its figures, table and picture go, by their endings."""
        if self.experiment == "latency":  # a folder of its own, from which it goes on
            return {ending: folder / self.name / file for ending, file in _PEERS_FILES.items()}
        return {ending: folder / f"{self.name}.{ending}" for ending in ("json", "md", "png")}


def paper(
    models: Models = MODELS,
    experiments: Names = tuple(EXPERIMENTS),
    size: Sizes = Size(),  # noqa: B008 - immutable
    latency: Names | None = None,
    peers: Names = tuple(SIDES),
    rounds: int | None = None,
    output: Folder = None,
) -> int:
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
    if rounds is not None:
        check_rounds(rounds)
    for name in experiments:
        if name not in EXPERIMENTS:
            raise InputError(f"no experiment is called {name!r}; take {', '.join(EXPERIMENTS)}")
    for name in models:
        zoo.describe(name, size)  # what cannot be built is refused before anything is measured
    cases = tuple(latency if latency is not None else figure_6(models))
    for name in cases:
        read_case(name, size)
    folder = output or Path(time.strftime("paper-%Y%m%d-%H%M%S"))
    record = _Steps(folder, {"size": dataclasses.asdict(size), "peers": peers, "rounds": rounds})
    steps = list(_steps(experiments, models, cases))
    try:
        with tqdm([step for step in steps if not record.has(step)], unit="experiment", dynamic_ncols=True) as bar:
            for step in bar:
                bar.set_description(step.name)
                record.add(step, _measure(step, folder, size, peers, rounds))
    except KeyboardInterrupt:
        print(f"\ninterrupted; the same options and --output {folder} go on from here", file=sys.stderr)
        return 130
    page = folder / "paper.md"
    page.write_text(record.page(steps))
    print(page.read_text())
    print(f"all of it is in {folder}")
    return 0 if all(map(record.has, steps)) else 1


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


def _measure(step: Step, folder: Path, size: Size, peers: tuple[str, ...], rounds: int | None) -> int:
    """Run the benchmark, keep what it prints, and give its exit status."""
    files = step.files(folder)
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
        return subprocess.run(
            [*command, "--peers", *peers, "--output", files["json"].parent.resolve()], cwd=_ROOT, stdout=sys.stderr, check=False
        ).returncode
    command += ["--json", str(files["json"].resolve()), "--picture", str(files["png"].resolve())]
    child = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False)
    files["md"].write_text(f"```text\n{child.stdout.strip()}\n```\n")
    return child.returncode


class _Steps:
    """paper.json: the exit status of each experiment by its key, with which settings, code and machine."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder
        self._record = Record(folder / "paper.json", "paper", {**settings, **of_this_build()})

    def has(self, step: Step) -> bool:
        """Whether it has been measured; what failed is tried again."""
        return self._record.results.get(step.key) == 0

    def add(self, step: Step, status: int) -> None:
        """Keep that it ended with this status, on disk."""
        self._record.add(step.key, status)

    def page(self, steps: list[Step]) -> str:
        """All tables and pictures, one below the other."""
        lines = ["# ASPEN, section 4, on this machine", "", f"{self._record.settings['machine']['cpu']}."]
        for step in steps:
            experiment, files = EXPERIMENTS[step.experiment], step.files(self._folder)
            title = experiment.title if step.model is None else f"{experiment.title}: {step.model}"
            lines += ["", f"## {title}", "", f"Section {experiment.section}.", ""]
            if not self.has(step):
                status = self._record.results.get(step.key)
                lines += [f"Failed: `python -m benchmarks {experiment.command}` ended with status {status}.", ""]
            if files["md"].exists():
                lines += [files["md"].read_text().strip(), ""]
            if files["png"].exists():
                lines += [f"![{title}]({files['png'].relative_to(self._folder)})"]
        return "\n".join(lines) + "\n"
