"""Row programs and reductions: a team of threads walks each row, once for each stage that is reduced (cuda/kernels/rows.h).

What a stage gives for each element of a row is kept by the thread that computed it, in shared memory, or computed again where a
row is too long for that.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from aspen_jax.ir.program import Op
from aspen_jax.ops import windows
from aspen_jax.ops.block_program import COPY, BlockProgram
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.ops.row_program import ROW
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, writes
from aspen_jax.targets.cuda.code.lanes import function, load, statements, store
from aspen_jax.targets.cuda.products.matrices import Axes

THREADS = 256

# Shared memory that every device gives without being asked.
_MOST_BYTES = 44 << 10

# With fewer rows than this a block for each keeps a large device busy; with more a warp for each saves the synchronisation.
_MANY_ROWS = 2048

_COMBINE = {windows.SUM: "add", windows.MAX: "max", windows.MIN: "min", windows.PRODUCT: "mul"}
_ONES = 0xFFFFFFFF
_BITWISE = {windows.AND: "and", windows.OR: "or", windows.XOR: "xor", windows.MAX: "or", windows.MIN: "and"}


def combination(dtype: np.dtype, kind: int) -> tuple[str, int] | None:
    """The instruction that combines two lanes of a dtype, and the lane to begin with."""
    lane = lane_of(dtype)
    if lane == "b":
        return (f"scalar::{_BITWISE[kind]}_b", _ONES if _BITWISE[kind] == "and" else 0) if kind in _BITWISE else None
    if lane == "i" and kind in (windows.AND, windows.OR, windows.XOR):
        return f"scalar::{_BITWISE[kind]}_i", _ONES if kind == windows.AND else 0
    if kind not in _COMBINE or lane not in ("f", "i"):
        return None
    of = "u" if dtype.name == "uint32" and kind in (windows.MAX, windows.MIN) else lane
    start = np.asarray(windows.identity(kind, np.dtype({"f": np.float32, "i": np.int32, "u": np.uint32}[of])))
    return f"scalar::{_COMBINE[kind]}_{of}", int(start.view(np.uint32))


@dataclasses.dataclass(frozen=True)
class RowsShape:
    """Rows, and the threads that walk one, as RowsShape in cuda/kernels/row_walk.h.

    Attributes:
        rank: of the inputs.
        across: their axes that choose a row.
        along: their axes that make up a row.
        extents: of the latter.
        length: of a row, in elements.
        threads: of a block.
        lanes: of a warp that walk a row together.
        warps: that walk a row together.
    """

    rank: int
    across: Axes
    along: Axes
    extents: tuple[int, ...]
    length: int
    threads: int
    lanes: int
    warps: int

    @classmethod
    def of(cls, shape: Sequence[int], axes: Sequence[int]) -> RowsShape:
        across = tuple(axis for axis in range(len(shape)) if axis not in axes)
        extents = tuple(shape[axis] for axis in axes)
        lanes, warps = _team(shape, axes)
        own = Axes(len(across), across), Axes(len(axes), tuple(axes))
        return cls(len(shape), *own, extents, math.prod(extents), THREADS, lanes, warps)

    @property
    def most_kept(self) -> int:
        """Stages whose values fit into shared memory, for each element of the rows that a block walks."""
        steps = max(-(-self.length // (self.lanes * self.warps)), 1)
        return _MOST_BYTES // (steps * self.threads * 4)


def _team(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, int]:
    """Lanes and warps that walk a row together."""
    length, rows = (math.prod(shape[d] for d in range(len(shape)) if (d in axes) == own) for own in (True, False))
    across = max((d for d, extent in enumerate(shape) if extent > 1), default=-1) not in axes
    warps = THREADS // 32
    if across:
        return 1, warps if length >= 4 * warps else 1
    if rows <= _MANY_ROWS and length > 64:
        return 32, warps
    return min(32, 1 << max(length - 1, 0).bit_length()), 1


@writes("reduce")
def _reduce(op: Op) -> Kernel | None:
    combine = combination(op.inputs[0].dtype, op.attrs.kind)
    if combine is None:
        return None
    return _kernel(op, RowsShape.of(op.inputs[0].shape, op.attrs.axes), [_reduced(*combine)], [COPY])


@writes("rows")
def _rows(op: Op) -> Kernel | None:
    stages = op.attrs.rows.stages
    combines = [combination(dtype, kind) if kind < ROW else None for kind, dtype, _ in stages]
    if any(kind < ROW and combine is None for (kind, *_), combine in zip(stages, combines, strict=True)):
        return None
    shape = RowsShape.of(op.inputs[0].shape, op.attrs.axes)
    stored = op.attrs.rows.further
    kept = [number for number, stage in enumerate(stages[:-1]) if stage.kind == ROW][: shape.most_kept]

    def become(number: int) -> str:
        if (combine := combines[number]) is not None:
            return _reduced(*combine)
        plain = "ElementStage" if stages[number].kind == ROW else "NumberStage"
        own = f"KeptStage<{kept.index(number)}>" if number in kept else plain
        return f"StoredStage<{own}, {stored.index(number)}>" if number in stored else own

    return _kernel(op, shape, [become(number) for number in range(len(stages))], [stage.program for stage in stages])


def _reduced(combine: str, start: int) -> str:
    return f"ReducedStage<{combine}, {start:#x}u>"


def _kernel(op: Op, shape: RowsShape, stages: Sequence[str], programs: Sequence[BlockProgram]) -> Kernel:
    functions = [_stage(op, number, program) for number, program in enumerate(programs)]
    functions += [_store(op, place) for place in range(len(op.further))]
    return Kernel("Rows", [constant(shape), *stages], functions="\n".join(functions))


def _store(op: Op, place: int) -> str:
    """A function `store` that stores what a stage gives in the further output at this place."""
    at = [f"at[{axis}]" for axis in range(len(op.output.shape))]
    line = store(op.further[place], f"buffers.further[{place}]", at, "own")
    return function("void store", f", StageNumber<{op.attrs.rows.further[place]}>, uint32_t own", [line])


def _stage(op: Op, number: int, program: BlockProgram) -> str:
    """A function `stage` that computes one over the inputs and what is known of earlier ones."""
    at = [f"at[{axis}]" for axis in range(len(op.inputs[0].shape))]
    registers = [load(op, k, at) for k in range(program.num_inputs - number)]
    registers += [f"known.template of<{k}>()" for k in range(number)]
    lines, (result,) = statements(program, registers)
    parameters = f", StageNumber<{number}>, [[maybe_unused]] const Known& known"
    return "  template <class Known>\n" + function("uint32_t stage", parameters, [*lines, f"return {result};"])
