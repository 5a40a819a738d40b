"""DenseNet, as torchvision defines it: every layer sees the channels of all that came before."""

from __future__ import annotations

import functools

from benchmarks.zoo.blocks import CLASSES, RELU, conv, max_pool, mean_pool, norm_conv
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import BatchNorm, Conv, GlobalMean, Layer, Linear
from benchmarks.zoo.network.network import Network

# The channels that a layer adds, those of the first convolution, and the layers of each block.
_VARIANTS = {
    121: (32, 64, (6, 12, 24, 16)),
    161: (48, 96, (6, 12, 36, 24)),
    169: (32, 64, (6, 12, 32, 32)),
    201: (32, 64, (6, 12, 48, 32)),
}


def _unshifted(channels: int, kernel: int) -> Layer:
    plain = conv(channels, kernel)
    return Conv(channels, plain.window, bias=False)


def densenet(size: Size, *, depth: int) -> Network:
    growth, width, blocks = _VARIANTS[depth]
    net = Network()
    x = net.image(size.batch, size.image_size or 224)
    x = net(x, *norm_conv(width, 7, 2), max_pool(3, 2, 1))
    for block, layers in enumerate(blocks):
        if block:
            x = net(x, BatchNorm(), RELU, _unshifted(x.shape[3] // 2, 1), mean_pool(2, 2))
        for _ in range(layers):
            new = net(x, BatchNorm(), RELU, *norm_conv(4 * growth, 1), _unshifted(growth, 3))
            x = net.concat(x, new)
    return net.returns(net(x, BatchNorm(), RELU, GlobalMean(), Linear(CLASSES)))


NETWORKS = {f"densenet{depth}": functools.partial(densenet, depth=depth) for depth in _VARIANTS}
