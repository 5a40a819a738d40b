"""A network: layers and where each takes its values from."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Literal

from aspen_jax.errors import InputError
from benchmarks.zoo.network.layers import Add, Concat, Layer, Multiply, Shape

InputKind = Literal["image", "rows", "token ids", "segments", "mask"]


@dataclasses.dataclass(frozen=True)
class Input:
    """What a network is called with.

    Attributes:
        kind: images and rows of numbers are float32, token ids and segments int32, masks bool.
        shape: as JAX sees it.
        below: token ids and segments are less than that.
    """

    kind: InputKind
    shape: Shape
    below: int = 0


@dataclasses.dataclass(frozen=True)
class Node:
    """A layer in its place.

    Attributes:
        name: its kind and how many of that kind came before, such as Conv0.
        layer: what it computes.
        sources: names of nodes or inputs.
        inputs: their shapes.
        shape: of the result.
        parameters: the name of the node whose parameters it has; mostly its own.
    """

    name: str
    layer: Layer
    sources: tuple[str, ...]
    inputs: tuple[Shape, ...]
    shape: Shape
    parameters: str


@dataclasses.dataclass(frozen=True)
class Value:
    """What a node gives, or an input."""

    name: str
    shape: Shape


class Network:
    """A network under construction, and then its description: `net(x, layer, layer, ...)` adds layers one behind the other."""

    def __init__(self) -> None:
        self.inputs: dict[str, Input] = {}
        self.nodes: list[Node] = []
        self.outputs: list[str] = []
        self._count: Counter[str] = Counter()

    def input(self, kind: InputKind, shape: Shape, below: int = 0) -> Value:
        """Add an input."""
        name = kind.replace(" ", "_")
        self.inputs[name] = Input(kind, shape, below)
        return Value(name, shape)

    def image(self, batch: int, extent: int) -> Value:
        """An input of images of three colours."""
        return self.input("image", (batch, extent, extent, 3))

    def __call__(self, x: Value, *layers: Layer) -> Value:
        for layer in layers:
            x = self._append(layer, x)
        return x

    def with_mask(self, layer: Layer, x: Value, mask: Value) -> Value:
        """A layer that looks only where the mask is true."""
        return self._append(layer, x, mask)

    def tied(self, layer: Layer, x: Value, owner: Value) -> Value:
        """A layer with another's parameters."""
        return self._append(layer, x, owner=owner.name)

    def add(self, *values: Value) -> Value:
        return self._append(Add(), *values)

    def multiply(self, x: Value, gate: Value) -> Value:
        return self._append(Multiply(), x, gate)

    def concat(self, *values: Value) -> Value:
        return self._append(Concat(), *values)

    def returns(self, *values: Value) -> Network:
        """End the description; it must be called once."""
        self.outputs = [value.name for value in values]
        return self

    def parameter_shapes(self) -> dict[str, dict[str, Shape]]:
        """The shapes of all parameters, by node and name."""
        shapes = {node.name: node.layer.parameters(*node.inputs) for node in self.nodes}
        return {name: of_node for name, of_node in shapes.items() if of_node}

    def number_of_parameters(self) -> int:
        """How many numbers are learned; statistics of batch normalisation are not, so they do not count."""
        learned = (
            shape for of_node in self.parameter_shapes().values() for name, shape in of_node.items() if name not in _MEASURED
        )
        return sum(math.prod(shape) for shape in learned)

    def _append(self, layer: Layer, *sources: Value, owner: str | None = None) -> Value:
        kind = type(layer).__name__
        name = f"{kind}{self._count[kind]}"
        self._count[kind] += 1
        inputs = tuple(source.shape for source in sources)
        shape = layer.output(*inputs)
        if min(shape) < 1:
            raise InputError(f"{layer} leaves nothing of an image of {inputs[0][1]}x{inputs[0][2]}; take larger images")
        names = tuple(source.name for source in sources)
        self.nodes.append(Node(name, layer, names, inputs, shape, owner or name))
        return Value(name, shape)


_MEASURED = ("mean", "variance")
