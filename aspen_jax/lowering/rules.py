"""How JAX lowers the primitive `aspen_call`: tiles where the platform has a back-end, ordinary JAX elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import mlir

from aspen_jax.errors import AspenError, UnsupportedError
from aspen_jax.lowering import share, trial
from aspen_jax.lowering.compile import Compiled, Options, compile_jaxpr
from aspen_jax.primitive import sharding, warning
from aspen_jax.primitive.choices import Choices
from aspen_jax.primitive.primitive import aspen_call_p, flag


def _lower_for_cpu(ctx: mlir.LoweringRuleContext, *operands: Any, call_jaxpr: ClosedJaxpr, choices: Choices, spread: Any) -> Any:
    if choices.device == "cuda":
        raise AspenError(
            "the function was decorated with device='cuda', but this call is for the CPU; put its arguments on a GPU, or "
            "decorate it with device='auto'"
        )
    # What a body does was decided with what it is the body of.
    options = Options(choices, budget=None if choices.is_body else trial.Budget(trial.BUDGET_S))
    if not _is_this_machines_alone(ctx):
        options = dataclasses.replace(options, trials=trial.Trials.OFF)
    with _unchecked():
        return _lower_compiled(ctx, call_jaxpr, compile_jaxpr(call_jaxpr, options), operands, choices, spread)


def _is_this_machines_alone(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether nobody else lowers the same program: it is not exported, and it is for one CPU and no mesh."""
    context: Any = ctx.module_context
    is_one = getattr(context.axis_context, "num_devices", 0) == 1
    return is_one and tuple(context.platforms) == ("cpu",) and not context.lowering_parameters.for_export


def _lower_for_cuda(ctx: mlir.LoweringRuleContext, *operands: Any, call_jaxpr: ClosedJaxpr, choices: Choices, spread: Any) -> Any:
    from aspen_jax.lowering.cuda_call import compile_for_cuda  # CUDA's modules are imported where a GPU is

    with _unchecked():
        compiled = compile_for_cuda(call_jaxpr, choices)
        if compiled is None:
            return _lower_plain(ctx, *operands, call_jaxpr=call_jaxpr, choices=choices, spread=spread)
        return _lower_compiled(ctx, call_jaxpr, compiled, operands, choices, spread)


def _unchecked() -> contextlib.AbstractContextManager[Any]:
    """A context without `jax_enable_checks`: types may name axes and meshes, of which a lowering knows nothing any more."""
    return jax.enable_checks(False) if flag("jax_enable_checks") else contextlib.nullcontext()


def _lower_compiled(
    ctx: mlir.LoweringRuleContext, jaxpr: ClosedJaxpr, compiled: Compiled, operands: Sequence[Any], choices: Choices, spread: Any
) -> Any:
    if compiled.parts and _is_exported_for_several(ctx):
        reason = "is exported for several devices, where XLA cannot cut a custom call along the batch"
        if choices.strict:
            raise UnsupportedError(f"the function {reason}; decorate inside jax.shard_map, or drop strict=True")
        warning.warn_of_all(jaxpr.jaxpr, reason, choices)
        return _lower_plain(ctx, *operands, call_jaxpr=jaxpr, choices=choices, spread=spread)
    share.warn_of_fallbacks(jaxpr.jaxpr, compiled)
    call = partial(compiled.call, num_devices=1 if spread is None else sharding.num_devices(ctx))
    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


def _is_exported_for_several(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether an exported program is for a mesh. What cuts a custom call along the batch is Python, which no file can hold."""
    return ctx.module_context.lowering_parameters.for_export and sharding.num_devices(ctx) > 1


def _lower_plain(ctx: mlir.LoweringRuleContext, *operands: Any, call_jaxpr: ClosedJaxpr, choices: Choices, spread: Any) -> Any:
    del choices, spread
    return mlir.lower_fun(jaxpr_as_fun(call_jaxpr), multiple_results=True)(ctx, *operands)


def register() -> None:
    """Tells JAX the rules."""
    mlir.register_lowering(aspen_call_p, _lower_plain)
    mlir.register_lowering(aspen_call_p, _lower_for_cpu, platform="cpu")
    mlir.register_lowering(aspen_call_p, _lower_for_cuda, platform="cuda")
