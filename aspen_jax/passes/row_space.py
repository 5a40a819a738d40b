"""The rows that ops work on, and what an op is to them."""

from __future__ import annotations

import dataclasses
import math

from aspen_jax.ir.program import Op
from aspen_jax.ir.view import View
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.ops.reduce import REDUCE
from aspen_jax.ops.row_program import NUMBER, ROW

# A tile holds whole rows: fewer rows than this keep workers idle, unless they are no more work together than a tile.
MIN_ROWS = 8
MAX_SIZE_OF_FEW = 1 << 16

# A worker keeps a few rows in its scratch memory: one, or as many as a cache line holds where neighbouring rows are adjacent.
MAX_LENGTH = 1 << 20
MAX_LENGTH_ACROSS = 1 << 14


@dataclasses.dataclass(frozen=True)
class Space:
    """The rows that a cluster works on: all elements have the shape `full`, and what is known once a row has `kept`."""

    full: tuple[int, ...]
    axes: tuple[int, ...]

    @classmethod
    def of(cls, reduction: Op) -> Space | None:
        """The rows of a reduction; None where they are not worth a program."""
        space = cls(reduction.inputs[0].shape, reduction.attrs.axes)
        across = any(extent > 1 and axis > max(space.axes, default=0) for axis, extent in enumerate(space.full))
        many = space.rows >= MIN_ROWS or space.rows * space.length <= MAX_SIZE_OF_FEW
        return space if space.rows and many and 1 < space.length <= (MAX_LENGTH_ACROSS if across else MAX_LENGTH) else None

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(extent for axis, extent in enumerate(self.full) if axis not in self.axes)

    @property
    def rows(self) -> int:
        return math.prod(self.kept)

    @property
    def length(self) -> int:
        return math.prod(self.full[axis] for axis in self.axes)

    def runs(self) -> list[tuple[bool, int]]:
        """The dimensions from the outermost, (in a row, extent), neighbours of one kind joined: equal for equal rows."""
        runs: list[tuple[bool, int]] = []
        for axis, extent in enumerate(self.full):
            if runs and runs[-1][0] == (axis in self.axes):
                runs[-1] = (runs[-1][0], runs[-1][1] * extent)
            elif extent > 1:
                runs.append((axis in self.axes, extent))
        return runs

    def kind_of(self, op: Op) -> int | None:
        """What the op's result is to the rows: a reduction's kind, ROW or NUMBER; None where it has nothing to do with them."""
        if op.program is None and op.family is REDUCE and op.attrs.kind < ROW:
            own = Space(op.inputs[0].shape, op.attrs.axes)
            return op.attrs.kind if own.runs() == self.runs() else None
        kind = {self.rows: NUMBER, self.rows * self.length: ROW}.get(op.output.size)
        if kind is None or op.family is not BLOCK or any(lane_of(item.dtype) is None for item in (*op.inputs, op.output)):
            return None
        return kind

    def seen(self, kind: int, view: View) -> View | None:
        """How an op of this kind sees a value, over all elements of the rows (over the rows for a NUMBER)."""
        return view.reshape(self.kept if kind == NUMBER else self.full)

    def spread(self, view: View) -> View:
        """A view over the rows, over all their elements."""
        return view.broadcast_in_dim(self.full, [axis for axis in range(len(self.full)) if axis not in self.axes])

    def reads(self, reader: int, view: View, source: int) -> bool:
        """Whether an op of kind `reader` sees the result of one of kind `source` where it belongs."""
        seen = self.seen(reader, view)
        if source == ROW:
            return reader != NUMBER and seen == View.identity(self.full)
        whole = View.identity(self.kept)
        return seen == whole if reader == NUMBER else reader == ROW and seen == self.spread(whole)
