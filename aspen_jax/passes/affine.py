"""Folds batch normalisation that is known when tracing into the constant weights in front of it.

A chain of block ops that add, subtract, multiply or divide by constants along one axis is one scale and one shift. Behind a
convolution or product with constant weights the weights take the scale, and one addition is left. The sums are rounded anyway, so
nothing is lost; elsewhere a chain stays as it is written, and so does one that adds what it takes away again, which rounds.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import ViewDim
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import single
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.matmul import MATMUL
from aspen_jax.passes import storage

_FLOAT = np.dtype(np.float32)
# Scales beyond these could take weights, or what is left of a result, out of float32's range.
_SMALLEST, _LARGEST = 1e-18, 1e18
# Shifts that cancel each other by more than this are meant to.
_MOST_CANCELLED = 64.0


@dataclasses.dataclass(frozen=True)
class _Chain:
    """Ops that make `scale * base + shift`, float64 arrays of the base's rank with one axis at most.

    `shifted` is the sum of the magnitudes of all shifts.
    """

    base: Value
    scale: np.ndarray
    shift: np.ndarray
    shifted: np.ndarray

    def then(self, opcode: str, other: np.ndarray, reverse: bool) -> _Chain | None:
        """The chain and one instruction more; `reverse`: with the array as its first argument."""
        scale, shift, shifted = self.scale, self.shift, self.shifted
        match opcode:
            case "add_f":
                shift, shifted = shift + other, shifted + np.abs(other)
            case "sub_f":
                shift, shifted = shift - other, shifted + np.abs(other)
                if reverse:
                    scale, shift = -scale, -shift
            case "mul_f":
                scale, shift, shifted = scale * other, shift * other, shifted * np.abs(other)
            case "div_f" if not reverse:
                scale, shift, shifted = scale / other, shift / other, shifted / np.abs(other)
            case _:
                return None
        fits = max(len(_axes(scale)), len(_axes(shift))) <= 1
        return _Chain(self.base, scale, shift, shifted) if fits else None

    @property
    def may_fold(self) -> bool:
        """Whether it scales, within float32's range, and no shift is there to round."""
        scales = np.abs(self.scale[self.scale != 0])
        in_range = ((scales > _SMALLEST) & (scales < _LARGEST)).all() and np.isfinite(self.shift).all()
        rounds = self.shifted.max() > _MOST_CANCELLED * np.abs(self.shift).max()
        return bool((self.scale != 1).any() and in_range and not rounds)


def run(program: Program) -> Program:
    """Fold each chain that may be."""
    known = dict(program.constants)
    readers = {value: len(uses) for value, uses in program.uses().items()}
    chains: dict[Value, _Chain] = {}
    continued: set[Value] = set()
    for op in program.ops:
        operand, chain = _extended(op, chains, readers, known)
        if operand is not None and chain is not None:
            chains[op.output] = chain
            if chain.base is not operand.value:
                continued.add(operand.value)
    ends = {value: chain for value, chain in chains.items() if value not in continued}

    writer = _Writer(program, known, readers)
    for op in program.ops:
        chain = ends.get(op.output)
        if chain is None or not writer.write(op, chain):
            writer.keep(op)
    return program.replace(ops=tuple(writer.build.ops), constants=(*program.constants, *writer.build.constants))


def _extended(
    op: Op, chains: dict[Value, _Chain], readers: dict[Value, int], known: dict[Value, np.ndarray]
) -> tuple[Operand | None, _Chain | None]:
    """The chain that ends with this op, and the operand that it goes on from; None where it is no part of one."""
    body = op.program
    if op.family is not BLOCK or op.exact or body is None or len(body.instructions) != 1 or op.output.dtype != _FLOAT:
        return None, None
    ((opcode, arguments),) = body.instructions
    if len(arguments) != 2 or body.result != len(op.inputs) + len(body.constants):
        return None, None
    sides = [op.inputs[k] if k < len(op.inputs) else np.array(body.constants[k - len(op.inputs)], np.int32) for k in arguments]
    arrays = [_known(side, known, len(op.output.shape)) for side in sides]
    if (arrays[0] is None) == (arrays[1] is None):
        return None, None
    reverse = arrays[0] is not None
    operand, array = sides[reverse], arrays[not reverse]
    assert isinstance(operand, Operand)
    assert array is not None
    if not operand.is_whole or operand.dtype != _FLOAT or operand.value.shape != op.output.shape:
        return None, None
    before = chains.get(operand.value)
    if before is None or readers[operand.value] > 1:
        one = np.ones([1] * operand.view.rank)
        before = _Chain(operand.value, one, 0 * one, 0 * one)
    with np.errstate(all="ignore"):
        return operand, before.then(opcode, array, reverse)


def _known(side: Operand | np.ndarray, known: dict[Value, np.ndarray], rank: int) -> np.ndarray | None:
    """A constant as a float64 array of that rank, repeated along no axis; None where it is none or has several axes."""
    if isinstance(side, np.ndarray):
        return side.view(_FLOAT).astype(np.float64).reshape([1] * rank)
    if side.value not in known or side.dtype != _FLOAT:
        return None
    once = dataclasses.replace(side.view, dims=tuple(ViewDim(-1, 0, 1) if dim.source < 0 else dim for dim in side.view.dims))
    if sum(extent > 1 for extent in once.shape) > 1:
        return None
    return once.gather(known[side.value]).astype(np.float64)


def _axes(array: np.ndarray) -> list[int]:
    """The axes along which an array has several elements."""
    return [axis for axis, extent in enumerate(array.shape) if extent > 1]


class _Writer:
    """Ops written so far."""

    def __init__(self, program: Program, known: dict[Value, np.ndarray], readers: dict[Value, int]):
        self.build = Builder()
        self._known = known
        self._readers = readers
        self._copied = storage.copies(program)
        self._producers: dict[Value, Op] = {}

    def keep(self, op: Op) -> None:
        """Write an op as it is."""
        self._producers[op.output] = op
        self.build.ops.append(op)

    def write(self, end: Op, chain: _Chain) -> bool:
        """Write a chain that ends with an op as scaled weights and a shift; False where that cannot be, or should not."""
        host = self._scaled(self._producers.get(chain.base), chain) if chain.may_fold else None
        if host is None:
            return False
        if not chain.shift.any():
            self.build.ops.append(host.replace(output=end.output))
            return True
        host = host.replace(output=Value(end.output.shape, end.output.dtype))
        self.build.ops.append(host)
        self.build.name, self.build.source = end.name, end.source
        inputs = [Operand.whole(host.output), self._spread(chain.shift, end.output.shape)]
        self.build.block(single("add_f"), inputs, end.output.shape, end.output.dtype)
        self.build.ops[-1] = self.build.ops[-1].replace(output=end.output)
        return True

    def _spread(self, array: np.ndarray, shape: tuple[int, ...]) -> Operand:
        axes = _axes(array)
        constant = self.build.constant(array.astype(_FLOAT).reshape([array.shape[axis] for axis in axes]))
        return Operand(constant.value, constant.view.broadcast_in_dim(shape, axes))

    def _scaled(self, host: Op | None, chain: _Chain) -> Op | None:
        """The convolution or product by scaled weights; None where it has no constant ones with that axis, or another reader."""
        along = _axes(chain.scale)
        if host is None or host.exact or host.program is not None or self._readers[chain.base] > 1:
            return None
        for index, axes in _weight_axes(host).items():
            weights = storage.behind_copy(host.inputs[index], self._copied)
            if weights.value not in self._known or weights.dtype != _FLOAT or not set(along) <= set(axes):
                continue
            scale = chain.scale.reshape(
                [-1 if place in [axes[axis] for axis in along] else 1 for place in range(weights.view.rank)]
            )
            array = weights.view.gather(self._known[weights.value]) * scale
            inputs = list(host.inputs)
            inputs[index] = self.build.constant(array.astype(_FLOAT))
            return host.replace(inputs=tuple(inputs))
        return None


def _weight_axes(host: Op) -> dict[int, dict[int, int]]:
    """The inputs that may be weights: for each, which of its axes belongs to which axis of the output."""
    if host.family is CONV2D:
        return {1: {3: 3}}
    if host.family is MATMUL:
        sides = (host.attrs.a, host.attrs.b)
        return {index: {label: place for place, label in enumerate(sides[index]) if label >= 0} for index in (1, 0)}
    return {}
