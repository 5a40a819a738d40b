"""The cost model: nanoseconds from work."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from aspen_jax import _engine
from aspen_jax.cost.measured import Measurements, measurements
from aspen_jax.ir.program import Op
from aspen_jax.ops.family import Work


@dataclasses.dataclass(frozen=True)
class Machine:
    """What one worker can do, and what a tile costs beside its work.

    The defaults are one core of a machine with AVX-512. Within 10%, ResNet-50, MobileNetV2 and VGG-16 take the same time for half
    the rates, for twice the tiles a worker and for shortest tiles of 10 to 20 us. They are constants, not measured at start-up,
    because the graph's bytes are part of the key of JAX's persistent compilation cache; only whether there are
    matrix units and how many rows are few is asked of the processor's kernels, since algorithms depend on it.

    Attributes:
        flops_per_ns: rate of a kernel whose operands are in cache.
        bytes_per_ns: rate at which a worker streams operands past its private cache.
        piece_ns: from one piece of a matrix to the next, beyond reading it: most lie on pages of their own.
        tile_ns: scheduling, starting the kernel and warming its registers and caches.
        shortest_tile_ns: below this a tile is merged with its neighbours wherever it has any.
        tiles_per_worker: an op that is worth it gets at least so many.
        bf16_units: whether a worker has matrix units for bfloat16 (ops/bf16x6.py).
        few_rows: products of up to so many rows are bound by reading a matrix, which kernels do once and in place.
        cache_bytes: of a worker's own cache, in which values between the parts of a stack must fit.
        last_cache_bytes: of the cache before memory, which an op's input and output must exceed for a stack of pools to pay.
        most_parts: of a stack.
        fewest_bytes: whether a stack is as long as fits at all. Short strips move the fewest bytes and take more time.
        edges_of_reuse: that a tile may have for the sake of a smaller workspace. A worker counts each down.
        measured: ops that were timed on this machine; the rest is estimated.
    """

    flops_per_ns: float = 200.0
    bytes_per_ns: float = 20.0
    piece_ns: float = 6.0
    tile_ns: float = 1_500.0
    shortest_tile_ns: float = 8_000.0
    tiles_per_worker: int = 4
    bf16_units: bool = False
    few_rows: int = 6
    cache_bytes: int = 1 << 20
    last_cache_bytes: int = 32 << 20
    most_parts: int = 64
    fewest_bytes: bool = False
    edges_of_reuse: int = 16
    measured: Measurements = Measurements()  # noqa: RUF009 - immutable

    @classmethod
    def here(cls, num_workers: int) -> Machine:
        """This machine, with all that was measured on it for this number of workers."""
        return dataclasses.replace(cls.unmeasured(), measured=measurements(num_workers))

    @classmethod
    def unmeasured(cls) -> Machine:
        """This machine by what its processor has alone."""
        return cls(
            bf16_units=_engine.cpu_target() == "amx", few_rows=_engine.cpu_few_rows(), cache_bytes=_engine.cpu_l2_cache_bytes()
        )

    @property
    def stack_bytes(self) -> int:
        """What the values between a stack's parts may take: they share the cache with inputs, weights and the output."""
        return self.cache_bytes * 7 // 8

    def nanoseconds(self, work: Work) -> np.ndarray:
        """Estimated time of each tile: arithmetic and streaming overlap only in part, so the longer one and half the other."""
        compute, stream = work.flops / self.flops_per_ns, work.bytes / self.bytes_per_ns + work.pieces * self.piece_ns
        return self.tile_ns + np.maximum(compute, stream) + np.minimum(compute, stream) / 2

    def has_kernel(self, op: Op) -> bool:
        """Whether an op that a pass would make can run."""
        return True

    def places_of(self, op: Op) -> int:
        """Workers that a tile of an op takes."""
        return op.slices

    def further_tiles(self, op: Op) -> float:
        """How many tiles' time who reads an op waits beyond the rounds of its tiles: shorter tiles let readers begin earlier."""
        return 1.0

    def of_boxes(self, op: Op, boxes: np.ndarray) -> np.ndarray:
        """Estimated time of each tile of an op.

        Args:
            op: the op.
            boxes: int64 [tiles, rank, 2], of its output.
        """
        return self.nanoseconds(op.family.work(op, boxes))

    def of_ops(self, ops: Sequence[Op]) -> float:
        """Estimated nanoseconds of whole ops, one after the other on one worker."""
        whole = [np.array([[(0, extent) for extent in op.output.shape]], np.int64).reshape(1, -1, 2) for op in ops]
        return sum(float(self.of_boxes(op, box)[0]) for op, box in zip(ops, whole, strict=True))

    def are_cheaper(self, ops: Sequence[Op], others: Sequence[Op]) -> bool:
        """Whether `ops` take less time than `others`: as measured, where all of them were, or else as estimated."""
        measured = [[self.measured.of(op) for op in side] for side in (ops, others)]
        if all(item is not None for side in measured for item in side):
            times = [sum(item.nanoseconds for item in side if item is not None) for side in measured]
        else:
            times = [self.of_ops(ops), self.of_ops(others)]
        return times[0] < times[1]
