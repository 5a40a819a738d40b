"""Convolutions that NVIDIA's cuDNN computes inside our graph, where timing says that it is faster (cuda/cudnn.h).

It comes with jax[cuda13]. It takes a convolution of 16 bits with what follows it: biases, scales, sums with tensors like the
result, ReLUs. It wants the channels of weights adjacent, for each output. So weights must be known, and the pass `filters` stores
them so.
"""

from __future__ import annotations

import dataclasses
import hashlib

from aspen_jax.ir.program import Op, Operand, Value
from aspen_jax.ir.view import View
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.opcodes import narrowing
from aspen_jax.targets.cuda.library import shared_library
from aspen_jax.targets.cuda.library.shared_library import ELEMENT_TYPES
from aspen_jax.targets.cuda.products.kernel_choices import cudnn_choices

# The dimensions of weights [KH, KW, C, O] in the order in which cuDNN wants them stored.
ORDER = (3, 0, 1, 2)

# kMostOperands and kMostSteps in cuda/kernels/kernel_shape.h.
_MOST_OPERANDS, _MOST_STEPS = 10, 14

# StepKind.
_KINDS = {"add_f": 0, "sub_f": 1, "mul_f": 2, "relu_f": 3}
_COMMUTES = ("add_f", "mul_f")

# Where tensors and their lines begin, in elements of 16 bits: 16 bytes, as cuda/cudnn.cc promises.
_VECTOR = 8


@dataclasses.dataclass(frozen=True)
class LibraryStep:
    """A register made of others, as LibraryStep in cuda/kernels/kernel_shape.h.

    Attributes:
        kind: StepKind.
        first: register 0 has the sums, then come the operands, then the steps.
        second: -1: there is none.
    """

    kind: int
    first: int
    second: int


@dataclasses.dataclass(frozen=True)
class LibraryOperand:
    """An input that steps read, as LibraryOperand in cuda/kernels/kernel_shape.h.

    Attributes:
        input: its number.
        type: of its elements, by number.
        is_vector: whether it has an element for each channel of the result; or else it is like the result.
    """

    input: int
    type: int
    is_vector: bool


@dataclasses.dataclass(frozen=True)
class LibraryConvolution:
    """A convolution as the library is told of it, as LibraryConvolution in cuda/kernels/kernel_shape.h.

    Attributes:
        images, height, width, channels: of the input, NHWC.
        outputs: channels of the result.
        kernel_height, kernel_width: of the weights.
        result_height, result_width: of the result.
        strides, dilation: of height and width.
        before, after: padding of height and width.
        type: of the elements of input, weights and result, by number.
        num_operands, num_steps: how many of the following there are.
        operands: what steps read.
        steps: what is done with the sums, in float32.
    """

    images: int
    height: int
    width: int
    channels: int
    outputs: int
    kernel_height: int
    kernel_width: int
    result_height: int
    result_width: int
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    type: int
    num_operands: int
    num_steps: int
    operands: tuple[LibraryOperand, ...]
    steps: tuple[LibraryStep, ...]

    @classmethod
    def of(cls, op: Op) -> LibraryConvolution | None:
        """The convolution of an op; None where the library does not take its strides, channels, end or order of weights."""
        if op.family is not CONV2D or op.slices > 1 or op.further or op.attrs.groups > 1 or not op.output.size:
            return None
        x, w = op.inputs[:2]
        (images, height, width, channels), (kernel_height, kernel_width, _, outputs) = x.shape, w.shape
        is_whole = channels % _VECTOR == 0 and outputs % _VECTOR == 0 and kernel_height * kernel_width > 0
        are_alike = x.dtype == w.dtype == op.output.dtype and x.dtype.itemsize == 2 and x.dtype.name in ELEMENT_TYPES
        if not is_whole or not are_alike or not _is_dense(x) or w != _relaid(w) or min(op.attrs.padding) < 0:
            return None
        end = _end(op)
        if end is None:
            return None
        operands, steps = end
        top, bottom, left, right = op.attrs.padding
        return cls(
            *(images, height, width, channels, outputs),
            *(kernel_height, kernel_width),
            *op.output.shape[1:3],
            strides=tuple(op.attrs.strides),
            dilation=tuple(op.attrs.dilation),
            before=(top, left),
            after=(bottom, right),
            type=ELEMENT_TYPES[x.dtype.name],
            num_operands=len(operands),
            num_steps=len(steps),
            operands=operands,
            steps=steps,
        )

    @property
    def digest(self) -> str:
        """A hash of the convolution's numbers."""
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).hexdigest()[:32]


def by_cudnn(op: Op) -> LibraryConvolution | None:
    """The convolution that the library computes in place of an op's kernel; None where the kernel is launched."""
    choices = cudnn_choices(op)
    convolution = LibraryConvolution.of(op) if choices else None
    return convolution if convolution is not None and convolution.digest in choices and is_there() else None


def filter_order(op: Op) -> tuple[int, ...] | None:
    """The order of weights in which the library computes an op; None where it does not, or where they lie so."""
    if op.family is not CONV2D or not cudnn_choices(op) or by_cudnn(op) is not None or by_cudnn(relaid(op)) is None:
        return None
    return ORDER


def relaid(op: Op) -> Op:
    """A convolution whose weights are a new value, stored as the library wants them."""
    w = op.inputs[1]
    value = Value(tuple(w.shape[axis] for axis in ORDER), w.dtype)
    return op.replace(inputs=(op.inputs[0], Operand.permuted(value, ORDER), *op.inputs[2:]))


def is_there() -> bool:
    """Whether this process has the library."""
    return shared_library.is_there("libcudnn.so.9")


def _relaid(w: Operand) -> Operand | None:
    """The same weights, if their value holds them as the library wants them."""
    shape = tuple(w.shape[axis] for axis in ORDER)
    return Operand.permuted(w.value, ORDER) if w.value.shape == shape else None


def _is_dense(operand: Operand) -> bool:
    """Whether an operand lies as a tensor of its own, which begins at a whole vector."""
    expected = View.identity(operand.shape).strides()
    strides = operand.view.strides()
    follows = all(own == other or extent == 1 for own, other, extent in zip(strides, expected, operand.shape, strict=True))
    return follows and operand.view.offset() % _VECTOR == 0


def _operand(op: Op, number: int) -> LibraryOperand | None:
    """An input of the op's program; None where it is neither like the result nor a vector of channels."""
    operand = op.inputs[number]
    if operand.dtype.name not in ELEMENT_TYPES:
        return None
    *others, last = operand.view.strides()
    is_vector = last == 1 and all(own == 0 or extent == 1 for own, extent in zip(others, op.output.shape[:-1], strict=True))
    is_vector &= operand.view.offset() % _VECTOR == 0
    if not is_vector and not _is_dense(operand):
        return None
    return LibraryOperand(number, ELEMENT_TYPES[operand.dtype.name], is_vector)


def _end(op: Op) -> tuple[tuple[LibraryOperand, ...], tuple[LibraryStep, ...]] | None:
    """What the op's program does with the sums; None where the library has no such steps."""
    program = op.program
    if program is None:
        return (), ()
    first = len(op.main_inputs) - 1
    operands = [_operand(op, first + number) for number in range(1, program.num_inputs)]
    if program.constants or program.further or len(operands) > _MOST_OPERANDS:
        return None
    instructions, result = list(program.instructions), program.result
    before = program.num_inputs + len(instructions) - 2
    # What only says once more how a result is stored.
    if instructions and instructions[-1] == (narrowing(op.output.dtype), (before,)) and result == before + 1:
        instructions.pop()
        result = before
    known = [operand for operand in operands if operand is not None]
    is_whole = result == (program.num_inputs + len(instructions) - 1 if instructions else 0)
    if len(known) < len(operands) or not is_whole or len(instructions) > _MOST_STEPS:
        return None
    # Whether each register is like the result: sums and steps are.
    is_full = [True, *(not operand.is_vector for operand in known), *(True for _ in instructions)]
    steps = []
    for opcode, arguments in instructions:
        if opcode in _COMMUTES and not is_full[arguments[0]]:
            arguments = arguments[::-1]
        if opcode not in _KINDS or not is_full[arguments[0]]:
            return None
        steps.append(LibraryStep(_KINDS[opcode], *arguments, *([-1] if len(arguments) == 1 else [])))
    return tuple(known), tuple(steps)
