"""The first convolution of an NCHW network reads its input as it lies, and no launch transposes it (Bolt, section 3.2.3)."""

from __future__ import annotations

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_slices import CONV2D_SLICES
from aspen_jax.targets.cuda.products.window import Taps


def read_through(program: Program) -> Program:
    """Let convolutions of few channels read what a copy of their input reads; copies that nothing else needs are pruned.

    With 3 channels a pixel's are no whole vector in either order, so nothing is lost where they lie apart. What a copy puts into
    vectors is worth the copy.
    """
    # What is rewritten in place is not there any more behind the copy.
    rewritten = {operand.value for op in program.ops if op.in_place and (operand := op.family.rewritten(op)) is not None}
    copies = {
        op.output: op
        for op in program.ops
        if op.family is BLOCK and op.program is not None and op.program.is_copy and op.inputs[0].value not in rewritten
    }
    ops = tuple(_reading_through(op, copies) if op.family in (CONV2D, CONV2D_SLICES) else op for op in program.ops)
    return program.replace(ops=ops).pruned()


def _reading_through(op: Op, copies: dict[Value, Op]) -> Op:
    x, *others = op.inputs
    copy = copies.get(x.value)
    if copy is None or op.attrs.groups > 1 or Taps.of(op).vector > 1:
        return op
    view = copy.inputs[0].view.compose(x.view)
    return op if view is None else op.replace(inputs=(Operand(copy.inputs[0].value, view), *others))
