"""Views: how an op reads a value, as a dense reshape followed by an affine map per dimension (docs/graph_format.md).

All reasoning happens on the flat form, offset and strides in elements of the value, where transpose, slice, reverse and broadcast
are trivial and composition is mixed-radix arithmetic. `View.from_flat` finds the stored form again, in one canonical way, so that
equal views compare equal however they were built.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from aspen_jax import forks

MAX_RANK = 8
"""Dimensions that kernels take."""


class ViewDim(NamedTuple):
    """One dimension of a view: the R-dimension it walks (-1: none, a broadcast), its step and its extent."""

    source: int
    step: int
    extent: int


@dataclasses.dataclass(frozen=True)
class View:
    """A dense reshape to `base`, then `index[source] = start + step * i` for each view dimension.

    Views made by the methods below are canonical: an R-dimension has more than one element, a view dimension of extent 1 walks
    none, and an empty view starts at 0.
    """

    base: tuple[int, ...]
    starts: tuple[int, ...]
    dims: tuple[ViewDim, ...]

    @classmethod
    def identity(cls, shape: Sequence[int]) -> View:
        """The whole of a dense tensor of this shape."""
        return _identity(tuple(shape))

    @classmethod
    def from_flat(cls, size: int, offset: int, strides: Sequence[int], shape: Sequence[int]) -> View | None:
        """The view of a value of `size` elements that reads `offset + sum(stride * index)`; None if no reshape can express it.

        Walked R-dimensions nest by falling stride. A boundary between two of them is a number of elements that divides the size
        and every stride above it, and that what is below must not cross. Any multiple that also divides is then as good, so the
        largest, the greatest common divisor, decides.
        """
        if 0 in shape:
            return cls((size,), (0,), tuple(ViewDim(-1, 0, extent) for extent in shape))
        walked = sorted((d for d, extent in enumerate(shape) if extent > 1 and strides[d]), key=lambda d: -abs(strides[d]))
        lowest = offset + sum(strides[d] * (shape[d] - 1) for d in walked if strides[d] < 0)
        span = sum(abs(strides[d]) * (shape[d] - 1) for d in walked)
        base: list[int] = []
        starts: list[int] = []
        dims = [ViewDim(-1, 0, extent) for extent in shape]
        outer = size
        for d in walked:
            if lowest % outer + span >= outer:
                return None
            inner = math.gcd(outer, strides[d])
            dims[d] = ViewDim(len(base), strides[d] // inner, shape[d])
            base.append(outer // inner)
            starts.append(offset % outer // inner)
            span -= abs(strides[d]) * (shape[d] - 1)
            outer = inner
        if span >= outer:
            return None
        if outer > 1:
            base.append(outer)
            starts.append(offset % outer)
        return cls(tuple(base), tuple(starts), tuple(dims))

    @forks.cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape as the reader sees it."""
        return tuple(dim.extent for dim in self.dims)

    @property
    def rank(self) -> int:
        """Number of dimensions as the reader sees it."""
        return len(self.dims)

    @property
    def value_size(self) -> int:
        """Number of elements of the value behind the view."""
        return math.prod(self.base)

    def strides(self) -> tuple[int, ...]:
        """Step of each view dimension in elements of the value; 0 for a broadcast."""
        units = _dense_strides(self.base)
        return tuple(0 if dim.source < 0 else dim.step * units[dim.source] for dim in self.dims)

    def offset(self) -> int:
        """Element of the value at index 0 of the view."""
        return sum(start * unit for start, unit in zip(self.starts, _dense_strides(self.base), strict=True))

    def is_dense(self) -> bool:
        """Whether the view has the value's elements in the value's order, that is, only reshapes it."""
        return self.value_size == math.prod(self.shape) and self == View.identity(self.shape)

    def is_identity_of(self, shape: Sequence[int]) -> bool:
        """Whether the view is exactly the dense row-major tensor of this shape."""
        return self.shape == tuple(shape) and self.is_dense()

    def transpose(self, perm: Sequence[int]) -> View:
        """Dimension i of the result is dimension perm[i] of this view."""
        if sorted(perm) != list(range(self.rank)):
            raise ValueError(f"{tuple(perm)} is not a permutation of the {self.rank} dimensions of {self.shape}")
        return self._transposed(tuple(perm))

    @functools.lru_cache(maxsize=1 << 14)  # noqa: B019 - as `compose`
    def _transposed(self, perm: tuple[int, ...]) -> View:
        return dataclasses.replace(self, dims=tuple(self.dims[axis] for axis in perm))._canonical()

    def slice(self, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None) -> View:
        """Elements starts[d], starts[d] + strides[d], ... below limits[d] of each dimension, as jax.lax.slice."""
        steps = [1] * self.rank if strides is None else list(strides)
        fits = len(starts) == len(limits) == len(steps) == self.rank and all(
            0 <= lo <= hi <= extent and step > 0 for lo, hi, step, extent in zip(starts, limits, steps, self.shape, strict=True)
        )
        if not fits:
            raise ValueError(f"slice {tuple(starts)} to {tuple(limits)} by {tuple(steps)} does not fit shape {self.shape}")
        units = self.strides()
        shape = [-(-(hi - lo) // step) for lo, hi, step in zip(starts, limits, steps, strict=True)]
        offset = self.offset() + sum(lo * unit for lo, unit in zip(starts, units, strict=True))
        return self._affine(offset, [unit * step for unit, step in zip(units, steps, strict=True)], shape)

    def reverse(self, axes: Sequence[int]) -> View:
        """The given dimensions backwards."""
        if len(set(axes)) != len(axes) or not all(0 <= axis < self.rank for axis in axes):
            raise ValueError(f"axes {tuple(axes)} to reverse are not distinct dimensions of {self.shape}")
        units, offset = list(self.strides()), self.offset()
        for axis in axes:
            offset += units[axis] * (self.shape[axis] - 1)
            units[axis] = -units[axis]
        return self._affine(offset, units, self.shape)

    def broadcast_in_dim(self, shape: Sequence[int], broadcast_dimensions: Sequence[int]) -> View:
        """Dimension d becomes dimension broadcast_dimensions[d] of `shape`, in any order; the others repeat, as in jax.lax."""
        axes = list(broadcast_dimensions)
        fits = len(axes) == self.rank and all(
            0 <= axis < len(shape) and extent in (1, shape[axis]) for axis, extent in zip(axes, self.shape, strict=True)
        )
        if not fits or len(set(axes)) != len(axes):
            raise ValueError(f"shape {self.shape} does not broadcast to {tuple(shape)} along {tuple(axes)}")
        units = [0] * len(shape)
        for axis, unit, extent in zip(axes, self.strides(), self.shape, strict=True):
            units[axis] = unit if extent > 1 else 0
        return self._affine(self.offset(), units, shape)

    def reshape(self, shape: Sequence[int]) -> View | None:
        """The same elements in row-major order under another shape; None where that takes a copy."""
        return self.compose(View.identity(shape))

    @functools.lru_cache(maxsize=1 << 14)  # noqa: B019 - views are small, and layers that are alike ask for the same ones
    def compose(self, top: View) -> View | None:
        """The view that reads what `top` reads of a dense copy of this view; None where that takes a copy."""
        if top.value_size != math.prod(self.shape):
            raise ValueError(f"a view of {top.value_size} elements does not apply to shape {self.shape}")
        if 0 in top.shape:
            return self._affine(0, [0] * top.rank, top.shape)
        extents, units = self._merged_dims()

        def digits(index: int) -> list[int]:
            result = [0] * len(extents)
            for axis in reversed(range(len(extents))):
                index, result[axis] = divmod(index, extents[axis])
            return result

        # A walk along one dimension of `top` adds the same digits at every step, unless a digit overflows on the way.
        first = digits(top.offset())
        low, high = list(first), list(first)
        strides = [0] * top.rank
        for d, (step, extent) in enumerate(zip(top.strides(), top.shape, strict=True)):
            if extent == 1 or step == 0:
                continue
            move = [after - before for after, before in zip(digits(top.offset() + step), first, strict=True)]
            for axis, change in enumerate(move):
                low[axis] += min(0, change * (extent - 1))
                high[axis] += max(0, change * (extent - 1))
            strides[d] = sum(change * unit for change, unit in zip(move, units, strict=True))
        if min(low, default=0) < 0 or any(hi >= extent for hi, extent in zip(high, extents, strict=True)):
            return None
        offset = self.offset() + sum(digit * unit for digit, unit in zip(first, units, strict=True))
        return View.from_flat(self.value_size, offset, strides, top.shape)

    def region(self, value_shape: Sequence[int], boxes: np.ndarray) -> np.ndarray:
        """The box of the value that holds every element a box of the view reads.

        A walk that crosses rows of the value counts as touching whole rows, so a box may cover more than is read where the
        reshape does not map boxes to boxes; never less, and the result is exact where the elements read are a box.

        Args:
            value_shape: the value's shape.
            boxes: int array [T, rank, 2] of half-open ranges inside the view; empty ranges give empty boxes.

        Returns:
            int64 array [T, len(value_shape), 2].
        """
        boxes = np.asarray(boxes, np.int64)
        counts = boxes[:, :, 1] - boxes[:, :, 0] - 1
        empty = (counts < 0).any(axis=1)
        # The elements read are first + [0, dense] + sum(stride * [0, count]), unravelled from the innermost dimension outwards.
        first = np.full(len(boxes), self.offset(), np.int64)
        dense = np.zeros(len(boxes), np.int64)
        walks: list[tuple[int, np.ndarray]] = []
        for d, stride in enumerate(self.strides()):
            first += stride * boxes[:, d, 0] + min(0, stride) * counts[:, d]
            if stride:
                walks.append((abs(stride), counts[:, d]))
        result = np.empty((len(boxes), len(value_shape), 2), np.int64)
        for axis in reversed(range(len(value_shape))):
            extent = max(1, value_shape[axis])
            dense = sum((stride * count for stride, count in walks if stride % extent), dense)
            walks = [(stride // extent, count) for stride, count in walks if stride % extent == 0]
            first, column = np.divmod(first, extent)
            crosses = column + dense >= extent
            result[:, axis, 0] = np.where(crosses, 0, column)
            result[:, axis, 1] = np.where(crosses, extent, column + dense + 1)
            dense = (column + dense) // extent
        result[empty] = 0
        return result

    def gather(self, array: np.ndarray) -> np.ndarray:
        """What the view reads of a value: a read-only array of the view's shape, where possible without a copy."""
        if array.size != self.value_size:
            raise ValueError(f"a view of {self.value_size} elements does not apply to an array of shape {array.shape}")
        strides = [stride * array.itemsize for stride in self.strides()]
        return np.lib.stride_tricks.as_strided(array.reshape(-1)[self.offset() :], self.shape, strides, writeable=False)

    def _affine(self, offset: int, strides: Sequence[int], shape: Sequence[int]) -> View:
        """An affine map of this view's dimensions, which can always be expressed."""
        view = View.from_flat(self.value_size, offset, strides, shape)
        assert view is not None
        return view

    def _canonical(self) -> View:
        return self._affine(self.offset(), self.strides(), self.shape)

    def _merged_dims(self) -> tuple[list[int], list[int]]:
        """Extents and strides with every run of dimensions that one stride can walk merged into one."""
        extents: list[int] = []
        units: list[int] = []
        for stride, extent in zip(self.strides(), self.shape, strict=True):
            if extent == 1:
                continue
            if extents and units[-1] == stride * extent:
                extents[-1] *= extent
                units[-1] = stride
            else:
                extents.append(extent)
                units.append(stride)
        return extents, units

    def __str__(self) -> str:
        free = set(range(len(self.base))) - {dim.source for dim in self.dims}
        parts = [f"d{j}={self.starts[j]}" for j in sorted(free)]
        for source, step, extent in self.dims:
            if source < 0:
                parts.append(f"new {extent}")
            elif (self.starts[source], step, extent) == (0, 1, self.base[source]):
                parts.append(f"d{source}")
            else:
                start = self.starts[source]
                parts.append(f"d{source}[{start}:{start + step * extent}:{step}]")
        return f".view({'x'.join(map(str, self.base))})[{', '.join(parts)}]"


@functools.lru_cache(maxsize=4096)
def _identity(shape: tuple[int, ...]) -> View:
    view = View.from_flat(math.prod(shape), 0, _dense_strides(shape), shape)
    assert view is not None
    return view


def _dense_strides(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for axis in reversed(range(len(shape) - 1)):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides
