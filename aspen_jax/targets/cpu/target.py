"""CPUs: parts run as one custom call of the engine, and XLA keeps those that it is as fast at."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
from jax.extend.core import ClosedJaxpr

from aspen_jax import runtime
from aspen_jax.cost.loops import why_not_in_one_tile
from aspen_jax.cost.machine import Machine
from aspen_jax.errors import UnsupportedError
from aspen_jax.frontend.partition import Tileable
from aspen_jax.ir.program import Op, Program, Value
from aspen_jax.lowering.compile import Compiled, Options, Part, compile_jaxpr, run_fallback
from aspen_jax.ops.family import is_registered, version_of
from aspen_jax.ops.loop import LOOP
from aspen_jax.passes import STAGES, Stage, stacks
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cpu import choice, trial, tuning
from aspen_jax.targets.cpu.choice import Evidence
from aspen_jax.targets.target import Notes, Target


@dataclasses.dataclass(frozen=True)
class CpuTarget(Target):
    """The CPU of this process.

    Attributes:
        trials: what decides where predicted times are close.
        budget: what is left for timing such parts.
    """

    name: ClassVar[str] = "cpu"
    platform: ClassVar[str] = "cpu"
    chooses: ClassVar[bool] = True
    runs_graphs: ClassVar[bool] = True
    arranges_weights: ClassVar[bool] = True

    trials: trial.Trials = trial.Trials.OFF
    budget: trial.Budget | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def here(cls, num_workers: int | None = None) -> Self:
        """The CPU with all that was measured for so many workers, as many as there are by default."""
        count = runtime.num_workers() if num_workers is None else num_workers
        trials = trial.by_environment()
        return cls(Machine.here(count), count, trial.Trials.KEPT if trials is trial.Trials.ON else trials)

    @classmethod
    def stages(cls) -> tuple[Stage, ...]:
        return STAGES

    @classmethod
    def of_call(cls, jaxpr: ClosedJaxpr, choices: Choices, *, may_time: bool) -> tuple[Self, Choices] | None:
        own = cls.here()
        if not may_time:
            return dataclasses.replace(own, trials=trial.Trials.OFF), choices
        # What a body does was decided with what it is the body of.
        return own if choices.is_body else own.with_budget(trial.BUDGET_S), choices

    def with_budget(self, seconds: float) -> Self:
        """The CPU with some time for trials, if the environment allows them."""
        if trial.by_environment() is not trial.Trials.ON:
            return self
        return dataclasses.replace(self, trials=trial.Trials.ON, budget=trial.Budget(seconds))

    @classmethod
    def refuse_elsewhere(cls) -> None:
        """Refuse nothing: on other platforms XLA runs the function."""

    @classmethod
    def tune(cls, jaxprs: Sequence[ClosedJaxpr], choices: Choices, name: str) -> tuning.Tuning:
        options = Options(choices._replace(strict=False), chooses=not choices.strict)
        _time_close_parts(jaxprs, options)
        compiled = [compile_jaxpr(jaxpr, options) for jaxpr in jaxprs]
        parts = [part for item in compiled for function in (item, *item.bodies) for part in function.parts]
        if not parts:
            raise UnsupportedError(f"{name} has no tiles to tune; explain() with the same arguments says why")
        found = tuning.tune([part.traced for part in parts], parts[0].options)
        _time_close_parts(jaxprs, options)  # the tiles are others now
        return found

    @classmethod
    def who_runs(cls, jaxpr: ClosedJaxpr, choices: Choices) -> str | None:
        """The parts of an explanation say it."""

    def why_no_kernel(self, op: Op) -> str | None:
        return why_not_in_one_tile(op, self.machine, self.num_workers) if op.family is LOOP else None

    def notes(self, program: Program) -> Mapping[Op, Notes]:
        return {op: Notes(apart=reason) for op, reason in stacks.reasons(program, self.machine).items()}

    def why_left_to_xla(self, step: Tileable, part: Part, *, is_whole: bool) -> str | None:
        choices = part.options.choices
        evidence = Evidence.of(
            step,
            part.program,
            part.graph,
            self.num_workers,
            is_whole=is_whole,
            is_repeated=choices.is_repeated,
            is_body=choices.is_body,
        )
        case = _case(step, part, evidence)
        times = trial.settled(case, self.num_workers, self.trials, self.budget)
        if times is not None:
            return times.why_left_to_xla()
        # Who has registered a kernel wants it to run.
        return None if case.is_unknown else evidence.why_left_to_xla(choice.rates())

    def settled(self) -> Self:
        return dataclasses.replace(self, trials=trial.Trials.KEPT) if self.trials is trial.Trials.ON else self

    def is_ready(self, compiled: Compiled) -> bool:
        return True

    def call(self, part: Part, results: Sequence[jax.ShapeDtypeStruct], *operands: Any) -> list[Any]:
        nothing = [runtime.NOTHING] if len(results) > 1 else []
        shared = part.graph.shared_memory
        return runtime.engine_call(part.graph_bytes, [*results, *nothing], *operands, shared_memory=shared)[: len(results)]


def _time_close_parts(jaxprs: Sequence[ClosedJaxpr], options: Options) -> None:
    """Time parts at which tiles and XLA were predicted to be about as fast."""
    if trial.by_environment() is not trial.Trials.OFF:
        target = dataclasses.replace(CpuTarget.here(), trials=trial.Trials.ON, budget=trial.Budget(trial.TUNING_S))
        for jaxpr in jaxprs:
            compile_jaxpr(jaxpr, dataclasses.replace(options, target=target))


def _case(step: Tileable, part: Part, evidence: Evidence) -> trial.Case:
    """Both sides of a part, to be timed."""
    made = {value for item in step.items for value in item.outputs}
    read = (value for item in step.items for value in item.inputs if isinstance(value, Value) and value not in made)
    inputs = tuple(dict.fromkeys((*part.inputs, *read)))

    def by_xla(*operands: Any) -> list[Any]:
        environment = dict(zip(inputs, operands, strict=True))
        for item in step.left_to_xla(""):
            run_fallback(item, environment, masks=())
        return [environment[value] for value in part.outputs]

    families = {op.family for op in part.traced.ops}
    return trial.Case(
        items=step.items,
        graph_bytes=part.graph_bytes.tobytes(),
        inputs=inputs,
        xla=by_xla,
        tiles=lambda *operands: part.call(*operands[: len(part.inputs)]),
        predicted=evidence.nanoseconds(choice.rates()),
        is_body=part.options.choices.is_body,
        users_kernels=tuple(sorted((family.kernel, version_of(family)) for family in families if is_registered(family))),
    )
