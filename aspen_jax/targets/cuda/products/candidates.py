"""Ways to multiply a block of a product, as plain data: tens for each architecture (Bolt, section 3.2.2).

A candidate is what the templates of cuda/kernels/product.h take: rows and columns of a block, those of a warp, and stages. They
come from an architecture's limits by three rules:

- A warp's tile is the largest that its registers hold: of each element that it reads it makes the most products.
- A block has 4 or 8 warps. Fewer hide little latency, more wait for each other at every chunk.
- A small problem gets small blocks, so that there is one for each multiprocessor.

The order of a chunk in shared memory is no parameter, for only one is without conflicts of banks. Nor is the order of thread
blocks: that is the graph's. Into how many slices a depth is cut is the choice of passes/split_depth.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from aspen_jax.targets.cuda.products.problem import Problem

_WARP = 32

STREAMED_WARPGROUPS = "streamed warpgroups"


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The limits of a GPU (CUDA C++ programming guide, "Technical specifications per compute capability").

    Attributes:
        registers: of 32 bits, of a multiprocessor.
        registers_of_thread: the most that a thread can have.
        shared_bytes: the most shared memory that a thread block can have.
        warpgroups: whether it has the matrix instructions of warpgroups.
        multiprocessors: of its largest GPU.
    """

    registers: int = 65_536
    registers_of_thread: int = 255
    shared_bytes: int = 163 << 10
    warpgroups: bool = False
    multiprocessors: int = 108

    @classmethod
    def of(cls, name: str) -> Architecture:
        """The limits of an architecture, such as "sm_90a". An unknown one has what every GPU has that runs our code."""
        return _ARCHITECTURES.get(name.replace("compute", "sm"), cls(shared_bytes=99 << 10))


_ARCHITECTURES = {
    "sm_80": Architecture(),
    "sm_87": Architecture(),
    "sm_90a": Architecture(shared_bytes=227 << 10, warpgroups=True, multiprocessors=132),
    "sm_100a": Architecture(shared_bytes=227 << 10, multiprocessors=148),
    "sm_103a": Architecture(shared_bytes=227 << 10, multiprocessors=148),
}


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to multiply a block.

    Attributes:
        core: "warps" and "warpgroups" of tensor cores, "streamed warpgroups" with a warp beside them that copies, or "threads"
            in float32 throughout.
        rows, columns: of a block.
        warp_rows, warp_columns: of a warp; of a warpgroup; of a thread.
        stages: chunks of the depth in shared memory.
    """

    core: str
    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    stages: int

    @property
    def parts(self) -> int:
        """Warps, warpgroups or threads that share a block."""
        return self.rows * self.columns // (self.warp_rows * self.warp_columns)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        own = 4 * _WARP if self.by_warpgroups else {"warps": _WARP, "threads": 1}[self.core]
        return self.parts * own + (_WARP if self.is_streamed else 0)

    @property
    def by_warpgroups(self) -> bool:
        """Whether warpgroups multiply."""
        return self.core in ("warpgroups", STREAMED_WARPGROUPS)

    @property
    def is_streamed(self) -> bool:
        """Whether a warp beside them copies."""
        return self.core == STREAMED_WARPGROUPS

    def shared_bytes(self, itemsize: int) -> int:
        """Shared memory of a block: its stages, and later in their place its sums. What is streamed has both side by side."""
        # Rows of 64 bytes and 16 between them, of 128 bytes, or of 16 elements and 4; columns are no wider along the depth.
        line, apart = (128, 0) if self.by_warpgroups else (80, 8)
        stage = self.rows * line + max(self.columns * line, self.depth(itemsize) * (self.columns + apart) * itemsize)
        barriers = 1024  # and what aligns the stages
        if self.is_streamed:
            return self.stages * stage + 4 * self.parts * _PASSING_BYTES + barriers
        return max(self.stages * stage, 4 * self.rows * (self.columns + 8)) + barriers

    def registers(self, problem: Problem) -> int:
        """Registers of a thread: sums, what of the operands is multiplied with them, addresses of copies, and the rest."""
        chunks = (lines * self.depth(problem.itemsize) for lines in (self.rows, self.columns))
        copies = 0 if self.is_streamed else sum(math.ceil(chunk / problem.vector / self.threads) for chunk in chunks)
        if self.by_warpgroups:
            own = self.warp_rows * self.warp_columns // (4 * _WARP)
        elif self.core == "threads":
            own = self.warp_rows * self.warp_columns + self.warp_rows + self.warp_columns
        else:
            own = self.warp_rows * self.warp_columns // _WARP + self.warp_columns // 4 + 4
        return own + _REGISTERS_OF_COPY * copies + _OTHER_REGISTERS

    def depth(self, itemsize: int) -> int:
        """Elements of a chunk along the depth."""
        return 128 // itemsize if self.by_warpgroups else {"warps": 64 // itemsize, "threads": 16}[self.core]

    def __str__(self) -> str:
        each = f"{self.warp_rows} x {self.warp_columns}"
        return f"{self.rows} x {self.columns} by {self.parts} {self.core} of {each}, {self.stages} stages"


# Rows or columns of blocks. Larger ones would leave a multiprocessor's shared memory to fewer than two stages.
_ROWS, _COLUMNS = (16, 32, 64, 128, 256), (64, 128, 256)
_WARPS = (4, 8)
_STAGES = {"warps": (2, 3, 4), "warpgroups": (3, 4, 5), "threads": (2, 3)}

# Of 128 rows, as two warpgroups have: columns and stages. A warp's sums pass through 16 lines of 40 elements.
_STREAMED = ((256, 3), (256, 4), (128, 4), (128, 6), (64, 6), (64, 8))
_PASSING_BYTES = 16 * 40 * 4

# Registers of a thread for each copy that it begins of a chunk, and for counters and the bounds of a box. With these the estimate
# is above what the assembler says of all kernels but those that it gives more registers than they need.
_REGISTERS_OF_COPY, _OTHER_REGISTERS = 4, 72

# A thread in float32 throughout has so many rows and columns (FmaCore in cuda/kernels/product.h).
_OF_THREAD = (8, 4)

# A block may be so many times as large as what is left of the problem along an axis, and of a large problem there are so many
# blocks that at least this share of the multiprocessors has one.
_LEAST_BUSY = 1 / 2


def candidates(problem: Problem, architecture: Architecture) -> list[Candidate]:
    """What is worth timing for a problem: legal on an architecture, and of a size that suits the problem; the largest first."""
    suited = [item for item in legal(problem, architecture) if _is_suited(item, problem, architecture)]
    return sorted(suited, key=lambda item: (-item.rows * item.columns, item.core != "warpgroups", item.threads, item.stages))


def legal(problem: Problem, architecture: Architecture) -> Iterator[Candidate]:
    """What an architecture can hold and the problem's operands allow."""
    for item in _all(problem, architecture):
        of_thread = item.registers(problem)
        fits = of_thread <= architecture.registers_of_thread and of_thread * item.threads <= architecture.registers
        if fits and item.shared_bytes(problem.itemsize) <= architecture.shared_bytes:
            yield item


def _all(problem: Problem, architecture: Architecture) -> Iterator[Candidate]:
    if problem.by_warpgroups and architecture.warpgroups:
        # A warpgroup has 64 rows and all columns, 64 or 128 of them (WgmmaCore in cuda/kernels/warpgroup_mma.h).
        for rows, columns, stages in itertools.product((64, 128, 256), (64, 128), _STAGES["warpgroups"]):
            yield Candidate("warpgroups", rows, columns, 64, columns, stages)
        for columns, stages in _STREAMED:
            yield Candidate(STREAMED_WARPGROUPS, 128, columns, 64, columns, stages)
    # Warps do half of what warpgroups do. They are left the blocks that are too small for those.
    most_rows = 32 if problem.by_warpgroups and architecture.warpgroups else _ROWS[-1]
    core = "threads" if problem.exact and problem.itemsize == 4 else "warps"
    for rows, columns, stages in itertools.product(_ROWS, _COLUMNS, _STAGES[core]):
        if rows > most_rows:
            continue
        if core == "threads":
            item = Candidate(core, rows, columns, *_OF_THREAD, stages)
            if item.threads // _WARP in _WARPS:
                yield item
            continue
        for warps in _WARPS:
            tile = _warp_tile(rows, columns, warps)
            if tile is not None:
                yield Candidate(core, rows, columns, *tile, stages)


def _warp_tile(rows: int, columns: int, warps: int) -> tuple[int, int] | None:
    """The rows and columns of a warp where so many share a block: the most nearly square, which reads the least; None: none."""
    tiles = [
        (rows // down, columns * down // warps)
        for down in (1, 2, 4, 8)
        if warps % down == 0 and rows % (16 * down) == 0 and columns * down % (16 * warps) == 0
    ]
    return min(tiles, key=sum, default=None)


def _is_suited(item: Candidate, problem: Problem, architecture: Architecture) -> bool:
    """Whether a block is not mostly empty, and there are blocks for the multiprocessors unless it is among the smallest."""
    if item.rows > _unit(problem.rows, _ROWS) or item.columns > _unit(problem.columns, _COLUMNS):
        return False
    if item.rows * 4 < min(problem.rows, 128):
        return False  # so few rows read the columns too often
    blocks = problem.matrices * math.ceil(problem.rows / item.rows) * math.ceil(problem.columns / item.columns)
    return blocks >= _LEAST_BUSY * architecture.multiprocessors or item.rows * item.columns <= 64 * 64


def _unit(extent: int, sizes: tuple[int, ...]) -> int:
    """The least size that holds an extent, or the largest."""
    return next((size for size in sizes if size >= extent), sizes[-1])
