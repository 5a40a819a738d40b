"""Which elements of an input can change an op's outputs, found by trying: what a family's regions have to hold."""

from __future__ import annotations

import jax
import numpy as np

from aspen_jax.ir.program import Op


def reached(op: Op, index: int, box: np.ndarray) -> np.ndarray:
    """Which elements of input `index` can change the outputs in the box, found by changing one at a time."""
    inputs = [
        np.random.default_rng(k).standard_normal(item.shape, np.float32).astype(item.dtype) for k, item in enumerate(op.inputs)
    ]
    inside = tuple(slice(low, high) for low, high in box)
    compute = jax.jit(lambda *arrays: op.family.reference(op.attrs, *arrays)[inside])
    before = np.asarray(compute(*inputs))
    found = np.zeros(inputs[index].shape, bool)
    for place in np.ndindex(found.shape):
        kept = inputs[index][place]
        inputs[index][place] = 1e6
        found[place] = (np.asarray(compute(*inputs)) != before).any()
        inputs[index][place] = kept
    return found


def regions_hold_what_is_reached(op: Op, seed: int) -> bool:
    """Whether the regions of all inputs hold it, for some box of the output."""
    rng = np.random.default_rng(seed)
    lo = np.array([rng.integers(0, extent) for extent in op.output.shape])
    hi = np.array([rng.integers(low, extent) + 1 for low, extent in zip(lo, op.output.shape, strict=True)])
    box = np.stack([lo, hi], axis=1)
    for index in range(len(op.inputs)):
        (region,) = op.family.region(op, index, box[None])
        covered = np.zeros(op.inputs[index].shape, bool)
        covered[tuple(slice(low, high) for low, high in region)] = True
        if (reached(op, index, box) & ~covered).any():
            return False
    return True
