"""Fits a program, after all passes, to the kernels of GPUs."""

from __future__ import annotations

from aspen_jax.ir.program import Program
from aspen_jax.targets.cuda.families.attention import unfused
from aspen_jax.targets.cuda.passes.first_op import read_through


def fitted(program: Program) -> Program:
    """A program, after all passes, as the kernels take it."""
    return read_through(unfused(program))
