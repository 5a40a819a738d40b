"""SqueezeNet, as torchvision defines it: few channels, seen by 1x1 and 3x3 convolutions side by side."""

from __future__ import annotations

import functools

from benchmarks.zoo.blocks import CLASSES, RELU, conv, max_pool
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import Flatten, GlobalMean
from benchmarks.zoo.network.network import Network

_POOL = max_pool(3, 2, ceil=True)
_SQUEEZED = (16, 16, 32, 32, 48, 48, 64, 64)  # a fire each; four times as many leave each of its sides
# Channels and kernel of the first convolution, and the fires with a pool before them.
_VARIANTS = {"1_0": (96, 7, (0, 3, 7)), "1_1": (64, 3, (0, 2, 4))}


def squeezenet(size: Size, *, version: str) -> Network:
    channels, kernel, pooled = _VARIANTS[version]
    net = Network()
    x = net(net.image(size.batch, size.image_size or 224), conv(channels, kernel, 2, pad=0), RELU)
    for index, width in enumerate(_SQUEEZED):
        if index in pooled:
            x = net(x, _POOL)
        x = net(x, conv(width, 1), RELU)
        x = net.concat(*(net(x, conv(4 * width, side), RELU) for side in (1, 3)))
    return net.returns(net(x, conv(CLASSES, 1), RELU, GlobalMean(), Flatten()))


NETWORKS = {f"squeezenet{version}": functools.partial(squeezenet, version=version) for version in _VARIANTS}
