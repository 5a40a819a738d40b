"""Pads the channels of convolutions to whole vectors, where a device reads operands in such (Bolt, section 3.2.3).

Known weights are padded once, when they are stored. A convolution of odd channels writes whole vectors of them: what lies behind
its own is finite, and meets weights of zero. What no convolution writes an op pads, into a place of the workspace.
Products are left as they are: known weights of odd columns lie along the depth (`constants`). `explain` says which extents would
suit them better.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import COPY
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.pad import PAD, PadAttrs
from aspen_jax.passes import storage

# What is multiplied with padding, as a share of the rest, at most. Not measured.
_MOST_MORE = 1 / 3

# The names of ops that pad end so.
SUFFIX = "/align"


def run(program: Program, machine: Machine = Machine()) -> Program:  # noqa: B008 - immutable
    """Pad where it pays."""
    if not any(_is_padded(op, machine) for op in program.ops):
        return program
    sweep = _Sweep(program, machine)
    for op in program.ops:
        sweep.visit(op)
    outputs = tuple(sweep.shown(item, "output") for item in program.outputs)
    return program.replace(ops=tuple(sweep.ops), outputs=outputs, constants=(*sweep.constants.all(), *sweep.zeros.values()))


def _is_padded(op: Op, machine: Machine) -> bool:
    if op.family is not CONV2D or op.attrs.groups > 1 or not op.output.size:
        return False
    unit, extents = machine.whole_vector(op), op.inputs[1].shape[2:]
    more = math.prod(_whole(extent, unit) / extent for extent in extents) - 1
    return 0 < more <= _MOST_MORE


def _whole(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


class _Sweep:
    """Ops written so far, and of values that were padded what stands for them."""

    def __init__(self, program: Program, machine: Machine):
        self.machine = machine
        self.ops: list[Op] = []
        self.constants = storage.Constants(program)
        self.zeros: dict[np.dtype, tuple[Value, np.ndarray]] = {}
        self.results = {operand.value for operand in program.outputs}
        self.padded: dict[Value, Value] = {}
        self.behind: dict[Value, np.ndarray] = {}  # of a padded value one element of the channels that were added

    def visit(self, op: Op) -> None:
        if not _is_padded(op, self.machine):
            self.ops.append(op.replace(inputs=tuple(self.shown(item, op.name) for item in op.inputs)))
            return
        unit = self.machine.whole_vector(op)
        (*_, channels, outputs), x, extra = op.inputs[1].shape, op.inputs[0], op.extra_inputs
        to = _whole(channels, unit)
        if x.value in self.padded and x.is_whole:
            x, to = Operand.whole(self.padded[x.value]), self.padded[x.value].shape[3]
        elif to > channels:
            x = self.pad(self.shown(x, op.name), (*x.shape[:3], to), op)
        else:
            x = self.shown(x, op.name)
        wider = self.wider(op, _whole(outputs, unit))
        output, extras = op.output, tuple(self.shown(item, op.name) for item in extra)
        if wider is not None:
            extras, outputs = wider, _whole(outputs, unit)
            output = Value((*op.output.shape[:3], outputs), op.output.dtype)
            self.padded[op.output] = output
        weights = self.weights(op, (*op.inputs[1].shape[:2], to, outputs))
        self.ops.append(op.replace(inputs=(x, weights, *extras), output=output))

    def shown(self, operand: Operand, name: str) -> Operand:
        """An operand without the channels that were added to its value."""
        new = self.padded.get(operand.value)
        if new is None:
            return operand
        old = View.identity(new.shape).slice([0] * len(new.shape), operand.value.shape)
        view = old.compose(operand.view)
        if view is None:
            copy = Op(BLOCK, None, (Operand(new, old),), Value(operand.value.shape, new.dtype), COPY, f"{name}{SUFFIX}")
            self.ops.append(copy)
            return Operand(copy.output, operand.view)
        return Operand(new, view)

    def pad(self, operand: Operand, shape: tuple[int, ...], reader: Op) -> Operand:
        """An operand with zeros behind each dimension, written by an op."""
        if shape == operand.shape:
            return operand
        dtype, rank = operand.dtype, len(shape)
        zero, _ = self.zeros.setdefault(dtype, (Value((), dtype), np.zeros((), dtype)))
        behind = tuple(extent - own for extent, own in zip(shape, operand.shape, strict=True))
        attrs, inputs = PadAttrs((0,) * rank, behind, (0,) * rank), (operand, Operand.whole(zero))
        made = Op(PAD, attrs, inputs, Value(shape, dtype), name=f"{reader.name}{SUFFIX}", source=reader.source)
        self.ops.append(made)
        return Operand.whole(made.output)

    def weights(self, op: Op, shape: tuple[int, ...]) -> Operand:
        operand = op.inputs[1]
        source = self.constants.source(operand)
        if source is None or source.view.shape != operand.shape:
            return self.pad(self.shown(operand, op.name), shape, op)
        behind = [(0, extent - own) for extent, own in zip(shape, operand.shape, strict=True)]
        return self.constants.stored(source, lambda array: np.pad(array, behind), (SUFFIX, shape))

    def wider(self, op: Op, outputs: int) -> tuple[Operand, ...] | None:
        """The inputs of an epilogue of so many channels; None where it shall not have them."""
        if outputs == op.output.shape[3] or op.output in self.results or op.output.dtype.itemsize != 2:
            return None
        inputs = [self.wider_input(item, op, outputs) for item in op.extra_inputs]
        # What comes to lie there: sums are zero, as is what is padded; a residual has what was written there.
        nothing: list[Any] = [self.behind.get(item.value, np.zeros(1, item.dtype)) for item in op.extra_inputs]
        behind = np.zeros(1, op.output.dtype)
        if op.program is not None:
            own: Any = np.zeros(1, np.float32)
            behind = np.asarray(op.program.reference(own, *nothing, shape=(1,), dtype=op.output.dtype))
        if not np.isfinite(behind.astype(np.float32)).all() or None in inputs:
            return None
        self.behind[op.output] = behind
        return tuple(item for item in inputs if item is not None)

    def wider_input(self, operand: Operand, op: Op, outputs: int) -> Operand | None:
        shape = (*op.output.shape[:3], outputs)
        if operand.value in self.padded:
            new = self.padded[operand.value]
            return Operand.whole(new) if operand.is_whole and new.shape == shape else None
        *across, along = operand.view.strides()
        if any(across) or along != 1:
            return None  # no vector of the channels
        row, source = (outputs,), self.constants.source(operand)
        if source is not None and source.view.shape == operand.shape:
            behind = (0, outputs - op.output.shape[3])
            vector = self.constants.stored(source, lambda array: np.pad(array[0, 0, 0], behind), (SUFFIX, outputs))
        else:
            view = View.from_flat(operand.value.size, operand.view.offset(), [1], [op.output.shape[3]])
            if view is None:
                return None
            vector = self.pad(Operand(operand.value, view), row, op)
        return Operand(vector.value, View.identity(row).broadcast_in_dim(shape, (3,)))
