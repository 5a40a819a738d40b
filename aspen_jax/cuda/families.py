"""Which kernel an op has. The cost model asks this too; nothing is printed for it."""

from __future__ import annotations

from aspen_jax.cuda import (  # noqa: F401 - they declare what gives their kernels
    arg_reduce,
    attention,
    concatenate,
    conv,
    cumulative,
    elementwise,
    gather,
    pad,
    pool,
    products,
    ragged_dot,
    rows,
    scatter,
    stack,
    transposed,
)
from aspen_jax.cuda.kernel import FAMILIES, Kernel
from aspen_jax.cuda.lanes import element
from aspen_jax.ir.program import Op
from aspen_jax.ops.opcodes import lane_of


class UnsupportedOp(Exception):
    """An op for which there is no CUDA code; XLA computes it."""


def kernel_of(op: Op) -> Kernel:
    """The kernel of an op.

    Raises:
        UnsupportedOp: there is none.
    """
    write = FAMILIES.get(op.family.name)
    dtypes = [*(value.dtype for value in op.outputs), *(operand.dtype for operand in op.inputs)]
    kernel = write(op) if write is not None and all(element(dtype) and lane_of(dtype) for dtype in dtypes) else None
    if kernel is None:
        raise UnsupportedOp(f"no CUDA code for {op.family.name} of {', '.join(map(str, dtypes))}")
    return kernel


def why_no_code(op: Op) -> str | None:
    """Why there is no CUDA code for an op; None where there is."""
    try:
        kernel_of(op)
    except UnsupportedOp as error:
        return str(error)
    return None
