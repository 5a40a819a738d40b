"""A device that exists nowhere: jax.lax computes its ops, one after the other. It shows all that a target has to say.

    pytest -p tests.extend.fake_target tests/primitive/test_transformations.py

runs tests on it: every function that is decorated without `device=` is for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr

from aspen_jax.extend import (
    PASSES,
    Choices,
    Compiled,
    Machine,
    Notes,
    Op,
    Operand,
    Part,
    Pass,
    Program,
    Stage,
    Target,
    Tileable,
    Tuned,
    Value,
    register_target,
    results_of,
)
from aspen_jax.targets import registry


def exact(program: Program) -> Program:
    """Nothing is rounded on the way."""
    return program.replace(ops=tuple(op.replace(exact=True) for op in program.ops))


def named(program: Program) -> Program:
    """Each op says where it runs."""
    return program.replace(ops=tuple(op.replace(name=f"{op.name} on a fake") for op in program.ops))


@dataclasses.dataclass(frozen=True)
class FakeTarget(Target):
    """A device whose kernels are the references of ops."""

    name: ClassVar[str] = "fake"
    platform: ClassVar[str] = "cpu"
    chooses: ClassVar[bool] = True
    runs_graphs: ClassVar[bool] = False
    arranges_weights: ClassVar[bool] = False

    @classmethod
    def stages(cls) -> tuple[Stage, ...]:
        return (
            (
                "1. Join ops",
                (PASSES["simplify"], PASSES["fuse"], Pass("exact", exact, "Blocks are made.", after=("fuse",))),
            ),
            ("2. Fit outputs to the caller's memory", (PASSES["outputs"], Pass("named", named, "No op comes behind."))),
        )

    @classmethod
    def here(cls) -> Self:
        return cls(Machine(), num_workers=1)

    @classmethod
    def of_call(cls, jaxpr: ClosedJaxpr, choices: Choices, *, may_time: bool) -> tuple[Self, Choices] | None:
        return cls.here(), choices

    @classmethod
    def refuse_elsewhere(cls) -> None:
        """XLA runs it there."""

    @classmethod
    def tune(cls, jaxprs: Sequence[ClosedJaxpr], choices: Choices, name: str) -> Tuned:
        return Tuned()

    @classmethod
    def who_runs(cls, jaxpr: ClosedJaxpr, choices: Choices) -> str | None:
        return "jax.lax runs it"

    def why_no_kernel(self, op: Op) -> str | None:
        return "it sorts nothing here" if op.family.name == "sort" else None

    def notes(self, program: Program) -> Mapping[Op, Notes]:
        return {op: Notes(advice="buy a device") for op in program.ops if op.family.name != "block"}

    def why_left_to_xla(self, step: Tileable, part: Part, *, is_whole: bool) -> str | None:
        return "a call takes longer" if len(part.program.ops) == 1 and not is_whole else None

    def settled(self) -> Self:
        return self

    def is_ready(self, compiled: Compiled) -> bool:
        return True

    def call(self, part: Part, results: Sequence[jax.ShapeDtypeStruct], *operands: Any) -> list[Any]:
        called.append(part)
        values: dict[Value, Any] = dict(part.program.constants)
        values.update(zip(part.program.inputs, operands, strict=False))  # constants follow inputs
        for op in part.program.ops:
            inputs = [_read(operand, values) for operand in op.inputs]
            values.update(zip(op.outputs, results_of(op, *inputs), strict=True))
        return [_read(operand, values) for operand in part.program.outputs]


def _read(operand: Operand, values: dict[Value, Any]) -> Any:
    """What an operand shows of a value."""
    numbers = operand.view.gather(np.arange(operand.value.size).reshape(operand.value.shape))
    return jnp.asarray(values[operand.value]).reshape(-1)[numbers]


# The parts that were called.
called: list[Part] = []


def pytest_configure(config: pytest.Config) -> None:
    """A plugin of pytest: functions that are decorated without a device are for this one."""
    register_target(FakeTarget)
    on_platform = registry.on_platform
    for name, found in {
        "on_platform": lambda device, platform: on_platform("fake" if device == "auto" else device, platform),
        "of_function": lambda device: registry.named("fake" if device == "auto" else device),
        "here": lambda device: registry.named("fake" if device == "auto" else device),
    }.items():
        mock.patch.object(registry, name, found).start()
