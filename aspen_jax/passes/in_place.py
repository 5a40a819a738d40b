"""Marks ops that rewrite a part of an operand which nobody needs afterwards: their output takes its memory, and no copy is made.

So do products that add to a matrix which nobody needs afterwards: alpha * A @ B + beta * C lies where C was.

An operand dies with an op where all others that read it can run before. So such ops go behind those readers. Memory of the
caller's may be written only where the outcome is a result of the same shape: then that is declared to share the operand's memory,
and XLA copies the operand first wherever the caller keeps it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from aspen_jax.ir.program import Program, Value


def run(program: Program) -> Program:
    """Mark ops that may rewrite an operand in place, and order ops so that they may.

    Args:
        program: its outputs are final (`passes/outputs.py`).
    """
    number = {op: index for index, op in enumerate(program.ops)}
    readers: dict[Value, set[int]] = {}
    for op in program.ops:
        for operand in op.inputs:
            readers.setdefault(operand.value, set()).add(number[op])
    # For each op those that must come after it: that read its output, or rewrite what it reads.
    after = [{reader for value in op.outputs for reader in readers.get(value, ())} for op in program.ops]
    # For what lies where a result does, the shape that the caller gives that.
    results = {operand.value: operand.shape for operand in program.outputs}
    given = set(program.inputs)
    taken = {*results, *(value for value, _ in program.constants)}
    marked: set[int] = set()
    # Backwards, since what lies where a result does is known from the last op that writes there.
    for op in reversed(program.ops):
        operand = op.family.rewritten(op)
        if operand is None or op.output.size == 0 or operand.value in taken:
            continue
        # What an op writes as a whole need not lie in memory of the caller's, which XLA would copy first.
        if operand.value in given and (op.family.rewrites is None or results.get(op.output) != operand.value.shape):
            continue
        others = readers[operand.value] - {number[op]}
        if others and _reaches(after, number[op], others):
            continue
        for other in others:
            after[other].add(number[op])
        taken.add(operand.value)
        marked.add(number[op])
        if op.output in results:
            results[operand.value] = results[op.output]
    if not marked:
        return program
    ops = tuple(program.ops[index].replace(in_place=index in marked) for index in _in_order(after))
    return program.replace(ops=ops)


def _reaches(after: list[set[int]], start: int, ends: set[int]) -> bool:
    """Whether one of `ends` comes after `start`."""
    seen, waiting = {start}, [start]
    while waiting:
        new = after[waiting.pop()] - seen
        if not new.isdisjoint(ends):
            return True
        seen |= new
        waiting.extend(new)
    return False


def _in_order(after: list[set[int]]) -> Iterator[int]:
    """Ops in the order that they had, as far as each comes before those after it."""
    missing = [0] * len(after)
    for others in after:
        for other in others:
            missing[other] += 1
    ready = [index for index, count in enumerate(missing) if count == 0]
    while ready:
        index = heapq.heappop(ready)
        yield index
        for other in after[index]:
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, other)
