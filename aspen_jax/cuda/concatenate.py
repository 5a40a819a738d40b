"""Concatenation: each element lies in one of the inputs, and so does a run of adjacent ones where all pieces are made of such."""

from __future__ import annotations

from aspen_jax.cuda.by_element import own, per_element
from aspen_jax.cuda.kernel import writes
from aspen_jax.cuda.lanes import element, load
from aspen_jax.cuda.runs import Read, address, is_run, per_run, run_length
from aspen_jax.ir.program import Op


@writes("concatenate")
def _concatenate(op: Op) -> str:
    axis, rank, end, pieces = op.attrs.axis, len(op.output.shape), 0, []
    starts = []
    for number, piece in enumerate(op.main_inputs):
        at = [f"at[{d}]" if d != axis else f"at[{d}] - {end}" for d in range(rank)]
        starts.append(end)
        end += piece.shape[axis]
        pieces.append((number, f"at[{axis}] < {end}", at))
    *others, last = pieces
    lines = [f"if ({condition}) return {load(op, number, at)};" for number, condition, at in others]
    text = own([*lines, f"return {load(op, last[0], last[2])};"])
    dtype = op.main_inputs[0].dtype
    count = run_length(op, dtype)
    while count > 1 and not (
        all(is_run(op, number, rank - 1, count) for number, *_ in pieces)
        and (axis < rank - 1 or all(start % count == 0 for start in starts))
    ):
        count //= 2
    if count == 1:
        return text + per_element(op, "own(buffers, at)")

    def run() -> Read:
        choice = "".join(f"{condition} ? {address(op, number, at)} : " for number, condition, at in others)
        line = f"const auto own = load_vector<{count}>({choice}{address(op, last[0], last[2])});"
        return Read([line], f"{element(dtype)}::load(own.elements, i)")

    return text + per_run(op, count, run, ", own(buffers, at)")
