"""How JAX lowers the primitive `aspen_call`: tiles where the platform has a back-end, ordinary JAX elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import mlir

from aspen_jax.errors import UnsupportedError
from aspen_jax.lowering import share
from aspen_jax.lowering.compile import Compiled, Options, compile_jaxpr, typed_as
from aspen_jax.primitive import sharding, warning
from aspen_jax.primitive.choices import Choices
from aspen_jax.primitive.primitive import aspen_call_p, flag
from aspen_jax.targets import registry


def _lower(platform: str, ctx: mlir.LoweringRuleContext, *operands: Any, call_jaxpr: ClosedJaxpr, choices: Choices) -> Any:
    target = registry.on_platform(choices.device, platform)
    if target is None:
        registry.named(choices.device).refuse_elsewhere()
        return _lower_plain(ctx, *operands, call_jaxpr=call_jaxpr, choices=choices)
    with _unchecked():
        own = target.of_call(call_jaxpr, choices, may_time=_is_this_machines_alone(ctx))
        options = None if own is None else Options(own[1], own[0], num_devices=sharding.num_devices(ctx))
        compiled = None if options is None else compile_jaxpr(call_jaxpr, options)
        if compiled is None or not compiled.options.target.is_ready(compiled):
            return _lower_plain(ctx, *operands, call_jaxpr=call_jaxpr, choices=choices)
        return _lower_compiled(platform, ctx, call_jaxpr, compiled, operands, choices)


def _is_this_machines_alone(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether nobody else lowers the same program: it is not exported, and it is for one CPU and no mesh."""
    context: Any = ctx.module_context
    is_one = getattr(context.axis_context, "num_devices", 0) == 1
    return is_one and tuple(context.platforms) == ("cpu",) and not context.lowering_parameters.for_export


def _unchecked() -> contextlib.AbstractContextManager[Any]:
    """A context without `jax_enable_checks`: types may name axes and meshes, of which a lowering knows nothing any more."""
    return jax.enable_checks(False) if flag("jax_enable_checks") else contextlib.nullcontext()


def _lower_compiled(
    platform: str,
    ctx: mlir.LoweringRuleContext,
    jaxpr: ClosedJaxpr,
    compiled: Compiled,
    operands: Sequence[Any],
    choices: Choices,
) -> Any:
    reason = with_devices = None
    if compiled.parts and _is_exported_for_several(ctx):
        reason = "is exported for several devices, where XLA cannot cut a custom call along the batch"
    elif compiled.parts and (with_devices := sharding.with_devices(ctx, platform)) is None:
        reason = "is for more devices than this process knows, so XLA cannot cut a custom call along the batch"
    if reason is not None:
        if choices.strict:
            raise UnsupportedError(f"the function {reason}; decorate inside jax.shard_map, or drop strict=True")
        warning.warn_of_all(jaxpr.jaxpr, reason, choices)
        return _lower_plain(ctx, *operands, call_jaxpr=jaxpr, choices=choices)
    share.warn_of_fallbacks(jaxpr.jaxpr, compiled)

    def call(*arguments: Any) -> list[Any]:
        results = compiled.call(*arguments)
        return [typed_as(item, aval) for item, aval in zip(results, jaxpr.out_avals, strict=True)]

    return mlir.lower_fun(call, multiple_results=True)(with_devices or ctx, *operands)


def _is_exported_for_several(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether an exported program is for a mesh. What cuts a custom call along the batch is Python, which no file can hold."""
    return ctx.module_context.lowering_parameters.for_export and sharding.num_devices(ctx) > 1


def _lower_plain(ctx: mlir.LoweringRuleContext, *operands: Any, call_jaxpr: ClosedJaxpr, choices: Choices) -> Any:
    del choices
    return mlir.lower_fun(jaxpr_as_fun(call_jaxpr), multiple_results=True)(ctx, *operands)


def register() -> None:
    """Tells JAX the rules."""
    mlir.register_lowering(aspen_call_p, _lower_plain)
    for platform in registry.platforms():
        mlir.register_lowering(aspen_call_p, partial(_lower, platform), platform=platform)
