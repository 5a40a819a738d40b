"""Chooses Winograd's filtering for the convolutions that it makes cheaper (ops/winograd.py)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.conv import CONV2D, ConvAttrs
from aspen_jax.ops.winograd import (
    TILES,
    WINOGRAD,
    WINOGRAD_WEIGHTS,
    PhasedWindow,
    WinogradAttrs,
    WinogradWeightsAttrs,
    in_panels,
    phased_weights,
    phased_window,
    transform_weights,
    with_taps,
)
from aspen_jax.passes import storage


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Replace the convolutions for which the cost model says so, or measurement, by the cheapest filtering."""
    constants = storage.Constants(program)
    ops: list[Op] = []
    for op in program.ops:
        best = [op]
        source = constants.source(op.inputs[1]) if op.family is CONV2D else None
        possible = _may_be(op) and (source is not None or op.attrs.strides == (1, 1))
        windows = _windows(op) if possible else ()
        for tile in TILES.get(tuple(window.squares for window in windows), ()):
            weights, product = _rewritten(op, windows, tile)
            candidate = [weights, product] if source is None else [product]
            if machine.are_cheaper(candidate, best):
                best = candidate
        if best[-1].family is WINOGRAD and source is not None:
            (product,) = best
            low, attrs = op.attrs.padding[::2], product.attrs
            make = functools.partial(_transformed, low=low, attrs=attrs)
            stored = constants.stored(source, make, (low, attrs.phases, attrs.tile))
            best = [product.replace(inputs=(product.inputs[0], stored, *product.inputs[2:]))]
        ops += best
    return program.replace(ops=tuple(ops), constants=constants.all())


def _transformed(weights: np.ndarray, low: tuple[int, ...], attrs: WinogradAttrs) -> np.ndarray:
    w = phased_weights(weights, attrs.phases, low)
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is marked
        points = transform_weights(w.astype(np.float64), attrs.tile, np).astype(np.float32)
        if any(attrs.begin) or attrs.end != attrs.phases:
            points = points[np.arange(len(points))[:, None], attrs.order(weights.shape[2])]
        return in_panels(with_taps(points, w, np), np)


def _may_be(op: Op) -> bool:
    """Whether the op is a convolution that Winograd's filtering computes, and the user's precision allows it."""
    return (
        op.family is CONV2D
        and not op.exact
        and op.attrs.dilation == (1, 1)
        and op.attrs.groups == 1
        and op.output.size > 0
        and all(item.dtype == np.float32 for item in op.main_inputs)
    )


def _windows(op: Op) -> tuple[PhasedWindow, ...]:
    """The window of the convolution of stride 1 that this one is on the phases of its input, down and across."""
    return tuple(map(phased_window, op.inputs[1].shape[:2], op.attrs.strides, op.attrs.padding[::2]))


def _rewritten(op: Op, windows: Sequence[PhasedWindow], tile: tuple[int, int]) -> tuple[Op, Op]:
    """The transform of the weights, which are known or of stride 1, and the convolution by it."""
    build = Builder()
    build.name, build.source = f"{op.name}/weights", op.source
    attrs: ConvAttrs = op.attrs
    padding: list[int] = []
    begin, window, end = zip(*windows, strict=True)
    for axis, stride in enumerate(attrs.strides):
        before = -(-attrs.padding[2 * axis] // stride)
        squares = -(-op.inputs[0].shape[1 + axis] // stride)
        padding += before, op.output.shape[1 + axis] + window[axis] - 1 - before - squares
    channels = op.inputs[0].shape[3] * math.prod(attrs.strides)
    w = op.inputs[1]
    if attrs.strides != (1, 1):
        w = Operand.whole(Value((*window, channels, op.output.shape[3]), w.dtype))
    u = build.op(WINOGRAD_WEIGHTS, WinogradWeightsAttrs(tile), [w])
    product_attrs = WinogradAttrs(tuple(padding), op.output.shape[3], window, tile, attrs.strides, begin, end)
    build.op(WINOGRAD, product_attrs, [op.inputs[0], u])
    weights, product = build.ops
    product = product.replace(
        inputs=(*product.inputs, *op.extra_inputs), output=op.output, program=op.program, name=op.name, source=op.source
    )
    return weights, product
