"""RepVGG as it is deployed: the branches it was trained with folded into plain 3x3 convolutions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

from benchmarks.zoo.blocks import CLASSES, conv
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import Activation, ActivationKind, GlobalMean, Linear
from benchmarks.zoo.network.network import Network, Value


@dataclasses.dataclass(frozen=True)
class Shape:
    """Layers and widths of the stages, of which the first layer makes the image half as large, too."""

    layers: tuple[int, ...]
    widths: tuple[int, ...]


VARIANTS = {
    "a0": Shape((1, 2, 4, 14, 1), (48, 48, 96, 192, 1280)),
    "a1": Shape((1, 2, 4, 14, 1), (64, 64, 128, 256, 1280)),
    "b0": Shape((1, 4, 6, 16, 1), (64, 64, 128, 256, 1280)),
}


def convolutions(shape: Shape, *, deepened: bool = False) -> Iterator[tuple[int, int, int]]:
    """Channels, kernel and stride of each convolution; `deepened` has a 1x1 behind each 3x3 but the last (Bolt, section 4.3)."""
    last = len(shape.layers) - 1
    for stage, (layers, width) in enumerate(zip(shape.layers, shape.widths, strict=True)):
        for layer in range(layers):
            yield width, 3, 1 if layer else 2
            if deepened and (stage, layer) != (last, layers - 1):
                yield width, 1, 1


def deployed(
    net: Network,
    image: Value,
    shape: Shape,
    activation: ActivationKind = "relu",
    *,
    deepened: bool = False,
    classes: int = CLASSES,
) -> Network:
    """Describe a network on an image of `net`."""
    x = image
    for width, kernel, stride in convolutions(shape, deepened=deepened):
        x = net(x, conv(width, kernel, stride), Activation(activation))
    return net.returns(net(x, GlobalMean(), Linear(classes)))


def repvgg(size: Size, *, variant: str, activation: ActivationKind = "relu", deepened: bool = False) -> Network:
    net = Network()
    image = net.image(size.batch, size.image_size or 224)
    return deployed(net, image, VARIANTS[variant], activation, deepened=deepened)


NETWORKS = {f"repvgg_{variant}": functools.partial(repvgg, variant=variant) for variant in VARIANTS}
