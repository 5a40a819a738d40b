"""Convolutions of an input with zeros between its elements: transposed convolutions, and gradients of those with strides.

Where the input's elements are s apart, every s-th pixel of the output meets the same taps of the window. Those of each such phase
are a convolution of the input as it is by its own part of the window (Dumoulin and Visin, "A guide to convolution arithmetic for
deep learning", section 4), which does one in s * s of the multiplications that the zeros would take.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from aspen_jax.ir.program import Operand
from aspen_jax.ops.concatenate import CONCATENATE, ConcatenateAttrs
from aspen_jax.ops.converters import Builder
from aspen_jax.ops.elementwise import fill
from aspen_jax.ops.layout import reshaped, transposed, viewed


def by_phases(
    build: Builder,
    x: Operand,
    w: Operand,
    spread: Sequence[int],
    padding: Sequence[tuple[int, int]],
    convolve: Callable[[Operand, Operand, list[tuple[int, int]]], Operand],
) -> Operand | None:
    """The convolution, by steps of one, of an input whose elements are spread apart.

    Args:
        build: where to write it.
        x: [N,H,W,C].
        w: [KH,KW,C/groups,O].
        spread: how far apart the input's elements are, down and across.
        padding: before and after, down and across, of the input once it is spread; may be negative.
        convolve: writes the convolution of x, as it is, by a part of w, with this padding down and across.

    Returns:
        [N,OH,OW,O]; None where there is no element to read or none to write.
    """
    taps, extents = w.shape[:2], x.shape[1:3]
    sizes = [
        (extent - 1) * step + 1 + sum(pads) - window + 1
        for extent, step, pads, window in zip(extents, spread, padding, taps, strict=True)
    ]
    if min(*sizes, *x.shape, *w.shape) < 1:
        return None
    counts = [-(-size // step) for size, step in zip(sizes, spread, strict=True)]
    batch, outputs = x.shape[0], w.shape[3]
    phases = [
        [_part(phase, step, before, window) for phase in range(step)]
        for step, (before, _), window in zip(spread, padding, taps, strict=True)
    ]
    if w.shape[2] == x.shape[3] and all(
        window == step and pads[0] % step == step - 1 for window, step, pads in zip(taps, spread, padding, strict=True)
    ):
        # Each pixel of a square meets one tap, those of the last pixels come first, and all meet the same pixel of the input.
        flat = transposed(build, viewed(build, w, w.view.reverse((0, 1))), (2, 0, 1, 3))
        flat = reshaped(build, flat, (1, 1, w.shape[2], math.prod(spread) * outputs))
        pads = [
            (before, count - extent - before) for ((_, _, before), *_), count, extent in zip(phases, counts, extents, strict=True)
        ]
        squares = convolve(x, flat, pads)
    else:
        squares = _squares(build, x, w, spread, counts, phases, convolve)
    squares = transposed(build, reshaped(build, squares, (batch, *counts, *spread, outputs)), (0, 1, 3, 2, 4, 5))
    y = reshaped(build, squares, (batch, counts[0] * spread[0], counts[1] * spread[1], outputs))
    return viewed(build, y, y.view.slice((0, 0, 0, 0), (batch, *sizes, outputs)))


def _squares(
    build: Builder,
    x: Operand,
    w: Operand,
    spread: Sequence[int],
    counts: Sequence[int],
    phases: Sequence[Sequence[tuple[int, int, int]]],
    convolve: Callable[[Operand, Operand, list[tuple[int, int]]], Operand],
) -> Operand:
    """[N,OH/s,OW/s,s*s*O]: the channels of each pixel are those of a square of the output's pixels, a convolution for each."""
    pieces: list[Operand | None] = []
    for part in itertools.product(*phases):
        if not all(window for _, window, _ in part):  # a window shorter than the steps misses some pixels
            pieces.append(None)
            continue
        taken = w.view.slice((part[0][0], part[1][0], 0, 0), w.shape, (*spread, 1, 1))
        pads = [
            (before, count - 1 + window - extent - before)
            for (_, window, before), count, extent in zip(part, counts, x.shape[1:3], strict=True)
        ]
        pieces.append(convolve(x, viewed(build, w, taken), pads))
    written = next(piece for piece in pieces if piece is not None)
    nothing = fill(build, np.zeros((), written.dtype), written.shape) if None in pieces else written
    return build.op(CONCATENATE, ConcatenateAttrs(3), [nothing if piece is None else piece for piece in pieces])


def _part(phase: int, step: int, before: int, window: int) -> tuple[int, int, int]:
    """The first tap that pixels of a phase meet, the number of such taps, and how far before the input the first begins."""
    first = (before - phase) % step
    return first, len(range(first, window, step)), (before - phase - first) // step
