"""Where the largest or least element of a row is (cuda/kernels/arg_reduce.h)."""

from __future__ import annotations

from aspen_jax.ir.program import Op
from aspen_jax.ops import windows
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type, writes
from aspen_jax.targets.cuda.families.rows import RowsShape


@writes("arg_reduce")
def _arg_reduce(op: Op) -> Kernel:
    dtype, shape = op.inputs[0].dtype, RowsShape.of(op.inputs[0].shape, (op.attrs.axis,))
    lane = lane_of(dtype)
    number = "float" if lane == "f" else "uint32_t" if lane == "b" or dtype.kind == "u" else "int32_t"
    return Kernel("ArgReduce", [input_type(op, 0), number, constant(op.attrs.kind == windows.MAX), constant(shape)])
