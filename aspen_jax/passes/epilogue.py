"""Fuses a block op into the op whose result it reads, as its epilogue (Bolt, section 3.1)."""

from __future__ import annotations

from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import BlockBuilder

# An epilogue's inputs compete with the kernel's own blocks for L1.
MAX_EXTRA_INPUTS = 12


def run(program: Program) -> Program:
    """Move each block op into the last producer among its inputs that only it reads."""
    readers = {value: {None if op is None else op.output for op, _ in uses} for value, uses in program.uses().items()}
    hosts: dict[Value, Op] = {}
    ops: dict[Value, Op] = {}
    for op in program.ops:
        if op.family is BLOCK:
            host = _host(op, hosts, readers)
            if host is not None:
                ops.pop(host.output)
                hosts.pop(host.output)
                op = _with_epilogue(host, op)
                for item in op.inputs:
                    readers[item.value] = {op.output if reader is host.output else reader for reader in readers[item.value]}
        if op.family.may_end_in_block(op):
            hosts[op.output] = op
        ops[op.output] = op
    return program.replace(ops=tuple(ops.values()))


def _host(op: Op, hosts: dict[Value, Op], readers: dict[Value, set[Value | None]]) -> Op | None:
    order = list(hosts)
    fitting = [
        hosts[item.value]
        for item in op.inputs
        if item.value in hosts
        and readers[item.value] == {op.output}
        and item.value.shape == op.output.shape
        and all(other.is_whole for other in op.inputs if other.value is item.value)
        and len(hosts[item.value].extra_inputs) + len(op.inputs) - 1 <= MAX_EXTRA_INPUTS
    ]
    return max(fitting, key=lambda host: order.index(host.output), default=None)


def _with_epilogue(host: Op, op: Op) -> Op:
    """`host` finished by the block op `op`, writing what `op` wrote."""
    assert op.program is not None
    extra: dict[Operand, int] = {}
    for item in (*host.extra_inputs, *(item for item in op.inputs if item.value is not host.output)):
        extra.setdefault(item, len(extra) + 1)
    block = BlockBuilder(len(extra) + 1)
    result = block.input(0)
    if host.program is not None:
        result = block.splice(host.program, [result, *(block.input(extra[item]) for item in host.extra_inputs)])
    refs = [result if item.value is host.output else block.input(extra[item]) for item in op.inputs]
    program = block.build(block.splice(op.program, refs))
    name = host.name if host.name == op.name else f"{host.name} + {op.name}"
    return host.replace(inputs=(*host.main_inputs, *extra), output=op.output, program=program, name=name)
