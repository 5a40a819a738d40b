"""Laying windows of updates on a tensor where integer operands say: `scatter` and `dynamic_update_slice`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax.ir.program import Operand
from aspen_jax.ops.attrs import Attrs
from aspen_jax.ops.block import box_sizes, epilogue_work
from aspen_jax.ops.converters import Builder, Equation, Unsupported, converts, need_dtypes
from aspen_jax.ops.family import OpFamily, Typed, Work
from aspen_jax.ops.layout import viewed

if TYPE_CHECKING:
    from aspen_jax.ir.program import Op

# How an update meets what is there; numbered as in cpu/scatter.cc.
_REPLACE = 0
_COMBINATIONS: dict[str, int] = {"scatter": _REPLACE, "scatter-add": 1, "scatter-mul": 2, "scatter-min": 3, "scatter-max": 4}
_REFERENCES: tuple[Callable[..., jax.Array], ...] = (
    lax.scatter,
    lax.scatter_add,
    lax.scatter_mul,
    lax.scatter_min,
    lax.scatter_max,
)

# Each tile loads all points and compares them with its box, which takes 1.5 ns a point: about as long as so many bytes.
_BYTES_OF_POINT = 40


@dataclasses.dataclass(frozen=True)
class ScatterAttrs(Attrs):
    """Attributes of scatter. `walks`, `components` and `starts` have an entry for each axis of x.

    Attributes:
        combination: how an update meets what is there: 0 replaces it, 1 adds, 2 multiplies, 3 and 4 take the less or greater.
        walks: the axis of the updates that walks it; -1 where windows have one element along it.
        components: the index operand that gives the windows' start along it, or -1.
        starts: the windows' start along it where there is no component.
        index_axes: the axes of the updates that walk the index operands, ascending, an entry for each of their axes.
        drops: whether windows that do not fit are left out; else their start is clamped.
    """

    combination: int
    walks: tuple[int, ...]
    components: tuple[int, ...]
    starts: tuple[int, ...]
    index_axes: tuple[int, ...]
    drops: bool = False


class Scatter(OpFamily):
    """scatter(x, updates, an operand of integers for each component of an index): any dtype; combined: float32 or int32."""

    name = "scatter"
    alike_everywhere = False  # indices are compared with where the box lies
    kernel = "scatter"
    attrs_type = ScatterAttrs
    rewrites = 0

    def infer(self, attrs: ScatterAttrs, inputs: Sequence[Typed]) -> Typed:
        (shape, dtype), (updates, _), *_ = inputs
        if not len(attrs.walks) == len(attrs.components) == len(attrs.starts) == len(shape):
            raise ValueError(f"scatter on {shape} with {attrs}")
        if set(attrs.walks) | set(attrs.index_axes) | {-1} != {-1, *range(len(updates))}:
            raise ValueError(f"scatter of {updates} with {attrs}")
        return shape, dtype

    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        attrs: ScatterAttrs = op.attrs
        if index == 0:
            return boxes
        updates = op.inputs[1].shape
        region = np.empty((len(boxes), len(updates), 2), np.int64)
        region[:, :, 0], region[:, :, 1] = 0, np.array(updates, np.int64)
        meets = np.ones(len(boxes), bool)
        for axis, (walk, component, start) in enumerate(zip(attrs.walks, attrs.components, attrs.starts, strict=True)):
            if component >= 0:
                continue
            inside = np.clip(boxes[:, axis] - start, 0, updates[walk] if walk >= 0 else 1)
            meets &= inside[:, 1] > inside[:, 0]
            if walk >= 0:
                region[:, walk] = inside
        if index > 1:  # read even where no window can meet the box
            return region[:, list(attrs.index_axes)].reshape(len(boxes), len(attrs.index_axes), 2)
        region[~meets] = 0
        return region

    def work(self, op: Op, boxes: np.ndarray) -> Work:
        own = epilogue_work(op, boxes)
        read = box_sizes(boxes) * op.output.dtype.itemsize
        if op.in_place:
            laid = np.minimum(box_sizes(boxes), box_sizes(self.main_region(op, 1, boxes))) * op.output.dtype.itemsize
            own, read = Work(own.flops, laid), laid
        for k in range(2, len(op.inputs)):
            points = box_sizes(self.main_region(op, k, boxes))
            read = read + points * _BYTES_OF_POINT
        return Work(own.flops, own.bytes + read)

    def reference(self, attrs: ScatterAttrs, *inputs: jax.Array) -> jax.Array:
        x, updates, *components = inputs
        windows = [axis for axis, walk in enumerate(attrs.walks) if walk >= 0 and walk not in attrs.index_axes]
        batching = [axis for axis, walk in enumerate(attrs.walks) if walk in attrs.index_axes]
        shape = tuple(updates.shape[axis] for axis in attrs.index_axes)
        moved = [axis for axis in range(x.ndim) if axis not in batching]
        starts = [
            components[attrs.components[axis]].astype(jnp.int32)
            if attrs.components[axis] >= 0
            else jnp.full(shape, attrs.starts[axis], jnp.int32)
            for axis in moved
        ]
        numbers = lax.ScatterDimensionNumbers(
            update_window_dims=tuple(sorted(attrs.walks[axis] for axis in windows)),
            inserted_window_dims=tuple(axis for axis, walk in enumerate(attrs.walks) if walk < 0),
            scatter_dims_to_operand_dims=tuple(moved),
            operand_batching_dims=tuple(batching),
            scatter_indices_batching_dims=tuple(attrs.index_axes.index(attrs.walks[axis]) for axis in batching),
        )
        assert windows == sorted(windows, key=lambda axis: attrs.walks[axis]), "lax.scatter keeps the order of the axes of x"
        mode = lax.GatherScatterMode.FILL_OR_DROP if attrs.drops else lax.GatherScatterMode.CLIP
        indices = jnp.stack(starts, -1) if starts else jnp.zeros((*shape, 0), jnp.int32)
        return _REFERENCES[attrs.combination](x, indices, updates, numbers, mode=mode)


SCATTER = Scatter()


@converts("dynamic_update_slice")
def _convert_dynamic_update_slice(build: Builder, equation: Equation, x: Operand, update: Operand, *starts: Operand) -> Operand:
    components, known = [-1] * len(x.shape), [0] * len(x.shape)
    moving = []
    for axis, (start, size) in enumerate(zip(equation.scalars[2:], update.shape, strict=True)):
        last = x.shape[axis] - size
        if start is None and last > 0:
            components[axis] = len(moving)
            moving.append(starts[axis])
        elif start is not None:
            known[axis] = min(max(int(start), 0), last)
    attrs = ScatterAttrs(_REPLACE, tuple(range(len(x.shape))), tuple(components), tuple(known), ())
    return build.op(SCATTER, attrs, [x, update, *moving])


@converts(*_COMBINATIONS)
def _convert_scatter(build: Builder, equation: Equation, x: Operand, indices: Operand, updates: Operand) -> Operand:
    params, numbers = equation.params, equation.params["dimension_numbers"]
    combination = _COMBINATIONS[equation.primitive]
    mode = lax.GatherScatterMode.from_any(params["mode"])
    if combination != _REPLACE:
        need_dtypes(equation, (x, updates), "float32", "int32")
    elif not _is_replacement(params["update_jaxpr"]):
        raise Unsupported("scatter with a function of its own")
    if mode == lax.GatherScatterMode.ONE_HOT:
        raise Unsupported(f"{equation.primitive} by one-hot products")
    batch_shape = indices.shape[:-1]
    rank = len(x.shape)
    index_axes = tuple(axis for axis in range(len(updates.shape)) if axis not in numbers.update_window_dims)
    kept = [axis for axis in range(rank) if axis not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
    walks, components = [-1] * rank, [-1] * rank
    for axis, walk in zip(kept, numbers.update_window_dims, strict=True):
        walks[axis] = walk
    for axis, index_axis in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        walks[axis] = index_axes[index_axis]
    if any(walk < 0 and extent == 0 for walk, extent in zip(walks, x.shape, strict=True)):
        return x
    starts = []
    for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
        components[axis] = k
        view = indices.view.slice((0,) * len(batch_shape) + (k,), (*batch_shape, k + 1)).reshape(batch_shape)
        assert view is not None, "dropping a dimension of one element needs no copy"
        starts.append(viewed(build, indices, view))
    drops = mode != lax.GatherScatterMode.CLIP
    attrs = ScatterAttrs(combination, tuple(walks), tuple(components), (0,) * rank, index_axes, drops)
    return build.op(SCATTER, attrs, [x, updates, *starts])


def _is_replacement(jaxpr: Any) -> bool:
    """Whether the function by which an update meets what is there is lax.scatter's own, which takes the update."""
    return jaxpr is None or (not jaxpr.eqns and jaxpr.outvars[0] is jaxpr.invars[1])
