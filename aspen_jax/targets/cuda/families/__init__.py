"""A file an op: which kernel computes it. Each declares its own (`code/kernel.py`)."""

from aspen_jax.targets.cuda.families import (  # noqa: F401 - they declare kernels
    arg_reduce,
    attention,
    concatenate,
    conv,
    cumulative,
    elementwise,
    gather,
    pad,
    partial_reduce,
    pool,
    products,
    ragged_dot,
    rows,
    scatter,
    stack,
    transposed,
)
