"""Which products have shapes that a GPU multiplies slowly: extents of 16-bit operands that are no whole vectors (Bolt, 3.2.3)."""

from __future__ import annotations

import math

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.products.problem import WHOLE_VECTOR, Problem


def advice(op: Op) -> str | None:
    """What to change of a product's shapes so that operands are read 16 bytes at a time; None where they are, or cannot be."""
    problem = Problem.of(op)
    if problem is None or problem.itemsize != 2 or problem.vector >= WHOLE_VECTOR:
        return None
    if op.family.name == "matmul":
        extents = {"summed": problem.depth, "columns": problem.columns}
        unit = "elements"
    else:
        *_, channels, outputs = op.inputs[1].shape
        extents = {"in": channels, "out": outputs}
        unit = "channels"
    odd = {name: extent for name, extent in extents.items() if extent % WHOLE_VECTOR}
    if not odd:
        return None
    each = "; ".join(f"{extent} {unit} {name}: {_whole(extent)} would do" for name, extent in odd.items())
    return f"{each} (reads of {2 * problem.vector} bytes, not 16; padding to that adds {_share(odd):.0%})"


def _whole(extent: int) -> int:
    return -(-extent // WHOLE_VECTOR) * WHOLE_VECTOR


def _share(extents: dict[str, int]) -> float:
    """Multiplications more, where all these extents are padded."""
    return math.prod(_whole(extent) / extent for extent in extents.values()) - 1
