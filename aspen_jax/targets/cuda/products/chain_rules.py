"""Which ops may be the parts of a chain of products (Bolt, section 3.1.1), and why others may not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aspen_jax.ir.program import Op
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.targets.cuda.code.vectors import KINDS
from aspen_jax.targets.cuda.products.conv_tile import ConvTileShape, is_walked

# Columns between two products, at most. Of twice as many the sums of 32 rows alone would be 64 kB.
MOST_BETWEEN = 256


class Rule(NamedTuple):
    """What must hold for a part of a chain.

    Attributes:
        reason: for refusing an op for which it does not.
        holds: of an op that is the chain's first part, or that reads `before`.
    """

    reason: str
    holds: Callable[[Op, Op | None], bool]


def _is_product(op: Op, _: Op | None) -> bool:
    return op.family is MATMUL or (op.family is CONV2D and op.attrs.groups == 1)


def _has_elements(op: Op, _: Op | None) -> bool:
    return bool(op.output.size) and all(op.inputs[1].shape)


def _has_one_dtype(op: Op, before: Op | None) -> bool:
    dtypes = {op.inputs[0].dtype, op.inputs[1].dtype, *(() if before is None else (before.inputs[0].dtype, before.output.dtype))}
    return len(dtypes) == 1 and op.inputs[0].dtype.name in KINDS


def _has_one_matrix(op: Op, _: Op | None) -> bool:
    if op.family is CONV2D:
        return is_walked(op.inputs[1])
    rank = len(op.output.shape)
    return rank > 1 and op.attrs.a[:-1] == tuple(range(rank - 1)) and op.attrs.a[-1] < 0 and len(op.attrs.b) == 2


def _keeps_rows(op: Op, before: Op | None) -> bool:
    if before is None:
        return op.family is MATMUL or ConvTileShape.of(op) is not None
    if op.family is MATMUL:
        return before.family is MATMUL
    points = op.inputs[1].shape[:2] == (1, 1) and max(op.attrs.strides) == 1 and not any(op.attrs.padding)
    return points and before.family is CONV2D


def _fits_a_block(op: Op, before: Op | None) -> bool:
    return before is None or before.output.shape[-1] <= MOST_BETWEEN


# In this order: later ones look at what earlier ones have let through.
RULES = (
    Rule("it is no product and no convolution of one group", _is_product),
    Rule("it has no elements, or nothing to sum", _has_elements),
    Rule("it does not read and multiply one dtype of float32, bfloat16 and float16", _has_one_dtype),
    Rule("its rows are not multiplied by one matrix whose strides can be walked", _has_one_matrix),
    Rule("it reads other rows than it writes; only the first part may", _keeps_rows),
    Rule(f"no block owns all columns of the part before, which are more than {MOST_BETWEEN}", _fits_a_block),
)


def why_not_allowed(parts: Sequence[Op]) -> str | None:
    """Why ops, each of which reads the one before as its first input, may not be a chain; None where they may."""
    for before, part in zip((None, *parts), parts, strict=False):
        for rule in RULES:
            if not rule.holds(part, before):
                return f"{part.name or part.family.name}: {rule.reason}"
    return None if len(parts) > 1 else "a chain has two parts or more"
