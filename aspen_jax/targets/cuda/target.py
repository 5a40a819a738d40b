"""GPUs of NVIDIA: a part is one custom call of CUDA, run by CUDA graphs or on streams."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from aspen_jax import runtime
from aspen_jax.errors import AspenError, UnsupportedError
from aspen_jax.frontend.partition import Tileable
from aspen_jax.ir.program import Op, Program
from aspen_jax.lowering.compile import Compiled, Part
from aspen_jax.passes import Stage
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cuda.choice import chosen, explained
from aspen_jax.targets.cuda.code.image import Code, compile_ops
from aspen_jax.targets.cuda.code.kernel import UnsupportedOp, why_no_code
from aspen_jax.targets.cuda.device import architecture
from aspen_jax.targets.cuda.executor import EXECUTORS, Executor, chosen_executor
from aspen_jax.targets.cuda.passes import stacks
from aspen_jax.targets.cuda.passes.stages import STAGES
from aspen_jax.targets.cuda.price import NUM_BLOCKS, Gpu
from aspen_jax.targets.cuda.products.alignment import advice
from aspen_jax.targets.cuda.products.kernel_choices import known
from aspen_jax.targets.target import Notes, Target, Tuned


@dataclasses.dataclass(frozen=True)
class CudaTarget(Target):
    """The GPU of this process.

    Attributes:
        executor: what its graphs are given to.
    """

    name: ClassVar[str] = "cuda"
    platform: ClassVar[str] = "cuda"
    chooses: ClassVar[bool] = False  # the rates are those of CPUs
    runs_graphs: ClassVar[bool] = False
    arranges_weights: ClassVar[bool] = False

    executor: Executor = Executor.GRAPH

    @classmethod
    def here(cls, executor: Executor = Executor.GRAPH) -> Self:
        """The GPU of this process, with all that was timed on it."""
        return cls(dataclasses.replace(Gpu.here(), kernels=known()), NUM_BLOCKS, executor)

    @classmethod
    def stages(cls) -> tuple[Stage, ...]:
        return STAGES

    @classmethod
    def of_call(cls, jaxpr: ClosedJaxpr, choices: Choices, *, may_time: bool) -> tuple[Self, Choices] | None:
        name = chosen_executor(choices, lambda: chosen(jaxpr, choices, cls.here).executor)
        executor = EXECUTORS[name]
        return None if executor is None else (cls.here(executor), choices._replace(executor=name))

    @classmethod
    def refuse_elsewhere(cls) -> None:
        raise AspenError(
            "the function was decorated with device='cuda', but this call is for the CPU; put its arguments on a GPU, or "
            "decorate it with device='auto'"
        )

    @classmethod
    def tune(cls, jaxprs: Sequence[ClosedJaxpr], choices: Choices, name: str) -> Tuned:
        from aspen_jax.targets.cuda.tuning import tuned

        return tuned(jaxprs, choices._replace(strict=False), name)

    @classmethod
    def who_runs(cls, jaxpr: ClosedJaxpr, choices: Choices) -> str | None:
        return explained(jaxpr, choices, cls.here)

    def why_no_kernel(self, op: Op) -> str | None:
        return why_no_code(op)

    def notes(self, program: Program) -> Mapping[Op, Notes]:
        gpu = self.machine
        assert isinstance(gpu, Gpu)
        apart = stacks.reasons(program, gpu)
        return {op: Notes(str(op.plan or ""), advice(op) or "", apart.get(op, "")) for op in program.ops}

    def why_left_to_xla(self, step: Tileable, part: Part, *, is_whole: bool) -> str | None:
        """A function runs as a whole by one side, which `f.tune` finds."""

    def settled(self) -> Self:
        return self

    def is_ready(self, compiled: Compiled) -> bool:
        try:
            for part in compiled.parts:
                _code(part, architecture())
        except UnsupportedOp as error:
            if compiled.options.choices.strict:
                raise UnsupportedError(f"strict=True, but there is {error}; use strict=False or device='cpu'") from None
            return False
        return True

    def call(self, part: Part, results: Sequence[jax.ShapeDtypeStruct], *operands: Any) -> list[Any]:
        """The part as a custom call of CUDA, whose last result is a workspace for runs that XLA captures (cuda/ffi.h)."""
        runtime.ensure_registered()
        code = _code(part, architecture())
        workspace = [jax.ShapeDtypeStruct((part.graph.workspace_bytes,), np.uint8)] if part.graph.workspace_bytes else []
        nothing = [runtime.NOTHING] if len(results) > 1 and not workspace else []
        results_and_rest = [*results, *workspace, *nothing]
        call = jax.ffi.ffi_call(runtime.CUSTOM_CALL_TARGET, results_and_rest, input_output_aliases=part.graph.shared_memory)
        outs = call(*operands, graph=part.graph_bytes, **code._asdict(), executor=np.int32(self.executor))
        return list(outs)[: len(results)]


_codes: weakref.WeakKeyDictionary[Part, dict[str, Code]] = weakref.WeakKeyDictionary()


def _code(part: Part, architecture: str) -> Code:
    codes = _codes.setdefault(part, {})
    if architecture not in codes:
        codes[architecture] = compile_ops(part.program.ops, architecture, part.graph)
    return codes[architecture]
