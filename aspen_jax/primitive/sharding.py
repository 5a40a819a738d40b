"""Runs parts that treat their batch entry by entry on each device's own entries, without gathering them."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import ClosedJaxpr
from jax.sharding import NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from aspen_jax.ir.program import Program, Value


def partitionable(
    program: Program, run: Callable[[Program, Sequence[Any]], list[Any]], identity: bytes
) -> Callable[..., list[Any]] | None:
    """A program as an operation that XLA's partitioner may cut along the batch.

    JAX names such an operation by the address of a Python object, which another one may get later. JAX's cache on disk would
    take the second for the first. So a digest of what the operation computes is an operand that nobody reads.

    Args:
        program: takes its inputs, gives its outputs.
        run: runs a program on arrays; called with the program for a part of the batch, or for all of it, without constants.
        identity: differs where programs differ in more than shapes and constants.

    Returns:
        A function of the program's inputs; None where the program does not treat a batch entry by entry.
    """
    from aspen_jax.primitive.batch import Batched, slowest_axis

    # Constants are operands as well: they may be cut along the batch, and a partitionable operation must close over nothing.
    constants = [array for _, array in program.constants]
    program = program.replace(inputs=(*program.inputs, *(value for value, _ in program.constants)), constants=())
    batched = Batched.of(program)
    outputs = [operand.value for operand in program.outputs]
    if batched is None:
        return None
    axis = {value: slowest_axis(value.shape) for value in (*program.inputs, *outputs) if value in batched.values}
    if any(value.shape[number] != batched.size for value, number in axis.items() if number is not None):
        return None

    digest = np.frombuffer(hashlib.sha256(identity).digest(), np.uint32)

    def whole(_: Any, *operands: Any) -> list[Any]:
        return run(program, operands)

    def partition(mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        axes = next(
            _cut_by(item.sharding, axis[value]) for value, item in zip(program.inputs, operands[1:], strict=True) if value in axis
        )
        count = math.prod(mesh.shape[axis] for axis in _axes(axes))
        part = batched.part(count)
        if part is None:
            axes, part = None, program
        of_inputs = tuple(_sharding(mesh, value, axis.get(value), axes) for value in program.inputs)
        of_outputs = [_sharding(mesh, value, axis.get(value), axes) for value in outputs]
        return mesh, lambda _, *local: run(part, local), of_outputs, (NamedSharding(mesh, PartitionSpec()), *of_inputs)

    rule, others = _rule(program.inputs, outputs, axis)
    operation = custom_partitioning(whole)
    operation.def_partition(partition, sharding_rule=rule, need_replication_factors=others)
    return lambda *operands: list(operation(digest, *operands, *constants))


def _rule(inputs: Sequence[Value], outputs: Sequence[Value], axis: dict[Value, int | None]) -> tuple[str, tuple[str, ...]]:
    """The rule for XLA's partitioner, and the factors that it must not cut: all but the batch."""
    others: list[str] = []

    def factors(value: Value) -> str:
        names = []
        for dimension in range(len(value.shape)):
            if dimension == axis.get(value):
                names.append("n")
            else:
                others.append(f"d{len(others)}")
                names.append(others[-1])
        return " ".join(names)

    left, right = (", ".join(map(factors, values)) for values in (inputs, outputs))
    return f"digest, {left} -> {right}", ("digest", *others)


def _cut_by(sharding: Any, dimension: int | None) -> Any:
    """The mesh axes that cut a dimension."""
    known = isinstance(sharding, NamedSharding) and dimension is not None and dimension < len(sharding.spec)
    return sharding.spec[dimension] if known else None


def _axes(axes: Any) -> tuple[str, ...]:
    return () if axes is None else axes if isinstance(axes, tuple) else (axes,)


def _sharding(mesh: Any, value: Value, batch: int | None, axes: Any) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*(axes if dimension == batch else None for dimension in range(len(value.shape)))))


@functools.cache
def device_probe() -> ClosedJaxpr:
    """A jaxpr that does nothing but say that its lowering has to know the devices, as partitionable operations must."""
    probe = custom_partitioning(lambda x: x)
    probe.def_partition(
        lambda mesh, operands, result: (mesh, lambda x: x, result.sharding, (operands[0].sharding,)), sharding_rule=" -> "
    )
    return jax.make_jaxpr(probe)(0.0)


def num_devices(ctx: Any) -> int:
    """How many devices XLA's partitioner spreads a lowering over: 1 inside `jax.shard_map`."""
    return getattr(ctx.module_context.axis_context, "num_devices", 1)
