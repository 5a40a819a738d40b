"""Gathering windows that begin where integer operands say: `gather` and `dynamic_slice`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ir.view import MAX_RANK, View
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts
from aspen_jax.ops.family import OpFamily, Typed, Work
from aspen_jax.ops.layout import reshaped, viewed

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op


@dataclasses.dataclass(frozen=True)
class GatherAttrs(Attrs):
    """Attributes of gather. The first three have an entry for each axis of x.

    Attributes:
        walks: the output axis that walks it; -1 where it is dropped from the windows.
        components: the index operand that gives the windows' start along it; -1 where they start at 0.
        sizes: the windows' extent along it.
        index_axes: the output axes that walk the index operands, ascending, an entry for each of their axes.
        fills: whether a window that does not fit into x is filled; else its start is clamped.
        fill: the bits of the element to fill with, sign-extended.
    """

    walks: tuple[int, ...]
    components: tuple[int, ...]
    sizes: tuple[int, ...]
    index_axes: tuple[int, ...]
    fills: bool = False
    fill: int = 0


class Gather(OpFamily):
    """gather(x, an operand of integers for each component of an index), x of any dtype."""

    name = "gather"
    kernel = "gather"
    attrs_type = GatherAttrs

    def infer(self, attrs: GatherAttrs, inputs: Sequence[Typed]) -> Typed:
        (shape, dtype), *indices = inputs
        if not len(attrs.walks) == len(attrs.components) == len(attrs.sizes) == len(shape):
            raise ValueError(f"gather of {shape} with {attrs}")
        if any(not 0 <= size <= extent for size, extent in zip(attrs.sizes, shape, strict=True)):
            raise ValueError(f"gather of windows of {attrs.sizes} from {shape}")
        out = {walk: size for walk, size in zip(attrs.walks, attrs.sizes, strict=True) if walk >= 0}
        for index_shape, _ in indices:
            out.update(zip(attrs.index_axes, index_shape, strict=True))
        if sorted(out) != list(range(len(out))):
            raise ValueError(f"gather of {shape} with {attrs} leaves an output axis unwalked")
        return tuple(out[axis] for axis in range(len(out))), dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        attrs: GatherAttrs = op.attrs
        if index > 0:
            region = boxes[:, list(attrs.index_axes)].reshape(len(boxes), len(attrs.index_axes), 2).copy()
        else:
            region = np.empty((len(boxes), len(attrs.walks), 2), np.int64)
            for axis, (walk, component) in enumerate(zip(attrs.walks, attrs.components, strict=True)):
                whole = (0, op.inputs[0].shape[axis])
                region[:, axis] = whole if component >= 0 else boxes[:, walk] if walk >= 0 else (0, 1)
        region[(boxes[:, :, 1] <= boxes[:, :, 0]).any(axis=1)] = 0
        return region

    def attrs_of_part(self, op: Op, part: Op) -> GatherAttrs:
        # Windows are as long as x is along an axis that walks a batch.
        attrs: GatherAttrs = op.attrs
        extents = zip(attrs.sizes, op.inputs[0].shape, part.inputs[0].shape, strict=True)
        return dataclasses.replace(attrs, sizes=tuple(size if whole == own else min(size, own) for size, whole, own in extents))

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        indices = sum(box_sizes(self.main_region(op, k, boxes)) * op.inputs[k].dtype.itemsize for k in range(1, len(op.inputs)))
        return Work(own.flops, own.bytes + box_sizes(boxes) * op.output.dtype.itemsize + indices)

    def reference(self, attrs: GatherAttrs, *inputs: jax.Array) -> jax.Array:
        x, *components = inputs
        batching = [axis for axis, walk in enumerate(attrs.walks) if walk in attrs.index_axes]
        offsets = [axis for axis, walk in enumerate(attrs.walks) if walk >= 0 and walk not in attrs.index_axes]
        order = sorted(offsets, key=lambda axis: attrs.walks[axis])
        numbers = lax.GatherDimensionNumbers(
            offset_dims=tuple(attrs.walks[axis] for axis in order),
            collapsed_slice_dims=tuple(axis for axis, walk in enumerate(attrs.walks) if walk < 0),
            start_index_map=tuple(attrs.components.index(k) for k in range(len(components))),
            operand_batching_dims=tuple(batching),
            start_indices_batching_dims=tuple(attrs.index_axes.index(attrs.walks[axis]) for axis in batching),
        )
        assert order == offsets, "lax.gather keeps the order of the axes of x"
        indices = jnp.stack(components, -1) if components else jnp.zeros((0,), jnp.int32)
        mode = lax.GatherScatterMode.FILL_OR_DROP if attrs.fills else lax.GatherScatterMode.CLIP
        sizes = [1 if axis in batching else size for axis, size in enumerate(attrs.sizes)]
        return lax.gather(x, indices, numbers, sizes, mode=mode, fill_value=_element(attrs.fill, np.dtype(x.dtype)))


GATHER = Gather()


def _bits(element: np.ndarray) -> int:
    """The bits of an element, sign-extended."""
    return int(element.reshape(()).view(f"i{element.dtype.itemsize}"))


def _element(bits: int, dtype: np.dtype) -> Any:
    return np.array(bits, f"i{dtype.itemsize}").view(dtype)[()]


@converts("gather")
def _convert_gather(build: Builder, equation: Equation, x: Operand, indices: Operand) -> Operand:
    params, numbers = equation.params, equation.params["dimension_numbers"]
    mode = lax.GatherScatterMode.from_any(params["mode"])
    if mode == lax.GatherScatterMode.ONE_HOT:
        raise Unsupported("gather by one-hot products")
    if not numbers.start_index_map:
        raise Unsupported("gather without an index")
    sizes = list(params["slice_sizes"])
    rank, batch_rank = len(equation.shape), len(indices.shape) - 1
    index_axes = tuple(axis for axis in range(rank) if axis not in numbers.offset_dims)
    kept = [axis for axis in range(len(sizes)) if axis not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)]
    walks, components = [-1] * len(sizes), [-1] * len(sizes)
    for axis, out_axis in zip(kept, numbers.offset_dims, strict=True):
        walks[axis] = out_axis
    for axis, index_axis in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        walks[axis], sizes[axis] = index_axes[index_axis], x.shape[axis]
    starts = []
    for k, axis in enumerate(numbers.start_index_map):
        components[axis] = k
        view = indices.view.slice((0,) * batch_rank + (k,), (*indices.shape[:-1], k + 1)).reshape(indices.shape[:-1])
        assert view is not None, "dropping a dimension of one element needs no copy"
        starts.append(viewed(build, indices, view))
    if any(walk < 0 and size != 1 for walk, size in zip(walks, sizes, strict=True)):
        raise Unsupported("gather that drops an axis of an empty window")
    fills = mode == lax.GatherScatterMode.FILL_OR_DROP
    attrs = GatherAttrs(tuple(walks), tuple(components), tuple(sizes), index_axes, fills)
    known = equation.arrays[1]
    view = None if known is None or 0 in equation.shape else _view(attrs, x, np.moveaxis(known, -1, 0), rank)
    if view is not None:
        return reshaped(build, viewed(build, x, view), equation.shape)
    fill = _bits(np.asarray(params["fill_value"]).astype(equation.dtype)) if fills else 0
    return build.op(GATHER, dataclasses.replace(attrs, fill=fill), [x, *starts])


def _view(attrs: GatherAttrs, x: Operand, starts: np.ndarray, rank: int) -> View | None:
    """What a gather reads as a view of x, where known starts [components, *index axes] are regular.

    That is, where they are a sum of a term for each index axis, and each term a number of steps, or as many repeats of each step
    (each row twice, as in an upsampling). An axis of the output may be two axes of the view.
    """
    strides = x.view.strides()
    axis_of = [attrs.components.index(k) for k in range(len(starts))]
    limits = [x.shape[axis] - attrs.sizes[axis] for axis in axis_of]
    starts = starts.astype(np.int64)
    clamped = np.clip(starts, 0, np.reshape(limits, (-1,) + (1,) * (starts.ndim - 1)))
    if attrs.fills and (clamped != starts).any():
        return None
    # Where in x each window begins, but for what walks the index axes.
    begin = np.tensordot(np.array([strides[axis] for axis in axis_of], np.int64), clamped, 1)
    origin = begin[(0,) * begin.ndim]
    terms = [np.moveaxis(begin, axis, 0)[(slice(None),) + (0,) * (begin.ndim - 1)] - origin for axis in range(begin.ndim)]
    if (begin != origin + sum(np.ix_(*terms), np.int64(0))).any():
        return None
    shape: list[int] = []
    steps: list[int] = []
    for out_axis in range(rank):
        if out_axis not in attrs.index_axes:
            axis = attrs.walks.index(out_axis)
            shape.append(attrs.sizes[axis])
            steps.append(strides[axis])
            continue
        term = terms[attrs.index_axes.index(out_axis)]
        if out_axis in attrs.walks:
            term = term + np.arange(term.size) * strides[attrs.walks.index(out_axis)]
        split = _split(term)
        if split is None:
            return None
        shape += split[0]
        steps += split[1]
    return View.from_flat(x.view.value_size, x.view.offset() + int(origin), steps, shape) if len(shape) <= MAX_RANK else None


def _split(term: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Extents and strides of one or two dimensions that walk these offsets, the first of which is 0."""
    if term.size == 1:
        return (1,), (0,)
    steps = np.diff(term)
    turns = np.flatnonzero(steps != steps[0])
    if not turns.size:
        return (term.size,), (int(steps[0]),)
    inner = int(turns[0]) + 1
    if term.size % inner:
        return None
    rows = term.reshape(-1, inner)
    outer_step = rows[1, 0]
    if (rows != np.add.outer(np.arange(len(rows)) * outer_step, rows[0])).any():
        return None
    return rows.shape, (int(outer_step), int(steps[0]))


@converts("dynamic_slice")
def _convert_dynamic_slice(build: Builder, equation: Equation, x: Operand, *starts: Operand) -> Operand:
    sizes = tuple(equation.params["slice_sizes"])
    if len(starts) != len(sizes):
        raise Unsupported("dynamic_slice with a dynamic size")
    # What is known when tracing is a view; the kernel moves along the other axes.
    lows, highs = [0] * len(sizes), list(x.shape)
    moving = []
    for axis, (start, size) in enumerate(zip(equation.scalars[1:], sizes, strict=True)):
        if size == x.shape[axis]:
            continue
        if start is None:
            moving.append(axis)
        else:
            lows[axis] = min(max(int(start), 0), x.shape[axis] - size)
            highs[axis] = lows[axis] + size
    known = viewed(build, x, x.view.slice(lows, highs))
    if not moving:
        return known
    components = tuple(moving.index(axis) if axis in moving else -1 for axis in range(len(sizes)))
    attrs = GatherAttrs(tuple(range(len(sizes))), components, sizes, ())
    return build.op(GATHER, attrs, [known, *(starts[axis] for axis in moving)])
