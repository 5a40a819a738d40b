"""What a thread block owns of a chain of products, as plain data: all blocks that are considered, and the one that is taken.

A block owns some rows and, of every product but the last, all columns. What is between stays in registers, where a warp has all
columns of its rows, or else in shared memory, where warps share them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from aspen_jax.ir.program import Op
from aspen_jax.targets.cuda.code.vectors import KINDS, whole
from aspen_jax.targets.cuda.device import MULTIPROCESSORS
from aspen_jax.targets.cuda.products.candidates import Architecture
from aspen_jax.targets.cuda.products.cores import FmaCore, MmaCore

# What all GPUs have that run our code.
_SHARED_BYTES = Architecture.of("").shared_bytes

_WARP, _STAGES, _UNIT = 32, 3, 32
_ROWS, _WARPS = (128, 64, 32), (4, 8)
# Four warps or more have 16 rows each of what stays in registers; and two warps or more 8 rows by 4 columns a thread.
_ROWS_HELD, _ROWS_OF_THREADS = (128, 64), (64, 32)

# Columns of the last product that a block sums up at once.
_AT_ONCE_HELD, _AT_ONCE = 64, 128

# Registers of a thread for sums and what is multiplied with them, at most. Copies, addresses and bounds take some 70 more.
_MOST_HELD, _MOST_OWN = 64, 72

# Of what stays in registers a program is spelt out for each element that a lane has: in so many instructions at most. Those that
# are not plain are functions of some.
_MOST_SPELT, _OF_FUNCTION, _OF_ELEMENT = 512, 24, 2
_PLAIN = ("abs_", "add_", "as_", "copy", "fma_", "max_", "min_", "mul_", "neg_", "relu_", "select", "square_", "sub_")


@dataclasses.dataclass(frozen=True)
class ChainBlock:
    """A thread block of a chain.

    Attributes:
        in_registers: whether what is between stays there.
        cores: what multiplies, for each product. All have the same rows and threads.
        itemsize: bytes of an element.
    """

    in_registers: bool
    cores: tuple[FmaCore | MmaCore, ...]
    itemsize: int

    @property
    def rows(self) -> int:
        """Rows that the block owns."""
        return self.cores[0].rows

    @property
    def threads(self) -> int:
        """Threads of the block: each has 8 x 4 elements (FmaCore in cuda/kernels/product.h), or its share of a warp's."""
        core = self.cores[0]
        of_thread = 8 * 4 if isinstance(core, FmaCore) else core.warp_rows * core.warp_columns // _WARP
        return core.rows * core.columns // of_thread

    @property
    def width(self) -> int:
        """Elements of the widest row between."""
        return max(core.columns for core in self.cores[:-1])

    @property
    def depth(self) -> int:
        """Elements of a chunk along the depth."""
        return 16 if isinstance(self.cores[0], FmaCore) else 64 // self.itemsize

    @property
    def shared_bytes(self) -> int:
        """Shared memory: chunks of operands, or in their place sums, and what is between."""
        vector = 16 // self.itemsize
        turns = []
        for number, core in enumerate(self.cores):
            columns = core.columns * (self.depth + vector) if core.along_depth else self.depth * (core.columns + 8)
            rows = core.rows * (self.depth + vector) if number == 0 else 0
            turns.append(max(core.stages * (rows + columns) * self.itemsize, 4 * core.rows * (core.columns + 8)))
        between = self.itemsize if self.in_registers else self.rows * (self.width + vector) * self.itemsize
        return whole(max(turns) + between, 32)

    @property
    def registers(self) -> int:
        """Registers of a thread for sums and what is multiplied with them."""
        cores = [core for core in self.cores if isinstance(core, MmaCore)]
        if not cores:
            return 8 * 4 + 8 + 4
        sums = [core.warp_rows * core.warp_columns // _WARP for core in cores]
        if not self.in_registers:
            return max(own + core.warp_columns // 4 + 4 for own, core in zip(sums, cores, strict=True))
        return max(max(pair) + pair[0] * self.itemsize // 4 for pair in itertools.pairwise(sums))

    def __str__(self) -> str:
        place = "registers" if self.in_registers else "shared memory"
        return f"{self.rows} rows by {self.threads} threads, what is between in {place}"

    @property
    def is_legal(self) -> bool:
        """Whether all GPUs can hold it."""
        most = _MOST_HELD if self.in_registers else _MOST_OWN
        return self.shared_bytes <= _SHARED_BYTES and self.registers <= most


def block_of(parts: Sequence[Op], along: Sequence[bool], *, exact: bool) -> ChainBlock | None:
    """The block of a chain; None where none is legal.

    Registers are nearest, so they come first. Of the blocks that are left it is the largest of which there is one for each
    multiprocessor: it reads weights least often. Where there is none, it is the smallest.

    Args:
        parts: the products.
        along: of each, whether its columns lie along the depth.
        exact: whether float32 is multiplied as it is.
    """
    rows = math.prod(parts[-1].output.shape[:-1])

    def order(block: ChainBlock) -> tuple[bool, bool, int, int]:
        fills = rows >= block.rows * MULTIPROCESSORS
        return not block.in_registers, not fills, -block.rows if fills else block.rows, block.threads

    return min((block for block in blocks(parts, along, exact=exact) if block.is_legal), key=order, default=None)


def blocks(parts: Sequence[Op], along: Sequence[bool], *, exact: bool) -> Iterator[ChainBlock]:
    """All that are considered, legal or not (as `block_of`)."""
    dtype = parts[0].inputs[0].dtype
    kind, itemsize = KINDS[dtype.name], dtype.itemsize
    columns = [part.output.shape[-1] for part in parts]
    *between, last = (whole(own, _UNIT) for own in columns)
    if exact and itemsize == 4:
        # Threads share out as many columns of each product.
        for rows in _ROWS_OF_THREADS:
            yield ChainBlock(False, tuple(FmaCore(rows, max(between), own, _STAGES) for own in along), itemsize)
        return
    # Float32 in registers asks for other places of the weights' lines, which vectors along the depth cannot have.
    if _is_spelt_out(parts, between) and not (itemsize == 4 and any(along[1:])):
        held = [
            whole(min(own, most), _UNIT * itemsize // 4) for own, most in zip(columns, (*between, _AT_ONCE_HELD), strict=True)
        ]
        for rows in _ROWS_HELD:
            cores = (MmaCore(kind, rows, own, 16, own, is_along, _STAGES) for own, is_along in zip(held, along, strict=True))
            yield ChainBlock(True, tuple(cores), itemsize)
    for rows, warps in itertools.product(_ROWS, _WARPS):
        shared = (_shared_out(rows, own, warps) for own in (*between, min(last, _AT_ONCE)))
        cores = (MmaCore(kind, rows, *own, is_along, _STAGES) for own, is_along in zip(shared, along, strict=True))
        yield ChainBlock(False, tuple(cores), itemsize)


def _shared_out(rows: int, columns: int, warps: int) -> tuple[int, int, int]:
    """The least columns from `columns` on that so many warps share out; rows and columns of a warp, the most nearly square."""
    for own in itertools.count(columns, _UNIT):
        tiles = [
            (rows // down, own * down // warps)
            for down in (1, 2, 4, 8)
            if warps % down == 0 and rows % (16 * down) == 0 and own * down % (16 * warps) == 0
        ]
        if tiles:
            return own, *min(tiles, key=sum)
    raise AssertionError("some multiple can be shared out")


def _is_spelt_out(parts: Sequence[Op], between: Sequence[int]) -> bool:
    """Whether programs are short enough to be spelt out for each element that a lane has."""
    for part, columns in zip(parts, between, strict=False):
        names = [] if part.program is None else [name for name, _ in part.program.instructions]
        each = _OF_ELEMENT * (1 + len(part.extra_inputs)) + sum(1 if name.startswith(_PLAIN) else _OF_FUNCTION for name in names)
        if each * columns // 2 > _MOST_SPELT:
            return False
    return True
