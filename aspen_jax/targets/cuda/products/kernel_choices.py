"""Which candidate multiplies a product: the one that was timed, that of the nearest product that was, or the default.

What was timed is kept on disk, for one kind of GPU, one architecture and one state of the kernels' source. So it serves other
models and later processes (Bolt, section 3.2.2), as cost/measured.py does on CPUs.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import aspen_jax
from aspen_jax import forks
from aspen_jax.cache.measurement_file import MeasurementFile
from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.headers import header_texts
from aspen_jax.targets.cuda.device import architecture, card
from aspen_jax.targets.cuda.products.candidates import Architecture, Candidate, legal
from aspen_jax.targets.cuda.products.problem import Problem

_VERSION = 3

# Beyond so many doublings (Problem.distance) another product says nothing: 16 times the rows, or twice each of four extents.
FARTHEST = 4.0


@dataclasses.dataclass(frozen=True)
class Timed:
    """What is known of a product.

    Attributes:
        candidate: the fastest of ours; None: the default, which no candidate has beaten.
        nanoseconds: of the op alone, so multiplied.
        slices: into how many its depth is best cut; None: that was not timed, or it is a slice already.
        by_cublas: whether cublasLt was faster than all of that, uncut.
        cudnn: digests of convolutions, with what follows them, that cuDNN was timed for, and whether it was the fastest.
    """

    candidate: Candidate | None
    nanoseconds: float
    slices: int | None = None
    by_cublas: bool = False
    cudnn: tuple[tuple[str, bool], ...] = ()


class Choice(NamedTuple):
    """What multiplies an op's blocks.

    Attributes:
        candidate: None: what blocks.py says.
        reason: why.
        by_cublas: whether cublasLt is faster, where it takes the op (cublas.py).
    """

    candidate: Candidate | None
    reason: str
    by_cublas: bool = False


class KernelChoices:
    """What was timed on one kind of GPU; immutable."""

    def __init__(self, name: str = "compute_80", entries: Mapping[Problem, Timed] = MappingProxyType({})):
        """Choices for code of the architecture `name`."""
        self.name = name
        self.architecture = Architecture.of(name)
        self.entries = MappingProxyType(dict(entries))
        self._chosen: dict[Problem, Choice] = {}  # the cost model asks for the same ones again and again

    def updated(self, entries: Mapping[Problem, Timed]) -> KernelChoices:
        """Add entries to these; where a problem is in both, the added entry counts."""
        return KernelChoices(self.name, {**self.entries, **entries})

    def of(self, problem: Problem) -> Choice:
        """The choice for a problem: its own, or that of the nearest one of its sort if that is legal for it too."""
        if problem not in self._chosen:
            self._chosen[problem] = self._choose(problem)
        return self._chosen[problem]

    def _choose(self, problem: Problem) -> Choice:
        own = self.entries.get(problem)
        if own is not None:
            return Choice(own.candidate, "timed", own.by_cublas)
        near = sorted(
            ((problem.distance(other), str(other), timed) for other, timed in self._of_sort(problem)),
            key=lambda item: item[:2],
        )
        if near and near[0][0] <= FARTHEST:
            distance, name, timed = near[0]
            if timed.candidate is None or timed.candidate in legal(problem, self.architecture):
                return Choice(timed.candidate, f"nearest to {name}, {distance:.1f} doublings away", timed.by_cublas)
        return Choice(None, "default; nothing like it was timed")

    def slices_of(self, problem: Problem) -> int | None:
        """How many slices a problem's depth is best cut into; None where just that was not timed."""
        own = self.entries.get(problem)
        return None if own is None else own.slices

    def _of_sort(self, problem: Problem) -> Iterator[tuple[Problem, Timed]]:
        return ((other, timed) for other, timed in self.entries.items() if other.sort == problem.sort)


_considered: contextvars.ContextVar[KernelChoices | None] = contextvars.ContextVar("considered", default=None)


@contextlib.contextmanager
def considering(choices: KernelChoices) -> Iterator[None]:
    """Let these choices count in this context, whatever was timed."""
    token = _considered.set(choices)
    try:
        yield
    finally:
        _considered.reset(token)


def current(op: Op | None = None) -> KernelChoices:
    """What decides about an op: what did when it was planned (plan.py); else what is considered here, or was timed."""
    if op is not None and op.plan is not None:
        return op.plan.choices
    return _considered.get() or known()


def choice_for(op: Op) -> Choice | None:
    """What multiplies the blocks of an op, and why; None for ops without such blocks."""
    problem = Problem.of(op)
    return None if problem is None else current(op).of(problem)


def candidate_for(op: Op) -> Candidate | None:
    """The candidate that multiplies an op's blocks; None: the default does, or it has no blocks."""
    choice = _timed_choice(op)
    return None if choice is None else choice.candidate


def prefers_cublas(op: Op) -> bool:
    """Whether cublasLt was the fastest for an op's product, or one like it; whether it takes the op, cublas.py says."""
    choice = _timed_choice(op)
    return choice is not None and choice.by_cublas


def cudnn_choices(op: Op) -> tuple[str, ...]:
    """Digests of those convolutions of an op's problem for which cuDNN was the fastest. They serve no others, even like them."""
    choices = current(op)
    problem = Problem.of(op) if choices.entries else None
    own = None if problem is None else choices.entries.get(problem)
    return () if own is None else tuple(digest for digest, is_fastest in own.cudnn if is_fastest)


def _timed_choice(op: Op) -> Choice | None:
    """The choice for an op where anything was timed."""
    choices = current(op)
    problem = Problem.of(op) if choices.entries else None
    return None if problem is None else choices.of(problem)


def slices_for(op: Op) -> int | None:
    """How many slices an op's depth is best cut into; None where that was not timed."""
    choices = current(op)
    problem = Problem.of(op) if choices.entries else None
    return None if problem is None else choices.slices_of(problem)


def for_warpgroups(op: Op) -> bool:
    """Whether warpgroups multiply an op's blocks, if its operands and the GPU allow it."""
    candidate = candidate_for(op)
    return candidate is None or candidate.by_warpgroups


def has_warpgroups(op: Op) -> bool:
    """Whether code of an op is compiled for a GPU that has them."""
    return current(op).architecture.warpgroups


_known: dict[tuple[str | None, str], KernelChoices] = {}
_lock = forks.Lock()


def known() -> KernelChoices:
    """What was timed on this process's GPU for the architecture that code is compiled for; read from disk once."""
    identity = _card(), architecture()
    with _lock:
        if identity not in _known:
            _known[identity] = _read(*identity)
        return _known[identity]


def remember(entries: Mapping[Problem, Timed]) -> Path | None:
    """Use the entries from now on, in this process and in later ones.

    Returns:
        the file, or None where there is no GPU or it could not be written, of which a warning tells.
    """
    kind, name = identity = _card(), architecture()
    with _lock:
        known = _known.get(identity, KernelChoices(name))
    kept, path = dict(entries), None
    if kind is not None:
        found, path = _file(kind, name).update(_by_key(entries), _timed, _to_json, _by_key(known.entries))
        kept = dict(found.values())
    with _lock:
        _known[identity] = _known.get(identity, known).updated(kept)
    return path


def forget() -> None:
    """Read from disk again when asked next."""
    with _lock:
        _known.clear()


@functools.cache
def _card() -> str | None:
    return card()


def _file(kind: str, name: str) -> MeasurementFile:
    machine = {"version": _VERSION, "aspen_jax": aspen_jax.__version__, "kernels": _source(), "card": kind, "architecture": name}
    return MeasurementFile("cuda/candidates", machine)


@functools.cache
def _source() -> str:
    return hashlib.sha256("\0".join(header_texts().values()).encode()).hexdigest()


def _read(kind: str | None, name: str) -> KernelChoices:
    if kind is None:
        return KernelChoices(name)
    parsed = _file(kind, name).read(_timed).values()
    return KernelChoices(name, dict(parsed))


def _by_key(entries: Mapping[Problem, Timed]) -> dict[str, tuple[Problem, Timed]]:
    return {_key(problem): (problem, timed) for problem, timed in entries.items()}


def _key(problem: Problem) -> str:
    return hashlib.sha256(json.dumps(dataclasses.astuple(problem)).encode()).hexdigest()[:32]


def _to_json(item: tuple[Problem, Timed]) -> Any:
    problem, timed = item
    candidate = None if timed.candidate is None else dataclasses.astuple(timed.candidate)
    found = (timed.slices, timed.by_cublas, list(map(list, timed.cudnn)))
    return [dataclasses.astuple(problem), candidate, max(round(timed.nanoseconds), 1), *found]


def _timed(entry: Any) -> tuple[Problem, Timed]:
    of, by, nanoseconds, slices, by_cublas, digests = entry
    problem, candidate = Problem(*of), None if by is None else Candidate(*by)
    numbers = [*dataclasses.astuple(problem)[5:9], 1 if slices is None else slices]
    numbers += [] if candidate is None else dataclasses.astuple(candidate)[1:]
    are_counts = all(type(number) is int and number > 0 for number in numbers)
    are_digests = all(type(digest) is str and type(is_fastest) is bool for digest, is_fastest in digests)
    if not are_counts or not 0 < float(nanoseconds) < float("inf") or type(by_cublas) is not bool or not are_digests:
        raise ValueError(f"an entry is {entry!r}")
    return problem, Timed(candidate, float(nanoseconds), slices, by_cublas, tuple(map(tuple, digests)))
