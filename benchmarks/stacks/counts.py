"""How many layers BrainSlug can optimise and in how many stacks (sections 3.2 and 4.1), counted on torchvision's networks."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from benchmarks import zoo
from benchmarks.zoo.network import layers
from benchmarks.zoo.network.network import Network


@dataclasses.dataclass(frozen=True)
class Counts:
    """What table 2 of the paper counts of a network.

    Attributes:
        layers: nodes of PyTorch's trace.
        optimisable: layers that are element-wise or pools.
        stacks: runs of these.
    """

    layers: int
    optimisable: int
    stacks: int


@dataclasses.dataclass(frozen=True)
class Published:
    """What the paper's table 2 says of a network; shares and speed-ups are those of its CPU at batch 128.

    Attributes:
        counts: its first columns.
        share: per cent of the time that optimisable layers take.
        speedup: per cent by which the network becomes faster.
    """

    counts: Counts
    share: float
    speedup: float


def _published(layers: int, optimisable: int, stacks: int, share: float, speedup: float) -> Published:
    return Published(Counts(layers, optimisable, stacks), share, speedup)


PAPER = {
    "alexnet": _published(27, 12, 8, 3.0, 2.5),
    "inception_v3": _published(316, 203, 103, 8.7, 7.1),
    "densenet121": _published(429, 247, 124, 13.1, 10.5),
    "densenet161": _published(569, 327, 164, 10.9, 8.9),
    "densenet169": _published(597, 343, 172, 13.9, 11.2),
    "densenet201": _published(709, 407, 204, 13.7, 11.0),
    "resnet18": _published(71, 39, 21, 4.8, 3.8),
    "resnet34": _published(127, 71, 37, 3.6, 2.9),
    "resnet50": _published(177, 104, 54, 8.2, 6.4),
    "resnet101": _published(347, 206, 105, 6.5, 5.0),
    "resnet152": _published(517, 308, 156, 6.3, 4.8),
    "squeezenet1_0": _published(66, 31, 29, 4.5, 4.0),
    "squeezenet1_1": _published(66, 31, 29, 16.9, 13.9),
    "vgg11": _published(35, 17, 10, 3.8, 3.3),
    "vgg11_bn": _published(43, 25, 10, 4.5, 4.0),
    "vgg13": _published(39, 19, 12, 3.3, 2.8),
    "vgg13_bn": _published(49, 29, 12, 4.0, 3.4),
    "vgg16": _published(45, 22, 15, 2.7, 2.4),
    "vgg16_bn": _published(58, 35, 15, 3.4, 2.9),
    "vgg19": _published(51, 25, 18, 2.5, 2.1),
    "vgg19_bn": _published(67, 41, 18, 3.0, 2.6),
}

# PyTorch 0.3 traces a linear layer as three nodes.
_NODES = {"linear": 3}

# Before which of the convolutions and linear layers a Dropout stands, which our descriptions leave out.
_DROPOUTS = {"alexnet": (-3, -2), "vgg": (-2, -1), "squeezenet": (-1,), "inception": (-1,)}


def count(name: str) -> Counts:
    """The counts of one of the networks in `PAPER`.

    A layer joins the stack that ends in what it reads, if nothing else reads that. Two rules are not in the paper's text, but
    its numbers ask for them. An addition belongs to the stack of its first summand, without being a layer of it. A pool does
    not join a stack that has an addition.
    """
    network = zoo.describe(name)
    readers = Counter(source for node in network.nodes for source in node.sources)
    nodes = optimisable = stacks = 0
    stack_at: dict[str, _Stack] = {}
    for node, kinds in zip(network.nodes, _kinds(name, network), strict=True):
        source = node.sources[0]
        stack = stack_at.get(source) if readers[source] == 1 else None
        for kind in kinds:
            nodes += _NODES.get(kind, 1)
            if kind in ("element-wise", "pool"):
                optimisable += 1
                if stack is None or (kind == "pool" and stack == "with an addition"):
                    stacks += 1
                    stack = "plain"
            else:
                stack = "with an addition" if kind == "add" and stack else None
        stack_at[node.name] = stack
    return Counts(nodes, optimisable, stacks)


_Stack = Literal["plain", "with an addition"] | None
_Kind = Literal["element-wise", "pool", "add", "linear", "other"]

_KINDS: dict[type[layers.Layer], _Kind] = {
    layers.BatchNorm: "element-wise",
    layers.Activation: "element-wise",
    layers.Pool: "pool",
    layers.GlobalMean: "pool",
    layers.Add: "add",
    layers.Linear: "linear",
}


def _kinds(name: str, network: Network) -> Iterator[list[_Kind]]:
    """The nodes of PyTorch's trace that each layer of a description stands for."""
    family = next((family for family in _DROPOUTS if name.startswith(family)), None)
    weighted = [node for node in network.nodes if isinstance(node.layer, layers.Conv | layers.Linear)]
    dropped = [weighted[place].name for place in _DROPOUTS.get(family or "", ())]
    for node in network.nodes:
        dropout: list[_Kind] = ["element-wise"] if node.name in dropped else []
        view: list[_Kind] = ["other"] if isinstance(node.layer, layers.Linear) and len(node.inputs[0]) == 4 else []
        # Inception drops out of the pooled image, AlexNet of the vector.
        before = dropout + view if family == "inception" else view + dropout
        yield [*before, _KINDS.get(type(node.layer), "other")]
