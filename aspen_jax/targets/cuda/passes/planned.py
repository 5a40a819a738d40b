"""Decides how each op is computed (plan.py)."""

from __future__ import annotations

from aspen_jax.ir.program import Op, Program
from aspen_jax.targets.cuda.code.kernel import UnsupportedOp
from aspen_jax.targets.cuda.plan import KernelPlan
from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, considering, current


def run(program: Program, machine: Gpu) -> Program:
    """Give each op its plan. One without a kernel gets none: whoever wants its code hears of it."""
    choices = machine.kernels or current()
    with considering(choices):
        return program.replace(ops=tuple(_planned(op, choices) for op in program.ops))


def _planned(op: Op, choices: KernelChoices) -> Op:
    try:
        return op.replace(plan=KernelPlan.of(op, choices))
    except UnsupportedOp:
        return op
