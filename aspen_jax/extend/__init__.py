"""Ops, passes and devices from outside of the package: all that they need of it. docs/how-to/extend.md shows each.

Knows the rooms whose names it gives. Begin at docs/how-to/extend.md.

Register before the first call. What is compiled already stays as it is.
"""

from aspen_jax.cost.machine import Machine
from aspen_jax.extend.kernels import register_kernels
from aspen_jax.frontend.partition import Tileable
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.lowering.compile import Compiled, Part
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.converters import Equation, Unsupported, converts
from aspen_jax.ops.family import OpFamily, Work
from aspen_jax.ops.family import register as register_op
from aspen_jax.ops.reference import results_of
from aspen_jax.passes import PASSES, Pass, Stage
from aspen_jax.passes import register as register_pass
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.registry import register as register_target
from aspen_jax.targets.target import Notes, Target, Tuned

__all__ = [
    "PASSES",
    "Attrs",
    "Builder",
    "Choices",
    "Compiled",
    "Equation",
    "Machine",
    "Notes",
    "Op",
    "OpFamily",
    "Operand",
    "Part",
    "Pass",
    "Program",
    "Stage",
    "Target",
    "Tileable",
    "Tuned",
    "Unsupported",
    "Value",
    "Work",
    "box_sizes",
    "converts",
    "register_kernels",
    "register_op",
    "register_pass",
    "register_target",
    "results_of",
]
