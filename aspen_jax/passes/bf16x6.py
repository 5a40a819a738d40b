"""Gives convolutions and products of float32 to matrix units for bfloat16, where the machine has them (ops/bf16x6.py).

Constant weights are stored in parts once; others are parted by an op of its own, once for all that read them so.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.bf16x6 import BF16X6, BF16X6_WEIGHTS, Bf16x6Attrs, parts_shape, to_parts
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.conv import CONV2D
from aspen_jax.passes import matrices, storage

# With fewer, splitting and finishing take as long as multiplying.
_FEWEST_CHANNELS, _FEWEST_COLUMNS = 128, 128


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Replace convolutions and products for which the cost model says so, or measurement."""
    if not machine.bf16_units:
        return program
    constants = storage.Constants(program)
    copied = storage.copies(program)
    parted: dict[Operand, Op] = {}
    gains: dict[tuple[Any, ...], bool] = {}  # layers repeat
    ops: list[Op] = []
    for op in program.ops:
        found = _rewritten(op)
        source = None if found is None else constants.source(op.inputs[1])
        parting: Op | None = None
        # What an op computes is no weight: it may be the keys or values of an attention, which another pass joins.
        if found is not None and found.weights is not None and storage.behind_copy(op.inputs[1], copied).value in program.inputs:
            parting = parted.get(found.weights) or _parting(found.weights, op)
        if found is None or (source is None and parting is None):
            ops.append(op)
            continue
        new = [] if parting is None or parting.inputs[0] in parted else [parting]
        case = op.likeness, bool(new)
        if case not in gains:
            gains[case] = machine.are_cheaper([*new, found.op], [op])
        if not gains[case]:
            ops.append(op)
            continue
        if parting is not None:
            parts = Operand.whole(parting.output)
            parted[parting.inputs[0]] = parting
        else:
            assert source is not None
            weights = Operand(source.value, source.view.transpose(found.order))
            parts = constants.stored(weights, functools.partial(_parts, shape=found.shape), "bf16x6")
        ops += [*new, found.op.replace(inputs=(found.op.inputs[0], parts, *op.extra_inputs))]
    return program.replace(ops=tuple(ops), constants=constants.all())


def _parts(weights: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # infinity less infinity
        return to_parts(weights.reshape(shape), np)


def _parting(weights: Operand, op: Op) -> Op:
    build = Builder()
    build.name, build.source = f"{op.name}/weights", op.source
    build.op(BF16X6_WEIGHTS, None, [weights])
    return build.ops[0]


class _Rewritten(NamedTuple):
    """A convolution or product by such units.

    Attributes:
        op: it, with parts of the weights that are not made yet.
        order: the order of the weights' dimensions in which it takes them,
        shape: and their shape as [KH,KW,C,O] then.
        weights: themselves so; None where no view shows them.
    """

    op: Op
    order: tuple[int, ...]
    shape: tuple[int, ...]
    weights: Operand | None


def _rewritten(op: Op) -> _Rewritten | None:
    """The op in bfloat16 parts; None for other ops, and where the user's precision forbids it."""
    is_float32 = op.family.num_main(op) == 2 and all(item.dtype == np.float32 for item in op.main_inputs)
    if op.exact or op.output.size == 0 or not is_float32:
        return None
    if op.family is CONV2D and op.attrs.groups == 1:
        attrs, rows, order, shape = op.attrs, op.inputs[0], (0, 1, 2, 3), op.inputs[1].shape
        own = Bf16x6Attrs(shape[:2], shape[3], attrs.strides, attrs.padding, attrs.dilation)
    else:
        found = matrices.of_product(op)
        if found is None or not 2 <= len(op.output.shape) <= 4:
            return None
        rows, order = found
        shape = (1, 1, rows.shape[-1], op.output.shape[-1])
        own = Bf16x6Attrs((1, 1), op.output.shape[-1])
    if shape[2] < _FEWEST_CHANNELS or shape[3] < _FEWEST_COLUMNS or 0 in shape or not BF16X6.reads_well(op, 0, rows):
        return None
    build = Builder()
    build.name, build.source = op.name, op.source
    build.op(BF16X6, own, [rows, Operand.whole(Value(parts_shape(shape[:2], *shape[2:]), np.dtype(jnp.bfloat16)))])
    (product,) = build.ops
    product = product.replace(inputs=(*product.inputs, *op.extra_inputs), output=op.output, program=op.program)
    view = op.inputs[1].view.transpose(order).reshape(shape)
    return _Rewritten(product, order, shape, None if view is None else Operand(op.inputs[1].value, view))
