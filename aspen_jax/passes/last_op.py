"""Lets the last convolution of an NCHW network write its result as the caller wants it (Bolt, section 3.2.3).

So does an outer product, such as the gradient of a weight for a batch of one, which JAX transposes.

A convolution computes NHWC. Without this pass a copy of its own transposes what it has written, from memory to memory. Values in
the middle of a network have no such copies: ops around them take the order in which they lie (`layout`).
"""

from __future__ import annotations

from aspen_jax.cost.machine import Machine
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.conv import CONV2D
from aspen_jax.ops.conv_panels import CONV2D_PANELS
from aspen_jax.ops.transposed import transposed_of
from aspen_jax.ops.winograd import WINOGRAD
from aspen_jax.passes.layout import permutation_of

_WRITERS = (CONV2D, CONV2D_PANELS, WINOGRAD)

# A smaller result is transposed as fast by an op of its own, whose tiles need not hold all channels. Not measured.
_SMALLEST_RESULT = 1 << 19


def run(program: Program, machine: Machine = Machine(), *, are_launched: bool = False) -> Program:  # noqa: B008 - immutable
    """Transpose outputs where they are computed, if nothing else reads them.

    With `are_launched` another op is another launch. So any element-wise op does so too, whatever its size. Else one does that
    reads less than it writes, such as an outer product: it would read what is as large across its lines.
    """
    writers = {op.output: op for op in program.ops if (op.family in _WRITERS or op.family is BLOCK) and not op.further}
    uses = program.uses()
    outputs, made = list(program.outputs), dict[Op, Op]()
    for index, operand in enumerate(outputs):
        op = writers.get(operand.value)
        if op is None or len(uses[operand.value]) > 1 or operand.view.is_dense():
            continue
        if not are_launched and not (_reads_little(op) if op.family is BLOCK else operand.value.nbytes >= _SMALLEST_RESULT):
            continue
        permutation = permutation_of(operand)
        if permutation is None:
            continue
        output = Value(operand.shape, operand.dtype)
        new = _block(op, permutation, output) if op.family is BLOCK else transposed_of(op, permutation, output)
        if machine.has_kernel(new):
            made[op] = new
            outputs[index] = Operand.whole(new.output)
    return program.replace(ops=tuple(made.get(op, op) for op in program.ops), outputs=tuple(outputs)) if made else program


def _reads_little(op: Op) -> bool:
    """Whether no input has as many elements as the output."""
    return all(item.value.size < op.output.size for item in op.inputs)


def _block(op: Op, permutation: tuple[int, ...], output: Value) -> Op:
    """The element-wise op on its inputs transposed by the permutation."""
    inputs = (Operand(item.value, item.view.transpose(permutation)) for item in op.inputs)
    return op.replace(inputs=tuple(inputs), output=output)
