"""A kernel as Python gives it: a template in `cuda/kernels/`, and the constants that it is over; which one an op has.

`families/` declares them. Whoever asks which kernel an op has imports that package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from aspen_jax.ir.program import Op
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.targets.cuda.code.lanes import element


class Kernel(NamedTuple):
    """What a kernel is.

    Attributes:
        template: its name; its first argument is the struct of the op's generated functions.
        arguments: the others, as C++.
        run: adjacent elements that it computes at once; 1: none.
        functions: what is generated beside `finish` and `run`: element-wise programs alone.
        maps: whether it copies operands in boxes where a GPU has warpgroups (cuda/kernels/tensor_copy.h).
        slices: thread blocks of a cluster, each of which sums a slice of a tile's depth (cuda/kernels/split_sum.h).
        blocks: thread blocks that a multiprocessor must be able to hold; 0: as many as the assembler likes, which spills some
            registers where that makes room for more blocks.
        around: a template around the kernel, and its arguments behind that; (): none.
    """

    template: str
    arguments: Sequence[str]
    run: int = 1
    functions: str = ""
    maps: bool = False
    slices: int = 1
    blocks: int = 0
    around: Sequence[str] = ()


Write = Callable[[Op], "Kernel | None"]
W = TypeVar("W", bound=Write)

FAMILIES: dict[str, Write] = {}


def writes(family: str) -> Callable[[W], W]:
    """Declares what gives the kernel for ops of a family: None where there is none."""

    def declare(write: W) -> W:
        FAMILIES[family] = write
        return write

    return declare


class UnsupportedOp(Exception):
    """An op for which there is no CUDA code; XLA computes it."""


def kernel_of(op: Op) -> Kernel:
    """The kernel of an op.

    Raises:
        UnsupportedOp: there is none.
    """
    write = FAMILIES.get(op.family.name)
    dtypes = [*(value.dtype for value in op.outputs), *(operand.dtype for operand in op.inputs)]
    kernel = write(op) if write is not None and all(element(dtype) and lane_of(dtype) for dtype in dtypes) else None
    if kernel is None:
        raise UnsupportedOp(f"no CUDA code for {op.family.name} of {', '.join(map(str, dtypes))}")
    return kernel


def why_no_code(op: Op) -> str | None:
    """Why there is no CUDA code for an op; None where there is."""
    try:
        kernel_of(op)
    except UnsupportedOp as error:
        return str(error)
    return None


def constant(value: Any) -> str:
    """A value as C++: a dataclass as the struct of its name and fields."""
    if dataclasses.is_dataclass(value):
        fields = (f".{field.name} = {constant(getattr(value, field.name))}" for field in dataclasses.fields(value))
        return f"{type(value).__name__}{{{', '.join(fields)}}}"
    if isinstance(value, tuple):
        return f"{{{', '.join(map(constant, value))}}}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value))


def template(value: Any) -> str:
    """A dataclass as C++: the template of its name, over its fields. Strings are types."""
    fields = (getattr(value, field.name) for field in dataclasses.fields(value))
    return f"{type(value).__name__}<{', '.join(item if isinstance(item, str) else constant(item) for item in fields)}>"


@dataclasses.dataclass(frozen=True)
class Strides:
    """Strides of a view, as Strides in cuda/kernels/elements.h."""

    rank: int
    of: tuple[int, ...]


def input_type(op: Op, number: int) -> str:
    """The type that reads input `number` of an op through its view (cuda/kernels/elements.h)."""
    operand = op.inputs[number]
    strides = tuple(operand.view.strides())
    return f"Input<{number}, {element(operand.dtype)}, {constant(Strides(len(strides), strides))}>"
