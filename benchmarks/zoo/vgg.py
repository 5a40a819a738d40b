"""AlexNet and VGG, as torchvision defines them: convolutions one behind the other, then three large linear layers."""

from __future__ import annotations

import functools

from benchmarks.zoo.blocks import CLASSES, RELU, conv, max_pool
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import BatchNorm, Linear
from benchmarks.zoo.network.network import Network

_POOL = max_pool(2, 2)
_WIDTHS = (64, 128, 256, 512, 512)
_DEPTHS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_CLASSIFIER = (Linear(4096), RELU, Linear(4096), RELU, Linear(CLASSES))


def alexnet(size: Size) -> Network:
    net = Network()
    pool = max_pool(3, 2)
    x = net.image(size.batch, size.image_size or 224)
    x = net(x, conv(64, 11, stride=4, pad=2), RELU, pool, conv(192, 5), RELU, pool)
    x = net(x, conv(384, 3), RELU, conv(256, 3), RELU, conv(256, 3), RELU, pool)
    return net.returns(net(x, *_CLASSIFIER))


def vgg(size: Size, *, depth: int, norm: bool) -> Network:
    net = Network()
    x = net.image(size.batch, size.image_size or 224)
    for channels, repeats in zip(_WIDTHS, _DEPTHS[depth], strict=True):
        for _ in range(repeats):
            x = net(x, conv(channels, 3))
            x = net(x, BatchNorm(), RELU) if norm else net(x, RELU)
        x = net(x, _POOL)
    return net.returns(net(x, *_CLASSIFIER))


NETWORKS = {
    "alexnet": alexnet,
    **{f"vgg{depth}": functools.partial(vgg, depth=depth, norm=False) for depth in _DEPTHS},
    **{f"vgg{depth}_bn": functools.partial(vgg, depth=depth, norm=True) for depth in _DEPTHS},
}
