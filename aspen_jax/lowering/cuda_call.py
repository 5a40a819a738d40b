"""A graph of tiles as a custom call of CUDA."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from aspen_jax import runtime
from aspen_jax.cuda import fitted
from aspen_jax.cuda.device import architecture
from aspen_jax.cuda.executor import EXECUTORS, Executor, chosen_executor
from aspen_jax.cuda.families import UnsupportedOp, why_no_code
from aspen_jax.cuda.image import Code, compile_ops
from aspen_jax.cuda.kernel_choices import known
from aspen_jax.cuda.machine import NUM_BLOCKS, Gpu
from aspen_jax.errors import UnsupportedError
from aspen_jax.lowering.compile import Compiled, Options, Part, compile_jaxpr
from aspen_jax.passes import disabled_by_environment
from aspen_jax.primitive.choices import Choices

# Passes whose ops are for the CPU's kernels alone.
LEFT_OUT = frozenset({"bf16x6", "winograd", "strassen", "panels", "conv_panels", "scales"})


def cuda_options(choices: Choices, executor: Executor = Executor.GRAPH) -> Options:
    """How functions are compiled for GPUs."""
    return Options(
        choices,
        disabled_passes=disabled_by_environment() | LEFT_OUT,
        num_workers=NUM_BLOCKS,
        machine=dataclasses.replace(Gpu.here(), kernels=known()),
        refuses=why_no_code,
        fit=fitted,
        chooses=False,  # the rates are those of CPUs
        call=_CALLS[executor],
    )


def compile_for_cuda(jaxpr: ClosedJaxpr, choices: Choices) -> Compiled | None:
    """A function with the code of all its parts; None where XLA computes it, as wanted or because some op has no CUDA code.

    Raises:
        UnsupportedError: `choices.strict`, and an op has no CUDA code.
        AspenError: the code cannot be compiled here.
    """
    name = chosen_executor(choices, lambda: _fastest(jaxpr, choices))
    executor = EXECUTORS[name]
    if executor is None:
        return None
    compiled = compile_jaxpr(jaxpr, cuda_options(choices._replace(executor=name), executor))
    try:
        for part in compiled.parts:
            _code(part, architecture())
    except UnsupportedOp as error:
        if choices.strict:
            raise UnsupportedError(f"strict=True, but there is {error}; use strict=False or device='cpu'") from None
        return None
    return compiled


def _fastest(jaxpr: ClosedJaxpr, choices: Choices) -> str:
    """What was the fastest for this function on this GPU, XLA if nothing was timed."""
    from aspen_jax.lowering.cuda_choice import chosen

    return chosen(jaxpr, choices).executor


_codes: weakref.WeakKeyDictionary[Part, dict[str, Code]] = weakref.WeakKeyDictionary()


def _code(part: Part, architecture: str) -> Code:
    codes = _codes.setdefault(part, {})
    if architecture not in codes:
        codes[architecture] = compile_ops(part.program.ops, architecture, part.graph)
    return codes[architecture]


def _call(executor: Executor, part: Part, results: Sequence[jax.ShapeDtypeStruct], *operands: Any) -> list[Any]:
    """The part as a custom call of CUDA, whose last result is a workspace for runs that XLA captures (cuda/ffi.h)."""
    runtime.ensure_registered()
    code = _code(part, architecture())
    workspace = [jax.ShapeDtypeStruct((part.graph.workspace_bytes,), np.uint8)] if part.graph.workspace_bytes else []
    nothing = [runtime.NOTHING] if len(results) > 1 and not workspace else []
    results_and_rest = [*results, *workspace, *nothing]
    call = jax.ffi.ffi_call(runtime.CUSTOM_CALL_TARGET, results_and_rest, input_output_aliases=part.graph.shared_memory)
    outs = call(*operands, graph=part.graph_bytes, **code._asdict(), executor=np.int32(executor))
    return list(outs)[: len(results)]


_CALLS = {executor: functools.partial(_call, executor) for executor in Executor}
