"""What a pass did to a program, to be looked at."""

from __future__ import annotations

import math
import os
import sys
from typing import NamedTuple

from aspen_jax.ir.program import Program

SHOW_VARIABLE = "ASPEN_SHOW_PASSES"


class Rewrite(NamedTuple):
    """What a pass did to a program; `str` says it in a line.

    Attributes:
        name: of the pass.
        before: the program that it got.
        after: the program that it gave, without what nobody reads.
        seconds: how long it took.
    """

    name: str
    before: Program
    after: Program
    seconds: float

    @property
    def has_changed(self) -> bool:
        """Whether it gave another program."""
        return self.before is not self.after and str(self.before) != str(self.after)

    def __str__(self) -> str:
        took = f"{self.seconds * 1e3:.3g} ms"
        if not self.has_changed:
            return f"{self.name}: (unchanged), {took}"
        ops = len(self.after.ops) - len(self.before.ops)
        moved = bytes_moved(self.after) - bytes_moved(self.before)
        return f"{self.name}: {ops:+d} ops, {moved / 1e6:+.3g} MB read and written, {took}"


def bytes_moved(program: Program) -> int:
    """Bytes that ops read and write, each operand once."""
    read = sum(math.prod(operand.shape) * operand.dtype.itemsize for op in program.ops for operand in op.inputs)
    return read + sum(value.nbytes for op in program.ops for value in op.outputs)


def are_shown() -> bool:
    """Whether ASPEN_SHOW_PASSES asks for rewrites on stderr."""
    return os.environ.get(SHOW_VARIABLE, "0") not in ("", "0")


def show(rewrite: Rewrite) -> None:
    """Prints what a pass did, and the program where it is another one."""
    lines = [f"== {rewrite}", *(rewrite.after.lines() if rewrite.has_changed else ())]
    print("\n".join(lines), file=sys.stderr)
