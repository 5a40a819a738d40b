"""Evaluates a Program op by op in jax.lax: the reference for passes and for every kernel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.loop import LOOP, run_in_jax
from aspen_jax.ops.opcodes import lane_of
from aspen_jax.ops.partial_reduce import PARTIAL_REDUCE, part_of, partial_results
from aspen_jax.ops.stack import STACK, parts_of
from aspen_jax.ops.transposed import TRANSPOSED
from aspen_jax.ops.transposed import part_of as untransposed


def evaluate(program: Program, *arrays: np.ndarray) -> list[np.ndarray]:
    """The program's outputs for inputs of the program's shapes and dtypes."""
    values: dict[Value, np.ndarray] = dict(zip(program.inputs, map(np.asarray, arrays), strict=True))
    values.update(program.constants)
    for op in program.ops:
        values.update(zip(op.outputs, _evaluate_op(op, values), strict=True))
    return [_read(operand, values) for operand in program.outputs]


def _read(operand: Operand, values: dict[Value, np.ndarray]) -> np.ndarray:
    return np.array(operand.view.gather(values[operand.value]))


def _evaluate_op(op: Op, values: dict[Value, np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(result) for result in results_of(op, *(jnp.asarray(item) for item in op_inputs(op, values)))]


def op_inputs(op: Op, values: dict[Value, np.ndarray]) -> list[np.ndarray]:
    """What the op reads of the values, in the shapes of its operands."""
    return [_read(operand, values) for operand in op.inputs]


def result_of(op: Op, *inputs: jax.Array) -> jax.Array:
    """The first output of `results_of`."""
    return results_of(op, *inputs)[0]


def results_of(op: Op, *inputs: jax.Array) -> list[jax.Array]:
    """The op's outputs in jax.lax, of inputs as `op_inputs` gives them; can be traced."""
    values = list(inputs)
    if op.family is STACK:
        result: list[jax.Array] = []
        for part in parts_of(op):
            count = len(part.inputs) - len(result)
            result = [result_of(part, *result, *values[:count])]
            values = values[count:]
        return result
    if op.family is LOOP:
        return run_in_jax(op.attrs, _traced, values)
    if op.family is PARTIAL_REDUCE:
        whole = result_of(part_of(op), *inputs)
        dtype = op.further[0].dtype
        return [whole, partial_results(op.attrs, whole.astype(dtype))]
    if op.family is TRANSPOSED:
        return [result_of(untransposed(op), *inputs).transpose(op.attrs.permutation)]
    if op.family is not BLOCK:
        count = op.family.num_main(op)
        main = values[:count]
        if op.family.takes_epilogue and lane_of(main[0].dtype) == "f":  # computed in float32, stored as the output's dtype
            main = [item.astype(np.float32) if lane_of(item.dtype) == "f" else item for item in main]
        values = [*op.family.references(op.attrs, *main), *values[count:]]
    if op.program is None:
        return [item.astype(value.dtype) for item, value in zip(values, op.outputs, strict=True)]
    if op.program.is_copy and op.family is BLOCK:
        return [values[0]]
    return op.program.references(*values, shape=op.output.shape, dtypes=[value.dtype for value in op.outputs])


def _traced(program: Program, *arrays: jax.Array) -> list[jax.Array]:
    """The outputs of a program without constants; can be traced."""
    values = dict(zip(program.inputs, arrays, strict=True))

    def read(operand: Operand) -> jax.Array:
        at = operand.view.gather(np.arange(operand.value.size).reshape(operand.value.shape))
        return values[operand.value].reshape(-1)[at]

    for op in program.ops:
        values.update(zip(op.outputs, results_of(op, *map(read, op.inputs)), strict=True))
    return [read(operand) for operand in program.outputs]
