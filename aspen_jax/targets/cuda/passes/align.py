"""Pads the channels of convolutions to whole vectors, where a device reads operands in such (Bolt, section 3.2.3).

Known weights are padded once, when they are stored. A convolution of odd channels writes whole vectors of them: what lies behind
its own is finite, and meets weights of zero. What no convolution writes an op pads, into a place of the workspace.
Products are left as they are: known weights of odd columns lie along the depth (`constants`). `explain` says which extents would
suit them better.

The 3 channels of an image are no whole vector, and padding them to one would more than double the work. But the taps of a line
are adjacent. So an op writes the image with a fourth channel and the convolution's padding: where every second pixel has an
output, taps are read in whole vectors from there on.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import COPY
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.pad import PAD, PadAttrs
from aspen_jax.passes import storage
from aspen_jax.targets.cuda.price import Gpu

# What is multiplied with padding, as a share of the rest, at most. Not measured.
_MOST_MORE = 1 / 3


def run(program: Program, machine: Gpu) -> Program:
    """Pad where it pays."""
    if not any(_is_padded(op, machine) or Lines.of(op, machine) for op in program.ops):
        return program
    sweep = _Sweep(program, machine)
    for op in program.ops:
        sweep.visit(op)
    outputs = tuple(sweep.shown(item, "output") for item in program.outputs)
    return program.replace(ops=tuple(sweep.ops), outputs=outputs, constants=(*sweep.constants.all(), *sweep.zeros.values()))


def _is_padded(op: Op, machine: Gpu) -> bool:
    if op.family is not CONV2D or op.attrs.groups > 1 or not op.output.size:
        return False
    unit, extents = machine.whole_vector(op), op.inputs[1].shape[2:]
    more = math.prod(_whole(extent, unit) / extent for extent in extents) - 1
    return 0 < more <= _MOST_MORE


def _whole(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


@dataclasses.dataclass(frozen=True)
class Lines:
    """How an image of few channels is padded so that taps of a line are read in whole vectors.

    Attributes:
        channels: of a pixel.
        width: of a line, with the padding of the convolution.
    """

    channels: int
    width: int

    @classmethod
    def of(cls, op: Op, machine: Gpu) -> Lines | None:
        """The padded lines of a convolution; None where pixels are read in whole vectors as they are, or never can be."""
        if op.family is not CONV2D or op.attrs.groups > 1 or op.attrs.dilation[1] > 1 or not op.output.size:
            return None
        unit, (_, taps, own, outputs) = machine.whole_vector(op), op.inputs[1].shape
        step, across, (*_, left, right) = op.attrs.strides[1], op.output.shape[2], op.attrs.padding
        # From one pixel of the output to the next it is whole vectors.
        channels = next((each for each in range(own, unit) if step * each % unit == 0), None)
        if 2 * own >= unit or channels is None or taps == 1 or outputs % unit or channels > (1 + _MOST_MORE) * own:
            return None
        width = next(each for each in itertools.count((across - 1) * step + taps) if each * channels % unit == 0)
        if (width - taps) // step + 1 != across:
            return None
        is_whole = op.inputs[0].shape[2] * own % unit == left * own % unit == 0
        return None if channels == own and is_whole and max(left, right) <= 0 else cls(channels, width)


class _Sweep:
    """Ops written so far, and of values that were padded what stands for them."""

    def __init__(self, program: Program, machine: Gpu):
        self.machine = machine
        self.ops: list[Op] = []
        self.constants = storage.Constants(program)
        self.copied = storage.copies(program)
        self.zeros: dict[np.dtype, tuple[Value, np.ndarray]] = {}
        self.results = {operand.value for operand in program.outputs}
        self.padded: dict[Value, Value] = {}
        self.behind: dict[Value, np.ndarray] = {}  # of a padded value one element of the channels that were added

    def visit(self, op: Op) -> None:
        lines = Lines.of(op, self.machine)
        if lines is not None:
            self.ops.append(self.by_lines(op, lines))
            return
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

    def by_lines(self, op: Op, lines: Lines) -> Op:
        (x, _, *extra), attrs = op.inputs, op.attrs
        top, bottom, left, _ = attrs.padding
        # One launch does both what a copy did, as of an NCHW image, and pads.
        x = self.shown(storage.behind_copy(x, self.copied), op.name)
        padded = self.pad(x, (*x.shape[:2], lines.width, lines.channels), op, before=(0, 0, left, 0))
        *taps, _, outputs = op.inputs[1].shape
        weights = self.weights(op, (*taps, lines.channels, outputs))
        extras = (self.shown(item, op.name) for item in extra)
        attrs = dataclasses.replace(attrs, padding=(top, bottom, 0, 0))
        return op.replace(attrs=attrs, inputs=(padded, weights, *extras))

    def shown(self, operand: Operand, name: str) -> Operand:
        """An operand without the channels that were added to its value."""
        new = self.padded.get(operand.value)
        if new is None:
            return operand
        old = View.identity(new.shape).slice([0] * len(new.shape), operand.value.shape)
        view = old.compose(operand.view)
        if view is None:
            copy = Op(BLOCK, None, (Operand(new, old),), Value(operand.value.shape, new.dtype), COPY, f"{name}{storage.PADDED}")
            self.ops.append(copy)
            return Operand(copy.output, operand.view)
        return Operand(new, view)

    def pad(self, operand: Operand, shape: tuple[int, ...], reader: Op, before: tuple[int, ...] = ()) -> Operand:
        """An operand with zeros before and behind each dimension, or without some of its elements, written by an op."""
        dtype, nothing = operand.dtype, (0,) * len(shape)
        before = before or nothing
        if shape == operand.shape and before == nothing:
            return operand
        zero, _ = self.zeros.setdefault(dtype, (Value((), dtype), np.zeros((), dtype)))
        behind = tuple(extent - own - lo for extent, own, lo in zip(shape, operand.shape, before, strict=True))
        attrs, inputs = PadAttrs(before, behind, nothing), (operand, Operand.whole(zero))
        made = Op(PAD, attrs, inputs, Value(shape, dtype), name=f"{reader.name}{storage.PADDED}", source=reader.source)
        self.ops.append(made)
        return Operand.whole(made.output)

    def weights(self, op: Op, shape: tuple[int, ...]) -> Operand:
        operand = op.inputs[1]
        source = self.constants.source(operand)
        if source is None or source.view.shape != operand.shape:
            return self.pad(self.shown(operand, op.name), shape, op)
        behind = [(0, extent - own) for extent, own in zip(shape, operand.shape, strict=True)]
        return self.constants.stored(source, lambda array: np.pad(array, behind), (storage.PADDED, shape))

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
            vector = self.constants.stored(source, lambda array: np.pad(array[0, 0, 0], behind), (storage.PADDED, outputs))
        else:
            view = View.from_flat(operand.value.size, operand.view.offset(), [1], [op.output.shape[3]])
            if view is None:
                return None
            vector = self.pad(Operand(operand.value, view), row, op)
        return Operand(vector.value, View.identity(row).broadcast_in_dim(shape, (3,)))
