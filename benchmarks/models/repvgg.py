"""RepVGG as it is deployed: the branches it was trained with folded into plain 3x3 convolutions."""

from __future__ import annotations

import functools

from benchmarks.models.blocks import CLASSES, RELU, conv
from benchmarks.models.model import Size
from benchmarks.network.layers import GlobalMean, Linear
from benchmarks.network.network import Network

# Layers and widths of the stages, of which the first makes the image half as large, too.
_VARIANTS = {
    "a0": ((1, 2, 4, 14, 1), (48, 48, 96, 192, 1280)),
    "a1": ((1, 2, 4, 14, 1), (64, 64, 128, 256, 1280)),
    "b0": ((1, 4, 6, 16, 1), (64, 64, 128, 256, 1280)),
}


def repvgg(size: Size, *, variant: str) -> Network:
    net = Network()
    x = net.image(size.batch, size.image_size or 224)
    for layers, width in zip(*_VARIANTS[variant], strict=True):
        for layer in range(layers):
            x = net(x, conv(width, 3, 1 if layer else 2), RELU)
    return net.returns(net(x, GlobalMean(), Linear(CLASSES)))


NETWORKS = {f"repvgg_{variant}": functools.partial(repvgg, variant=variant) for variant in _VARIANTS}
