"""Block ops: a program on each element."""

from __future__ import annotations

from aspen_jax.cuda.source import per_element, writes
from aspen_jax.program import Op


@writes("block")
def _block(op: Op) -> str:
    return per_element(op, None)
