"""What a device is to the rest of the house."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from aspen_jax.cost.machine import Machine

if TYPE_CHECKING:
    import jax
    from jax.extend.core import ClosedJaxpr

    from aspen_jax.frontend.partition import Tileable
    from aspen_jax.ir.program import Op, Program
    from aspen_jax.lowering.compile import Compiled, Part
    from aspen_jax.passes import Stage
    from aspen_jax.primitive.choices import Choices


class Notes(NamedTuple):
    """What a target says of an op.

    Attributes:
        blocks: how its blocks are multiplied, and why so.
        advice: which shapes would be faster.
        apart: why it is no part of a stack with the op before.
    """

    blocks: str = ""
    advice: str = ""
    apart: str = ""


class Tuned:
    """What tuning found; prints as a sentence."""


@dataclasses.dataclass(frozen=True)
class Target(abc.ABC):
    """A device, as functions are compiled for it.

    Attributes:
        name: what `aspen(device=)` calls it.
        platform: what JAX calls it.
        chooses: whether parts that XLA is faster at are left to XLA.
        runs_graphs: whether `TileGraph.run` does there what a call does, as streams need it.
        arranges_weights: whether kernels read weights in an order of their own, so that it pays to store them so.
        machine: what tiles cost.
        num_workers: how many tiles run at once.
    """

    name: ClassVar[str]
    platform: ClassVar[str]
    chooses: ClassVar[bool]
    runs_graphs: ClassVar[bool]
    arranges_weights: ClassVar[bool]

    machine: Machine
    num_workers: int

    @classmethod
    @abc.abstractmethod
    def stages(cls) -> tuple[Stage, ...]:
        """The passes that programs for it take, in their order."""

    @classmethod
    @abc.abstractmethod
    def here(cls) -> Self:
        """The device of this process, for what is explained and compiled ahead of a call. Nothing is timed."""

    @classmethod
    @abc.abstractmethod
    def of_call(cls, jaxpr: ClosedJaxpr, choices: Choices, *, may_time: bool) -> tuple[Self, Choices] | None:
        """The device for a call, and the choices with what was decided; None where XLA runs the function.

        Args:
            jaxpr: the function.
            choices: what the decorator was told.
            may_time: whether times may decide: nobody else compiles the same program.
        """

    @classmethod
    @abc.abstractmethod
    def refuse_elsewhere(cls) -> None:
        """Says that a function decorated for this device is called on another platform, if that is a fault.

        Raises:
            AspenError: it is.
        """

    @classmethod
    @abc.abstractmethod
    def tune(cls, jaxprs: Sequence[ClosedJaxpr], choices: Choices, name: str) -> Tuned:
        """Search, by timing, for what is fastest here, and keep it on disk.

        Args:
            jaxprs: functions that are to be tiled.
            choices: of their calls.
            name: of the decorated function, for messages.

        Raises:
            UnsupportedError: nothing of the functions is tiled.
        """

    @classmethod
    @abc.abstractmethod
    def who_runs(cls, jaxpr: ClosedJaxpr, choices: Choices) -> str | None:
        """Who runs a function on this process's device and why, as a sentence; None where there is nothing to say."""

    @abc.abstractmethod
    def why_no_kernel(self, op: Op) -> str | None:
        """Why XLA must compute an op; None where there is a kernel for it."""

    @abc.abstractmethod
    def notes(self, program: Program) -> Mapping[Op, Notes]:
        """What `explain` says of ops of a program after all passes; nothing of an op without an entry."""

    @abc.abstractmethod
    def why_left_to_xla(self, step: Tileable, part: Part, *, is_whole: bool) -> str | None:
        """Why XLA runs a part, because it is as fast; None where tiles do.

        Args:
            step: its equations.
            part: its tiles.
            is_whole: whether it is all that the function does.
        """

    @abc.abstractmethod
    def settled(self) -> Self:
        """The device where all that had to be timed is known."""

    @abc.abstractmethod
    def is_ready(self, compiled: Compiled) -> bool:
        """Whether all parts of a function have code here. What they need is made now.

        Raises:
            UnsupportedError: `strict`, and one has not.
            AspenError: code cannot be made here.
        """

    @abc.abstractmethod
    def call(self, part: Part, results: Sequence[jax.ShapeDtypeStruct], *operands: Any) -> list[Any]:
        """The part as a custom call.

        Args:
            part: what runs.
            results: shapes and dtypes of its outputs.
            *operands: its inputs, then its constants.
        """
