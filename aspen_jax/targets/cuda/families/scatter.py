"""Scattering (cuda/kernels/scatter.h). Where there are many points, that would take too long: XLA scatters them."""

from __future__ import annotations

import dataclasses
import math

from aspen_jax.ir.program import Op
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.targets.cuda.code.kernel import Kernel, constant, input_type, writes

# By the number of a combination (ops/scatter.py); 0 replaces.
_COMBINE = (None, "add", "mul", "min", "max")

_MOST_POINTS = 1 << 14


@dataclasses.dataclass(frozen=True)
class ScatterShape:
    """Which updates meet an element of x, as ScatterShape in cuda/kernels/scatter.h says it.

    Attributes:
        rank: axes of x.
        walks: for each axis of x the axis of the updates that walks it; -1: none.
        chosen: of x: whether that axis chooses points.
        sizes: of windows along each axis of x.
        starts: where windows begin that no index places.
        last: where the last window begins that fits.
        num_points: axes of the updates that choose points.
        points: their numbers.
        met_by: for each of them the axis of x that it walks; -1: none.
        extents: of each of them.
        drops: whether windows that do not fit are left out; else they are clamped.
        may_share: whether the output may lie where x does.
    """

    rank: int
    walks: tuple[int, ...]
    chosen: tuple[bool, ...]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    last: tuple[int, ...]
    num_points: int
    points: tuple[int, ...]
    met_by: tuple[int, ...]
    extents: tuple[int, ...]
    drops: bool
    may_share: bool

    @classmethod
    def of(cls, op: Op) -> ScatterShape | None:
        """The shape of an op; None where there are too many points."""
        attrs, (x, updates) = op.attrs, op.inputs[:2]
        points, walks = tuple(attrs.index_axes), tuple(attrs.walks)
        extents = tuple(updates.shape[axis] for axis in points)
        if math.prod(extents) > _MOST_POINTS:
            return None
        sizes = tuple(updates.shape[walk] if walk >= 0 else 1 for walk in walks)
        return cls(
            len(x.shape),
            walks,
            tuple(walk in points for walk in walks),
            sizes,
            tuple(attrs.starts),
            tuple(extent - size for extent, size in zip(x.shape, sizes, strict=True)),
            len(points),
            points,
            tuple(walks.index(axis) if axis in walks else -1 for axis in points),
            extents,
            attrs.drops,
            x.view.is_dense(),
        )


@writes("scatter")
def _scatter(op: Op) -> Kernel | None:
    attrs, x, shape = op.attrs, op.inputs[0], ScatterShape.of(op)
    lane, name = lane_of(x.dtype), _COMBINE[attrs.combination]
    if shape is None or (name is not None and (lane not in ("f", "i") or x.dtype.name == "uint32")):
        return None
    combine = "replaced" if name is None else f"scalar::{name}_{lane}"
    # Of axes that choose points no index is asked.
    wanted = zip(attrs.components, shape.chosen, strict=True)
    indices = ["NoIndex" if of < 0 or chosen else input_type(op, of + 2) for of, chosen in wanted]
    return Kernel("Scatter", [input_type(op, 0), input_type(op, 1), combine, constant(shape), *indices])
