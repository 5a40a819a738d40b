"""Where windows begin that integer operands place: for `gather` and `scatter`."""

from __future__ import annotations

from collections.abc import Sequence

from aspen_jax.cuda.lanes import load
from aspen_jax.ir.program import Op


def start(op: Op, number: int, coordinates: Sequence[str], axis: int, last: int, outside: str | None) -> list[str]:
    """C++ that reads index operand `number` as `start{axis}`, from 0 to `last`.

    Args:
        op: the op.
        number: which input.
        coordinates: where in its view.
        axis: names the variable.
        last: where the last window that fits begins.
        outside: a statement for an index out of range; None: it is clamped.
    """
    # Lanes of uint32 are numbers above those of int32, not below 0.
    read = load(op, number, coordinates)
    lane = read if op.inputs[number].dtype.name == "uint32" else f"static_cast<int32_t>({read})"
    lines = [f"const int64_t index{axis} = {lane};"]
    if outside is not None:
        lines.append(f"if (index{axis} < 0 || index{axis} > {last}) {outside}")
    limits = f"index{axis} < 0 ? 0 : index{axis} > {last} ? {last} : index{axis}"
    return [*lines, f"[[maybe_unused]] const int start{axis} = static_cast<int>({limits});"]
