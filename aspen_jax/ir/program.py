"""Program: ops over tensors in topological order, the representation that passes rewrite.

A Program is plain immutable data. Each op reads its operands through views (`view.py`), so layout changes cost nothing until a
pass decides otherwise, and writes one dense value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aspen_jax.ir.view import View

if TYPE_CHECKING:
    from aspen_jax.ops.block_program import BlockProgram
    from aspen_jax.ops.family import OpFamily


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """A dense row-major tensor. Two values are the same only if they are the same object."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Operand:
    """A value read through a view."""

    value: Value
    view: View

    @classmethod
    def whole(cls, value: Value) -> Operand:
        """The value as it is."""
        return cls(value, View.identity(value.shape))

    @classmethod
    def permuted(cls, value: Value, order: Sequence[int]) -> Operand:
        """A value that is stored in another order: its dimension i is dimension order[i] of the operand."""
        inverse = tuple(order.index(axis) for axis in range(len(order)))
        return cls(value, View.identity(value.shape).transpose(inverse))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as the reader sees it."""
        return self.view.shape

    @property
    def dtype(self) -> np.dtype:
        """Element type."""
        return self.value.dtype

    @property
    def is_whole(self) -> bool:
        """Whether the view is the identity on the value."""
        return self.view.is_identity_of(self.value.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """One operation: `outputs = program(family(attrs, main inputs), extra inputs)`.

    Attributes:
        family: the op family (`ops/`), which knows shapes, regions, work and the kernel's name.
        attrs: the family's attributes, a frozen dataclass.
        inputs: the kernel's own inputs, then those of the element-wise program.
        output: the value written; where there are several, the first.
        program: the body of a block op, the epilogue of any other op, or None.
        name: scope and primitive it came from, for reports and errors.
        source: user's source line, for errors; may be empty.
        exact: the user asked for more than the default precision, so no algorithm that loses some may stand in.
        in_place: the output takes the memory of the operand that the family rewrites; all others that read that come before.
        further: the outputs beside the first. They have its shape, or whole parts of its extents (`unit_of`), and so one grid of
            tiles is that of all. An op that is one tile may have others.
        slices: of the depth of a product or convolution, each summed by a thread block of its own, which add them up at the end.
        rounded: the columns of this product or convolution of float32 hold no more bits than TF32 has, and lie along the depth
            (targets/cuda/passes/tf32.py).
        plan: what a target has decided about its kernel, for that target alone; None before that.
    """

    family: OpFamily
    attrs: Any
    inputs: tuple[Operand, ...]
    output: Value
    program: BlockProgram | None = None
    name: str = ""
    source: str = ""
    exact: bool = False
    in_place: bool = False
    further: tuple[Value, ...] = ()
    slices: int = 1
    rounded: bool = False
    plan: Any = None

    @property
    def outputs(self) -> tuple[Value, ...]:
        """All that the op writes."""
        return self.output, *self.further

    @property
    def main_inputs(self) -> tuple[Operand, ...]:
        """The kernel's own inputs."""
        return self.inputs[: self.family.num_main(self)]

    @property
    def extra_inputs(self) -> tuple[Operand, ...]:
        """The inputs of the epilogue, each of the output's shape."""
        return self.inputs[self.family.num_main(self) :]

    def unit_of(self, output: Value) -> tuple[int, ...] | None:
        """How many indices of the first output belong to one of `output`, one of the outputs, along each axis.

        None where its extents are no whole parts of the first one's. Then one tile writes all of it.
        """
        if len(output.shape) != len(self.output.shape):
            return None
        extents = list(zip(self.output.shape, output.shape, strict=True))
        if any(whole % extent if extent else whole for whole, extent in extents):
            return None
        return tuple(whole // extent if extent else 1 for whole, extent in extents)

    @property
    def likeness(self) -> tuple[Any, ...]:
        """A key that is equal for ops that do the same work, as those of equal layers do: names and values do not count."""
        numbers: dict[Value, int] = {}
        inputs = tuple((numbers.setdefault(i.value, len(numbers)), i.value.shape, i.dtype, i.view) for i in self.inputs)
        outputs = tuple((value.shape, value.dtype) for value in self.outputs)
        flags = self.exact, self.in_place, self.slices, self.rounded, self.plan
        return self.family, self.attrs, self.program, inputs, outputs, flags

    def replace(self, **changes: Any) -> Op:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Ops in topological order.

    Attributes:
        inputs: values handed in by the caller.
        constants: values known when tracing, with their arrays; handed in after the inputs.
        ops: the operations.
        outputs: what the caller gets, in order; the same value may occur twice and may be an input.
    """

    inputs: tuple[Value, ...]
    constants: tuple[tuple[Value, np.ndarray], ...]
    ops: tuple[Op, ...]
    outputs: tuple[Operand, ...]

    def replace(self, **changes: Any) -> Program:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def pruned(self) -> Program:
        """The program without ops and constants that no output needs."""
        needed = {operand.value for operand in self.outputs}
        kept: list[Op] = []
        for op in reversed(self.ops):
            if not needed.isdisjoint(op.outputs):
                kept.append(op)
                needed.update(operand.value for operand in op.inputs)
        constants = tuple(item for item in self.constants if item[0] in needed)
        return self.replace(ops=tuple(reversed(kept)), constants=constants)

    def uses(self) -> dict[Value, list[tuple[Op | None, int]]]:
        """Where each value is read: (op, input index), or (None, index) for a program output."""
        uses: dict[Value, list[tuple[Op | None, int]]] = {}
        for op in self.ops:
            for index, operand in enumerate(op.inputs):
                uses.setdefault(operand.value, []).append((op, index))
        for index, operand in enumerate(self.outputs):
            uses.setdefault(operand.value, []).append((None, index))
        return uses

    def lines(self) -> Iterator[str]:
        """One line of text for each part of the program."""
        names: dict[Value, str] = {}

        def show(value: Value) -> str:
            name = names.setdefault(value, f"%{len(names)}")
            return f"{name}:{value.dtype}[{','.join(map(str, value.shape))}]"

        def operand(item: Operand) -> str:
            name = names.setdefault(item.value, f"%{len(names)}")
            return name if item.is_whole else f"{name}{item.view}"

        yield "inputs " + ", ".join(show(value) for value in self.inputs)
        for value, _ in self.constants:
            yield "constant " + show(value)
        for op in self.ops:
            inputs = ", ".join(operand(item) for item in op.inputs)
            epilogue = f" with {op.program}" if op.program is not None else ""
            place = " in place" if op.in_place else ""
            place += f" in {op.slices} slices" if op.slices > 1 else ""
            place += " by rounded weights" if op.rounded else ""
            yield f"{', '.join(map(show, op.outputs))} = {op.family.name}({inputs}){op.attrs or ''}{epilogue}{place}  # {op.name}"
        yield "outputs " + ", ".join(operand(item) for item in self.outputs)

    def __str__(self) -> str:
        return "\n".join(self.lines())
