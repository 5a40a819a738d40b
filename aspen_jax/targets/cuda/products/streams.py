"""Products and convolutions whose blocks are streamed: a warp beside the warpgroups copies (cuda/kernels/streamed_product.h).

A tile then has several blocks, and chunks of the next are copied while one is stored. That helps large products, and those of few
chunks, whose blocks would else begin anew again and again. None of it has run on a GPU.
"""

from __future__ import annotations

import math

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.vectors import whole
from aspen_jax.targets.cuda.device import MULTIPROCESSORS
from aspen_jax.targets.cuda.products.conv_boxes import ConvBoxesShape
from aspen_jax.targets.cuda.products.kernel_choices import candidate_for, has_warpgroups
from aspen_jax.targets.cuda.products.pointwise import as_product
from aspen_jax.targets.cuda.products.problem import Problem
from aspen_jax.targets.cuda.products.tensor_maps import maps_of

# Rows and columns of a block, the largest first, and its stages: as many as a multiprocessor's shared memory has for one block.
STREAMED = {(128, 256): 4, (128, 128): 6, (128, 64): 8}

# A block and its stages take the place of two blocks as they were before.
PLACES = 2

# Blocks of a matrix for each multiprocessor. The largest ones need but one: they read operands least often.
_FEWEST = {(128, 256): 1, (128, 128): 2, (128, 64): 2}


def is_streamed(op: Op) -> bool:
    """Whether the blocks of a product or convolution are streamed."""
    candidate = candidate_for(op)
    return candidate.is_streamed if candidate is not None else stream_block(op) is not None


def stream_block(op: Op) -> tuple[int, int] | None:
    """Rows and columns of a block, where one is streamed by default.

    It is the largest block of STREAMED that is hardly empty at the end of rows and columns. There must be enough of them in one
    matrix, and maps must describe both operands.

    Args:
        op: any op.
    """
    if op.family.name not in ("matmul", "conv2d", "conv2d_slices") or op.slices > 1 or not has_warpgroups(op):
        return None
    problem = Problem.of(op)
    if problem is None or not problem.by_warpgroups:
        return None
    smallest = whole(problem.rows, 64) * whole(problem.columns, 64)
    for block in STREAMED:
        filled = whole(problem.rows, block[0]) * whole(problem.columns, block[1])
        if filled > 9 / 8 * smallest:
            continue
        enough = filled // math.prod(block) >= _FEWEST[block] * MULTIPROCESSORS
        return block if enough and _has_maps(op, block) else None
    return None


def _has_maps(op: Op, block: tuple[int, int]) -> bool:
    """Whether both operands are copied in boxes."""
    product = op if op.family.name == "matmul" else as_product(op)
    return ConvBoxesShape.of(op, block) is not None if product is None else bool(maps_of(product, block))
