"""The cost model of a GPU: a worker is a place for a thread block."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from aspen_jax.apu import Machine
from aspen_jax.ir.program import Op
from aspen_jax.ops.attention_slices import ATTENTION_SLICES
from aspen_jax.ops.family import Work
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.ops.partial_reduce import PARTIAL_REDUCE, part_of
from aspen_jax.ops.slices import sliced
from aspen_jax.ops.stack import STACK, WEIGHTED, parts_of
from aspen_jax.ops.tf32 import RoundedInput
from aspen_jax.ops.transposed import TRANSPOSED, own_boxes
from aspen_jax.ops.transposed import part_of as untransposed
from aspen_jax.targets.cuda.code.kernel import why_no_code
from aspen_jax.targets.cuda.code.vectors import whole
from aspen_jax.targets.cuda.device import MULTIPROCESSORS, architecture, has_clusters
from aspen_jax.targets.cuda.families.chain import ChainPlan
from aspen_jax.targets.cuda.families.conv import box_of_pixels
from aspen_jax.targets.cuda.library.library import by_library
from aspen_jax.targets.cuda.products.blocks import block, row_axes
from aspen_jax.targets.cuda.products.candidates import Architecture
from aspen_jax.targets.cuda.products.conv_tile import FEWEST_CHANNELS, NARROW
from aspen_jax.targets.cuda.products.few_rows import FEW_ROWS
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, slices_for
from aspen_jax.targets.cuda.products.problem import WHOLE_VECTOR
from aspen_jax.targets.cuda.products.rounding import rounded_input
from aspen_jax.targets.cuda.products.streams import PLACES, is_streamed

NUM_BLOCKS = 2 * MULTIPROCESSORS

# Of a cluster, on every GPU that has them.
MOST_SLICES = 8

# A node of a CUDA graph on an H200, and one that starts before the one that it waits for is over (docs/results/h200.md).
LAUNCH_NS, EARLY_LAUNCH_NS = 1_070.0, 680.0


@dataclasses.dataclass(frozen=True)
class Gpu(Machine):
    """A GPU with as many multiprocessors as an H100 or H200, each of which holds two thread blocks of a product at once.

    What its tensor cores and its memory give a block are NVIDIA's figures, by half; on an H100 other rates
    made networks of batch 1 at most 3% faster (docs/results/h100.md).

    Attributes:
        launch_ns: from the end of an op's tiles to the beginning of those that wait for all of them.
        places: thread blocks that run at once.
        kernels: what was known when functions were compiled: when more is, they are compiled anew.
        clusters: whether thread blocks read each other's shared memory, as from compute capability 9.0 on.
        warpgroups: whether it has the matrix instructions of warpgroups.
        fewest_chunks: of 128 bytes of an operand, that a slice of a sum's depth has.
        fill_ns: until a streamed tile multiplies, and from then on until its last block is stored. Not measured.
        add_ns: for what the blocks of a cluster do beyond their slices: two barriers, and reading the sums. Not measured.
    """

    flops_per_ns: float = 700.0
    bytes_per_ns: float = 9.0
    piece_ns: float = 0.0
    tile_ns: float = 300.0
    launch_ns: float = LAUNCH_NS
    shortest_tile_ns: float = 1_000.0
    places: int = NUM_BLOCKS
    cache_bytes: int = 44 << 10  # shared memory, of which every device gives so much without being asked
    last_cache_bytes: int = 50 << 20
    fewest_chunks: int = 4
    clusters: bool = False
    warpgroups: bool = False
    add_ns: float = 1_000.0
    fill_ns: float = 1_000.0
    edges_of_reuse: int = 64  # launches wait for each other, not tiles: so these edges cost nothing in a run
    tiles_per_worker: int = 0  # the price alone decides: a block is the same time however little of it is asked for
    kernels: KernelChoices | None = None

    @classmethod
    def here(cls) -> Gpu:
        """The GPU for which code is compiled in this process."""
        name = architecture()
        own = cls(clusters=has_clusters(name), warpgroups=Architecture.of(name).warpgroups)
        # GPUs with clusters start launches early.
        return dataclasses.replace(own, launch_ns=EARLY_LAUNCH_NS) if own.clusters else own

    @property
    def stack_bytes(self) -> int:
        return self.cache_bytes

    def has_kernel(self, op: Op) -> bool:
        # Slices in float32 throughout have 64 threads, whose registers do not hold what they load (80 bytes of stack).
        is_wide = op.family is ATTENTION_SLICES and op.exact and op.inputs[0].dtype.itemsize == 4
        return not is_wide and why_no_code(op) is None

    def measured_slices(self, op: Op) -> int | None:
        """How many slices an op's depth is best cut into, where that was measured; None where the price decides."""
        return slices_for(op) if by_library(op) is None else 1

    def adds_slices(self, op: Op, slices: int) -> bool:
        """Whether the kernel of an op sums so many slices of its depth side by side and adds them up itself."""
        return self.clusters and slices <= MOST_SLICES and why_no_code(op.replace(slices=slices)) is None

    def whole_vector(self, op: Op) -> int:
        """How many adjacent elements of an op's operands should be read at a time; 1 where any number will do."""
        # Of few rows a product reads its columns in vectors too (few_rows.h).
        rows = math.prod(op.output.shape[axis] for axis in row_axes(op))
        return WHOLE_VECTOR if op.inputs[0].dtype.itemsize == 2 and (op.family is MATMUL or rows > 32) else 1

    def why_apart(self, parts: Sequence[Op]) -> str | None:
        """Why no kernel is there for ops, each of which reads the one before, as one stack; None where there is one."""
        if any(part.family not in WEIGHTED for part in parts):
            return None  # stacks of pools and blocks
        plan = ChainPlan.of([part.replace(slices=1) for part in parts], exact=any(part.exact for part in parts))
        return plan if isinstance(plan, str) else None

    def rounded_input(self, op: Op) -> RoundedInput | None:
        """Which input of an op of float32, whose elements it rounds to TF32, is best rounded once; None where none is."""
        return rounded_input(op) if self.warpgroups else None

    def places_of(self, op: Op) -> int:
        return op.slices * (PLACES if _is_streamed(op) else 1)

    def further_tiles(self, op: Op) -> float:
        # Its tiles are long, of many blocks. Who reads it is a launch, which waits for all of them.
        return 0.0 if _is_streamed(op) else super().further_tiles(op)

    def of_boxes(self, op: Op, boxes: np.ndarray) -> np.ndarray:
        """Estimated time of tiles; of products that of whole blocks."""
        if by_library(op) is None:
            return self._by_kernel(op, boxes)
        # A launch of its own, whose tile is the whole op: the library shares it out.
        whole = op.family.work(op, np.array([[(0, extent) for extent in op.output.shape]]))
        own = self.nanoseconds(Work(whole.flops / self.places, whole.bytes / self.places))
        return np.broadcast_to(own, len(boxes))

    def _by_kernel(self, op: Op, boxes: np.ndarray) -> np.ndarray:
        if op.family is TRANSPOSED:
            return self._by_kernel(untransposed(op), own_boxes(op, boxes))
        if op.family is PARTIAL_REDUCE:  # the elements that are reduced are still in the cache
            part = part_of(op)
            more = op.family.work(op, boxes).flops - part.family.work(part, boxes).flops
            return self._by_kernel(part, boxes) + more / self.flops_per_ns
        adds = self.add_ns if op.slices > 1 and sliced(op, op.slices) is not None else 0.0
        work = work_of_boxes(op, boxes)
        if is_streamed(op):
            return self.nanoseconds(Work(work.flops / PLACES, work.bytes / PLACES)) + self.fill_ns
        return self.nanoseconds(work) + adds


def work_of_boxes(op: Op, boxes: np.ndarray) -> Work:
    """What a thread block does for each tile of an op: of products whole blocks, of a sum in slices one slice.

    Args:
        op: the op.
        boxes: int64 [tiles, rank, 2], of its output.
    """
    if op.family is TRANSPOSED:
        return work_of_boxes(untransposed(op), own_boxes(op, boxes))
    own = sliced(op, op.slices) if op.slices > 1 else None
    if own is not None:
        one = np.broadcast_to(np.array([0, 1]), (len(boxes), 1, 2))
        return work_of_boxes(own, np.concatenate([one, boxes], axis=1))
    work = op.family.work(op, boxes)
    if (plan := _chain(op)) is not None:
        return _of_chain(plan, op, boxes, work)
    if op.family.name not in ("conv2d", "conv2d_slices", "matmul") or not op.output.shape or _has_few_rows(op):
        return work
    extents = np.maximum(boxes[:, :, 1] - boxes[:, :, 0], 1)
    columns = extents[:, -1]
    rows = extents[:, row_axes(op)].prod(axis=1)
    block_rows, block_columns = block(op)
    filled = rows * columns / (_whole_rows(op, extents, block_rows) * _whole_columns(op, columns, block_columns))
    # What a block does not need it does not load, but it waits as long. So no block is cut for nothing.
    return Work(work.flops / filled, work.bytes / filled)


def _is_streamed(op: Op) -> bool:
    """Whether an op is streamed, also where it is transposed or part of a partial reduction."""
    if op.family is TRANSPOSED:
        return is_streamed(untransposed(op))
    return is_streamed(part_of(op) if op.family is PARTIAL_REDUCE else op)


def _chain(op: Op) -> ChainPlan | None:
    """How an op is computed that is a chain of products."""
    plan = ChainPlan.of(parts_of(op), exact=op.exact) if op.family is STACK else None
    return plan if isinstance(plan, ChainPlan) else None


def _of_chain(plan: ChainPlan, op: Op, boxes: np.ndarray, work: Work) -> Work:
    """What whole blocks do."""
    rows = np.maximum(boxes[:, :-1, 1] - boxes[:, :-1, 0], 1).prod(axis=1)
    filled = whole(rows, plan.block.rows)
    return Work(filled * plan.flops_of_row(parts_of(op)), work.bytes * filled / rows)


def _has_few_rows(op: Op) -> bool:
    return op.family.name == "matmul" and math.prod(op.output.shape[axis] for axis in row_axes(op)) <= FEW_ROWS


def _whole_rows(op: Op, extents: np.ndarray, unit: int) -> np.ndarray:
    """The rows that whole blocks multiply; in some convolutions a block's rows are a box of pixels."""
    own = extents[:, row_axes(op)]
    pixels = None if op.family.name == "matmul" else box_of_pixels(op)
    return whole(own.prod(axis=1), unit) if pixels is None else (-(-own // np.array(pixels))).prod(axis=1) * unit


def _whole_columns(op: Op, columns: np.ndarray, unit: int) -> np.ndarray:
    """The columns that whole blocks multiply; each group of a convolution has columns of its own."""
    if op.family.name == "matmul" or op.attrs.groups == 1:
        return whole(columns, unit)
    per_group = op.output.shape[-1] // op.attrs.groups
    if min(op.inputs[1].shape[2], per_group) < FEWEST_CHANNELS:
        return whole(columns, unit)
    return np.maximum(columns // per_group, 1) * whole(np.minimum(columns, per_group), unit if per_group > NARROW else NARROW)
