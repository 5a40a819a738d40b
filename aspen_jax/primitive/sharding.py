"""Runs parts that treat their batch entry by entry on each device's own entries, without gathering them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

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

    def partition(_: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
        del results
        cut = next(_Cut.of(item, axis[value]) for value, item in zip(program.inputs, operands[1:], strict=True) if value in axis)
        part = batched.part(cut.count)
        if part is None:
            cut, part = dataclasses.replace(cut, axes=()), program
        of_inputs = tuple(cut.sharding(value, axis.get(value)) for value in program.inputs)
        of_outputs = [cut.sharding(value, axis.get(value)) for value in outputs]
        digest = NamedSharding(cut.mesh, PartitionSpec())
        return cut.mesh, lambda _, *local: run(part, local), of_outputs, (digest, *of_inputs)

    rule, others = _rule(program.inputs, outputs, axis)
    operation = custom_partitioning(whole)
    # Decoded, a sharding would need the program's mesh, which JAX knows only where there is a single one.
    operation.def_partition(partition, decode_shardings=False, sharding_rule=rule, need_replication_factors=others)
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


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How the batch is cut.

    Attributes:
        mesh: all devices, in XLA's order.
        axes: those axes of the mesh that cut the batch, the slowest first.
    """

    mesh: Mesh
    axes: tuple[str, ...]

    @classmethod
    def of(cls, array: Any, dimension: int | None) -> _Cut:
        """The way in which a dimension of an array is cut that XLA has spread; as a whole where no mesh cuts it so."""
        rank, count = len(array.shape), array.sharding.num_devices
        places = array.sharding.devices_indices_map((count,) * rank)  # XLA cuts a dimension by a divisor of the number of devices
        sizes, weights = (count,), (0,)
        if dimension is not None:
            starts = [place[dimension].start or 0 for place in places.values()]
            sizes, weights = digits([start // (min(filter(None, starts), default=1)) for start in starts]) or (sizes, weights)
        names = [f"axis{number}" for number in range(len(sizes))]
        slowest_first = sorted(zip(weights, names, strict=True), reverse=True)
        return cls(Mesh(np.array([*places]).reshape(sizes), names), tuple(name for weight, name in slowest_first if weight))

    @property
    def count(self) -> int:
        """How many parts there are."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)

    def sharding(self, value: Value, dimension: int | None) -> NamedSharding:
        """A value cut along one of its dimensions, or along none."""
        return NamedSharding(
            self.mesh, PartitionSpec(*(self.axes if at == dimension else None for at in range(len(value.shape))))
        )


def digits(numbers: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Sizes and weights of digits, the slowest first, of which the n-th combination has the n-th number as its sum.

    None where there are no such digits.
    """
    sizes: list[int] = []
    weights: list[int] = []
    rest = numbers
    while len(rest) > 1:
        size = next((at for at, number in enumerate(rest) if number != at * rest[1]), len(rest))
        if size < 2 or len(rest) % size:
            return None
        sizes.insert(0, size)
        weights.insert(0, rest[1])
        rest = rest[::size]
    sums = sum(weight * digit for weight, digit in zip(weights, np.indices(sizes), strict=True))
    return (tuple(sizes), tuple(weights)) if np.array_equal(np.ravel(sums), numbers) else None


def num_devices(ctx: Any) -> int:
    """How many devices XLA's partitioner spreads a lowering over: 1 inside `jax.shard_map`."""
    return getattr(ctx.module_context.axis_context, "num_devices", 1)


def with_devices(ctx: Any, platform: str) -> Any:
    """A lowering's context that names as many devices as its program is for, or None where this process knows fewer.

    JAX names them only where a primitive asked for them when it was traced. It refuses such a primitive in a program for an
    abstract mesh, or for two meshes. Which devices they are does not matter: a partitionable operation only counts them.
    """
    context = ctx.module_context.axis_context
    count = num_devices(ctx)
    if count == 1 or context.device_assignment is not None:
        return ctx
    try:
        devices = tuple(jax.devices(platform)[:count])
    except RuntimeError:  # it is lowered here for a platform that is elsewhere
        return None
    if len(devices) < count:
        return None
    named = dataclasses.replace(context, device_assignment=devices)
    return ctx.replace(module_context=ctx.module_context.replace(axis_context=named))
