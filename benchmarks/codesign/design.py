"""The ways to design the network that are compared, and how each is trained."""

from __future__ import annotations

import dataclasses

from benchmarks.codesign.images import CLASSES
from benchmarks.zoo.network.layers import ActivationKind
from benchmarks.zoo.network.network import Network
from benchmarks.zoo.repvgg import Shape, deployed


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way to design the network.

    Attributes:
        activation: behind every convolution.
        deepened: whether a 1x1 convolution follows every 3x3 but the last.
    """

    activation: ActivationKind
    deepened: bool = False

    def describe(self, shape: Shape, image: tuple[int, ...]) -> Network:
        """The folded network on images of the shape [batch, height, width, channels]."""
        net = Network()
        return deployed(net, net.input("image", image), shape, self.activation, deepened=self.deepened, classes=CLASSES)


VARIANTS = {
    "ReLU": Variant("relu"),
    "GELU": Variant("gelu"),
    "Hardswish": Variant("hardswish"),
    "Softplus": Variant("softplus"),
    "ReLU and 1x1": Variant("relu", deepened=True),
    "Hardswish and 1x1": Variant("hardswish", deepened=True),
}
BASE = "ReLU"  # what the others are compared with


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        layers: of each stage.
        widths: channels of each stage.
        epochs: passes over the images.
        step_images: images a step.
        rate: the largest learning rate.
        shift: pixels by which images move at random, at most, in each direction.
    """

    layers: tuple[int, ...] = (1, 2, 2)
    widths: tuple[int, ...] = (16, 32, 64)
    epochs: int = 15
    step_images: int = 50
    rate: float = 3e-3
    shift: int = 2

    @property
    def shape(self) -> Shape:
        return Shape(self.layers, self.widths)
