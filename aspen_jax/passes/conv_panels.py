"""Stores constant weights of convolutions in panels (ops/conv_panels.py). Runs late: no pass joins convolutions any more."""

from __future__ import annotations

import numpy as np

from aspen_jax.ir.program import Op, Program
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_panels import CONV2D_PANELS, ConvPanelsAttrs, kernel_to_panels
from aspen_jax.ops.matmul import PANEL
from aspen_jax.passes import storage

# The missing columns of the last panel are read too: at most so many for each that is there.
_MOST_MISSING = 1.0

# With fewer channels the pixels under a row of the kernel are read as one run, which panels would not serve.
_FEWEST_CHANNELS = 17


def run(program: Program) -> Program:
    """Let convolutions read panels of constants."""
    constants = storage.Constants(program)
    ops: list[Op] = []
    for op in program.ops:
        source = constants.source(op.inputs[1]) if _may_be(op) else None
        if source is not None:
            attrs = op.attrs
            panels = ConvPanelsAttrs(attrs.strides, attrs.padding, attrs.dilation, attrs.groups, op.output.shape[3])
            weights = constants.stored(source, lambda array: kernel_to_panels(array, np))
            op = op.replace(family=CONV2D_PANELS, attrs=panels, inputs=(op.inputs[0], weights, *op.inputs[2:]))
        ops.append(op)
    return program.replace(ops=tuple(ops), constants=constants.all())


def _may_be(op: Op) -> bool:
    """Whether the op is a convolution whose weights are worth storing in panels."""
    if op.family is not CONV2D or op.attrs.groups > 1 or any(item.dtype != np.float32 for item in op.main_inputs):
        return False
    channels, columns = op.inputs[1].shape[2:]
    return channels >= _FEWEST_CHANNELS and op.output.size > 0 and -columns % PANEL <= _MOST_MISSING * columns
