"""What multiplies a block of a product (cuda/kernels/product.h)."""

from __future__ import annotations

import dataclasses

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.vectors import KINDS, ROUNDED_KIND
from aspen_jax.targets.cuda.products.blocks import block
from aspen_jax.targets.cuda.products.candidates import Candidate
from aspen_jax.targets.cuda.products.kernel_choices import candidate_for
from aspen_jax.targets.cuda.products.streams import STREAMED, stream_block


@dataclasses.dataclass(frozen=True)
class FmaCore:
    """Multiplies a block in float32 throughout."""

    rows: int
    columns: int
    along_depth: bool
    stages: int = 3


@dataclasses.dataclass(frozen=True)
class MmaCore:
    """Multiplies a block on tensor cores, by warps of `warp_rows` x `warp_columns` elements."""

    kind: str
    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    along_depth: bool
    stages: int = 3


@dataclasses.dataclass(frozen=True)
class WgmmaCore:
    """Multiplies a block on tensor cores, by warpgroups of 64 rows and all columns."""

    kind: str
    rows: int
    columns: int
    along_depth: bool
    stages: int


@dataclasses.dataclass(frozen=True)
class StreamedCore:
    """Multiplies a block by warpgroups, with a warp beside them that copies (cuda/kernels/streamed_product.h)."""

    kind: str
    rows: int
    columns: int
    along_depth: bool
    stages: int


@dataclasses.dataclass(frozen=True)
class BlockCore:
    """Multiplies a block on tensor cores, by warpgroups where a GPU has their instructions and they are worth it."""

    kind: str
    rows: int
    columns: int
    vector: int
    depth: int
    along_depth: bool


Core = FmaCore | MmaCore | WgmmaCore | StreamedCore | BlockCore


def core(op: Op, num_rows: int, *, along_depth: bool = False, columns: int = 64, warps: int = 4) -> FmaCore | MmaCore:
    """What multiplies, by how many rows there are."""
    dtype = op.inputs[0].dtype.name
    if dtype == "float32" and op.exact:
        return FmaCore(64 if num_rows > 32 else 32, columns, along_depth)
    rows, warp_rows = (64, 32) if num_rows > 32 else (32, 16) if num_rows > 16 else (16, 16)
    warp_columns = columns // (warps // (rows // warp_rows))
    return MmaCore(_kind(op), rows, columns, warp_rows, warp_columns, along_depth)


def block_core(op: Op, num_rows: int, depth: int, vector: int, *, along_depth: bool = False) -> Core:
    """What multiplies blocks of `block(op)`.

    Args:
        op: a product or convolution.
        num_rows: of the whole op.
        depth: what is summed.
        vector: adjacent elements that may be read at once of both operands.
        along_depth: columns lie along the depth.
    """
    candidate = candidate_for(op)
    if candidate is not None:
        return _core_of(candidate, _kind(op), along_depth)
    if not (op.inputs[0].dtype.itemsize == 2 or op.rounded) or num_rows <= 32:
        return core(op, num_rows, along_depth=along_depth)
    rows, columns = block(op)
    if stream_block(op) is not None:
        return StreamedCore(_kind(op), rows, columns, along_depth, STREAMED[rows, columns])
    return BlockCore(_kind(op), rows, columns, vector, depth, along_depth)


def _kind(op: Op) -> str:
    return ROUNDED_KIND if op.rounded else KINDS[op.inputs[0].dtype.name]


def _core_of(candidate: Candidate, kind: str, along_depth: bool) -> Core:
    rows, columns, stages = candidate.rows, candidate.columns, candidate.stages
    if candidate.core == "threads":
        return FmaCore(rows, columns, along_depth, stages)
    if candidate.is_streamed:
        return StreamedCore(kind, rows, columns, along_depth, stages)
    if candidate.by_warpgroups:
        return WgmmaCore(kind, rows, columns, along_depth, stages)
    return MmaCore(kind, rows, columns, candidate.warp_rows, candidate.warp_columns, along_depth, stages)
