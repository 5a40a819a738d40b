"""The program that a TileGraph tiles, read from its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.graph.layout import read_input, refuse
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ir.view import View

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph
    from aspen_jax.ops.family import OpFamily


def program_of(graph: TileGraph, families: Mapping[str, OpFamily] | None = None) -> Program:
    """Gives what `TileGraph.program`."""
    values = [Value(*graph.value(number)) for number in range(len(graph.values))]
    ops = _ops(graph, values, families)
    given = given_values(graph)
    num_inputs = len(graph.operands) - len(graph.constants)
    written = {int(graph.values[output, 0]): values[output] for output in _written(graph)}
    results = [(values[number], int(graph.values[number, 0])) for number in graph.results.tolist()]

    def known(number: int, buffer: int, offset: int) -> np.ndarray:
        value = values[number]
        start = offset // value.dtype.itemsize
        return graph.constants[buffer - num_inputs].reshape(-1)[start : start + value.size].reshape(value.shape)

    return Program(
        inputs=tuple(values[number] for number, buffer, _ in given if buffer < num_inputs),
        constants=tuple((values[item[0]], known(*item)) for item in given if item[1] >= num_inputs),
        ops=ops,
        outputs=tuple(Operand(written.get(buffer) or value, View.identity(value.shape)) for value, buffer in results),
    )


def _ops(graph: TileGraph, values: list[Value], families: Mapping[str, OpFamily] | None) -> tuple[Op, ...]:
    if families is None:
        from aspen_jax.ops import FAMILIES as families
    inputs, params = graph.inputs.tolist(), graph.params.tolist()
    next_input = next_param = 0
    ops: list[Op] = []
    for number, (kernel, output, num_inputs, num_params, _) in enumerate(graph.ops.tolist()):
        operands, places = [], {}
        for _ in range(num_inputs):
            value, view, next_input = read_input(inputs, next_input)
            operands.append(Operand(values[value], view))
            places[values[value]] = graph.values[value, :2].tolist()
        words = params[next_param : next_param + num_params]
        next_param += num_params
        family = families.get(graph.kernels[kernel])
        if family is None:
            refuse(
                f"op {number} ({graph.op_names[number]}) needs kernel {graph.kernels[kernel]!r}, which this aspen_jax does not "
                f"have; it has {', '.join(sorted(families))}. If it is yours, register kernel and op (aspen_jax.extend)"
            )
        outputs = graph.outputs_of(number)
        try:
            attrs, block = family.parse(words, len(outputs))
        except (ValueError, OverflowError) as error:
            refuse(f"op {number} ({graph.op_names[number]}): {error}, in the parameters of {family.kernel}")
        further = tuple(values[other] for other in outputs[1:])
        op = Op(family, attrs, tuple(operands), values[output], block, graph.op_names[number], further=further)
        operand = family.rewritten(op)
        is_there = operand is not None and places[operand.value] == graph.values[output, :2].tolist()
        ops.append(op.replace(in_place=is_there))
    return tuple(ops)


def given_values(graph: TileGraph) -> list[tuple[int, int, int]]:
    """Gives what `TileGraph.given_values`."""
    own = set(graph.operands.tolist())
    written = {*graph.results.tolist(), *_written(graph)} - own
    inside = [(number, buffer, offset) for number, (buffer, offset) in enumerate(graph.values[:, :2].tolist())]
    inside = [item for item in inside if item[1] < len(graph.operands) and item[0] not in written]
    parted = {buffer for number, buffer, _ in inside if number not in own}
    return sorted((item for item in inside if item[0] not in own or item[1] not in parted), key=lambda item: item[1])


def _written(graph: TileGraph) -> list[int]:
    return [*graph.ops[:, 1].tolist(), *graph.further_outputs[:, 1].tolist()]
