"""What an op family must say about itself. Adding an op means adding one module with a family, its kernel and its test."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.ops.attrs import Attrs, Words
from aspen_jax.ops.block_program import BlockProgram
from aspen_jax.ops.opcodes import lane_of

if TYPE_CHECKING:
    from jax import Array

    from aspen_jax.ir.program import Op, Operand


# Shape and dtype of a value.
Typed = tuple[tuple[int, ...], np.dtype]

# The boxes of tiles are int32.
MAX_EXTENT = 2**31 - 1

# Columns of the register block of the widest matrix kernel (cpu/panels.h): a tile of fewer wastes lanes.
PRODUCT_COLUMNS = 32


def unpermuted(entries: Sequence[int], permutation: Sequence[int]) -> tuple[int, ...]:
    """Entries per dimension of a transposed tensor, in the order of the tensor itself."""
    result = [0] * len(permutation)
    for axis, source in enumerate(permutation):
        result[source] = entries[axis]
    return tuple(result)


class Work(NamedTuple):
    """Estimated work of tiles: arrays of one entry a tile.

    Attributes:
        flops: floating-point operations.
        bytes: moved.
        pieces: places at which reading a matrix begins anew, since the columns that a tile wants of its rows lie apart.
    """

    flops: np.ndarray
    bytes: np.ndarray
    pieces: np.ndarray | float = 0.0


def pieces(operand: Operand, boxes: np.ndarray) -> np.ndarray:
    """How many pieces of adjacent elements the boxes of an operand are; none where each holds all that lies side by side."""
    for axis, (stride, extent) in enumerate(zip(operand.view.strides(), operand.shape, strict=True)):
        if stride == 1 and extent > 1:
            lengths = np.maximum(boxes[:, axis, 1] - boxes[:, axis, 0], 0)
            others = np.prod(np.maximum(np.delete(boxes, axis, axis=1) @ (-1, 1), 0), axis=1, dtype=np.float64)
            return np.where(lengths < extent, others, 0.0)
    return np.zeros(len(boxes))


class OpFamily(abc.ABC):
    """One kind of operation: shapes, regions, work, kernel and reference.

    Boxes are integer arrays [tiles, rank, 2] of half-open ranges [lo, hi).
    """

    name: str
    kernel: str
    kernel_inputs: int | None = None  # how many the kernel itself reads, before those of an epilogue; None: all
    attrs_type: type[Attrs] | None = None
    takes_epilogue: bool = False
    alike_everywhere: bool = True  # whether a box of the output is computed from what it reads alone, wherever it lies
    may_have_further: bool = False  # whether an op may have outputs beside the first
    repeats: bool = False  # whether boxes side by side compute some values twice
    rewrites: int | None = None  # main input of which a box of the output reads that very box, so that it may lie in its memory
    weight_inputs: tuple[int, ...] = ()  # main inputs that are read fastest where they are dense: worth storing so beforehand

    def num_main(self, op: Op) -> int:
        """How many of the op's inputs belong to the kernel itself; the rest belong to the epilogue."""
        return len(op.inputs) if self.kernel_inputs is None else self.kernel_inputs

    @abc.abstractmethod
    def infer(self, attrs: Any, inputs: Sequence[Typed]) -> Typed:
        """Shape and dtype of the result before any epilogue, from the (shape, dtype) of the kernel's own inputs.

        Raises:
            ValueError: the inputs do not fit together.
        """

    def check(self, op: Op) -> None:
        """Check that an op of any origin fits its inputs, whatever its attributes say.

        Raises:
            ValueError: it does not.
        """
        num_main = self.num_main(op)
        if not 0 <= num_main <= len(op.inputs):
            raise ValueError(f"{len(op.inputs)} inputs where {num_main} are needed")
        if num_main:
            shape, dtype = self.infer(op.attrs, [(item.shape, item.dtype) for item in op.main_inputs])
            if shape != op.output.shape or not self.may_store(op, dtype):
                raise ValueError(f"it gives {dtype}{list(shape)}, not {op.output.dtype}{list(op.output.shape)}")
        if op.further and not self.may_have_further:
            raise ValueError(f"it has {len(op.outputs)} outputs and may have 1")
        if any(value.shape != op.output.shape for value in op.further) or len(set(op.outputs)) < len(op.outputs):
            raise ValueError("its outputs are not all of one shape, or not all different")
        # The program's registers are the op's own result, where there is a kernel, and the inputs after the kernel's.
        registers = len(op.extra_inputs) + (num_main > 0)
        if op.program is None and (op.extra_inputs or not num_main):
            raise ValueError("a program is missing")
        if op.program is not None and op.program.num_inputs != registers:
            raise ValueError(f"its program takes {op.program.num_inputs} inputs and gets {registers}")
        if op.program is not None and len(op.program.results) != len(op.outputs):
            raise ValueError(f"its program gives {len(op.program.results)} results and has {len(op.outputs)} outputs")
        for operand in op.extra_inputs:
            if operand.shape != op.output.shape:
                raise ValueError(f"a program input has shape {list(operand.shape)}, not {list(op.output.shape)}")

    def may_store(self, op: Op, dtype: np.dtype) -> bool:
        """Whether the op, whose result has `dtype` by `infer`, may write an output of the dtype that it has."""
        # Kernels of floats keep float32 until they store their result.
        is_float = lane_of(dtype) == lane_of(op.output.dtype) == "f"
        return op.program is not None or dtype == op.output.dtype or (self.takes_epilogue and is_float)

    def may_end_in_block(self, op: Op) -> bool:
        """Whether a block op that reads the op's result may become its epilogue."""
        return self.takes_epilogue

    @abc.abstractmethod
    def main_region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        """The box of main input `index` (in its view's coordinates) that each output box reads. May be empty (hi <= lo)."""

    def reads_well(self, op: Op, index: int, operand: Operand) -> bool:
        """Whether main input `index` may be read through this view rather than from a dense copy made once."""
        return True

    def permuted(self, op: Op, permutations: Sequence[tuple[int, ...]]) -> tuple[Any, tuple[int, ...]] | None:
        """The op in its operands' own order of dimensions, where it does not care: attributes and output permutation.

        Main input i is its value transposed by `permutations[i]`. The op with the returned attributes on the values themselves
        gives an output which, transposed by the returned permutation, is this op's output. None where it does care.
        """
        return None

    def written_as(self, op: Op, permutation: Sequence[int]) -> Any | None:
        """Attributes with which the op writes its output transposed by `permutation`; None where it cannot."""
        return None

    def reads_across(self, op: Op, index: int) -> bool:
        """Whether main input `index` is read across its last dimension, so that nothing is won by writing it in that order."""
        return False

    @abc.abstractmethod
    def work(self, op: Op, boxes: np.ndarray) -> Work:
        """Floating-point operations and bytes moved for each output box, epilogue included."""

    @abc.abstractmethod
    def reference(self, attrs: Any, *inputs: Array) -> Array:
        """The same result in jax.lax, without epilogue."""

    def references(self, attrs: Any, *inputs: Array) -> list[Array]:
        """All results in jax.lax, where a kernel has several outputs."""
        return [self.reference(attrs, *inputs)]

    def attrs_of_part(self, op: Op, part: Op) -> Any | None:
        """Attributes with which the op gives one of equal parts of its output; None where no attributes do so for each part.

        Args:
            op: the whole. Each part of its output reads only the same part of some inputs, and the same of all others.
            part: the op with a part of the output and of those inputs, and with its attributes as they are.
        """
        return op.attrs

    def region(self, op: Op, index: int, boxes: np.ndarray) -> np.ndarray:
        """The box of input `index`, in its view's coordinates, that each output box reads: the only source of dependencies."""
        if index >= self.num_main(op):
            return boxes
        return self.main_region(op, index, boxes)

    def rewritten(self, op: Op) -> Operand | None:
        """The operand whose memory the output may take, element for element; None where there is none.

        The kernel then finds the input and the output at one address, writes what changes and leaves the rest.
        """
        if self.rewrites is None or self.rewrites >= len(op.inputs):
            return None
        return op.inputs[self.rewrites] if may_lie_in(op, op.inputs[self.rewrites]) else None

    def keeps_rest(self, op: Op) -> bool:
        """Whether an op leaves the rest of the operand as it is, in whose memory it works."""
        return op.in_place and self.rewrites is not None

    def grain(self, op: Op) -> tuple[int, ...]:
        """The smallest extent worth a tile of its own in each output dimension, for SIMD and register blocks."""
        shape = op.output.shape
        return tuple(min(16, extent) if axis == len(shape) - 1 else 1 for axis, extent in enumerate(shape))

    def params(self, op: Op) -> list[int]:
        """The op's parameter words."""
        words = [] if op.attrs is None else op.attrs.to_words()
        return words + ([0] if op.program is None else [1, *op.program.to_words()])

    def parse(self, words: Sequence[int], num_outputs: int = 1) -> tuple[Any, BlockProgram | None]:
        """Attributes and program from parameter words of an op of so many outputs.

        Raises:
            ValueError: the words are not of this family.
        """
        reader = Words(words)
        attrs = None if self.attrs_type is None else self.attrs_type.from_words(reader)
        program = BlockProgram.from_words(reader, num_outputs) if reader.integer() else None
        if not reader.done():
            raise ValueError(f"{self.name}: more parameter words than it has attributes")
        return attrs, program


def may_lie_in(op: Op, operand: Operand) -> bool:
    """Whether an op's output may lie where an operand does, element for element."""
    fits = operand.view.is_dense() and (operand.value.size, operand.dtype) == (op.output.size, op.output.dtype)
    return fits and sum(item.value is operand.value for item in op.inputs) == 1


# All families, by their kernels' names.
FAMILIES: dict[str, OpFamily] = {}
_registered: set[OpFamily] = set()
# What tells versions of users' kernels apart, by name.
_versions: dict[str, str] = {}


def register(family: OpFamily) -> None:
    """Let converters use a family of a user's, whose kernel no back-end of ours has.

    Raises:
        InputError: it is a class, or its kernel's name is taken.
    """
    if not isinstance(family, OpFamily):
        raise InputError(f"{family!r} is no op family; register an instance of a class that derives from OpFamily")
    if not all(isinstance(getattr(family, name, None), str) for name in ("name", "kernel")):
        raise InputError(f"{type(family).__name__} needs a `name` for reports and the `kernel` that computes it; write both")
    if family.kernel in FAMILIES:
        raise InputError(f"there is an op with a kernel {family.kernel!r} already; give yours another name")
    FAMILIES[family.kernel] = family
    _registered.add(family)


def set_version(kernel: str, version: str) -> None:
    """Say which version of a user's kernel this process has: what was measured with another one does not count."""
    _versions[kernel] = version


def version_of(family: OpFamily) -> str:
    """The version of a family's kernel; "" of one that comes with the package, or was registered without Python."""
    return _versions.get(family.kernel, "")


def is_registered(family: OpFamily) -> bool:
    """Whether a family is a user's: nothing is known of the time that its kernel takes."""
    return family in _registered
