"""Chooses Winograd's filtering for the convolutions that it makes cheaper (ops/winograd.py)."""

from __future__ import annotations

import functools

import numpy as np

from aspen_jax import storage
from aspen_jax.apu.machine import Machine
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.winograd import TILES, WINOGRAD, WINOGRAD_WEIGHTS, WinogradAttrs, WinogradWeightsAttrs, transform_weights
from aspen_jax.program import Op, Program


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Replace the convolutions for which the cost model says so, or measurement, by the cheapest filtering."""
    constants = storage.Constants(program)
    ops: list[Op] = []
    for op in program.ops:
        best = [op]
        source = constants.source(op.inputs[1]) if op.family is CONV2D else None
        for tile in TILES.get(op.inputs[1].shape[:2], ()) if _may_be(op) else ():
            weights, product = _rewritten(op, tile)
            candidate = [weights, product] if source is None else [product]
            if machine.are_cheaper(candidate, best):
                best = candidate
        if best[-1].family is WINOGRAD and source is not None:
            (product,) = best
            tile = product.attrs.tile
            stored = constants.stored(source, functools.partial(_transformed, tile=tile), tile)
            best = [product.replace(inputs=(product.inputs[0], stored, *product.inputs[2:]))]
        ops += best
    return program.replace(ops=tuple(ops), constants=constants.all())


def _transformed(weights: np.ndarray, tile: tuple[int, ...]) -> np.ndarray:
    return transform_weights(weights.astype(np.float64), tile, np).astype(np.float32)


def _may_be(op: Op) -> bool:
    """Whether the op is a convolution that Winograd's filtering computes, and the user's precision allows it."""
    return (
        op.family is CONV2D
        and not op.exact
        and op.attrs.strides == op.attrs.dilation == (1, 1)
        and op.attrs.groups == 1
        and op.output.size > 0
        and all(item.dtype == np.float32 for item in op.main_inputs)
    )


def _rewritten(op: Op, tile: tuple[int, ...]) -> tuple[Op, Op]:
    """The transform of the weights, and the convolution by it."""
    build = Builder()
    build.name, build.source = f"{op.name}/weights", op.source
    u = build.op(WINOGRAD_WEIGHTS, WinogradWeightsAttrs(tile), [op.inputs[1]])
    build.op(WINOGRAD, WinogradAttrs(op.attrs.padding, op.output.shape[3], op.inputs[1].shape[:2], tile), [op.inputs[0], u])
    weights, product = build.ops
    product = product.replace(
        inputs=(*product.inputs, *op.extra_inputs), output=op.output, program=op.program, name=op.name, source=op.source
    )
    return weights, product
