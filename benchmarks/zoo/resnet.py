"""ResNet, as torchvision defines it: branches that are added to what they started from."""

from __future__ import annotations

import functools
from collections.abc import Callable

from benchmarks.zoo.blocks import CLASSES, RELU, max_pool, norm_conv
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import GlobalMean, Linear
from benchmarks.zoo.network.network import Network, Value

_WIDTHS = (64, 128, 256, 512)

# What training leaves of a branch beside what it is added to. With branches as large as that, deep variants amplify every
# rounding error until no two runtimes agree.
_BRANCH_SCALE = 0.2


def _basic(net: Network, x: Value, width: int, stride: int) -> Value:
    return net(x, *norm_conv(width, 3, stride), *norm_conv(width, 3, activation=None, scale=_BRANCH_SCALE))


def _bottleneck(net: Network, x: Value, width: int, stride: int) -> Value:
    return net(
        x, *norm_conv(width, 1), *norm_conv(width, 3, stride), *norm_conv(4 * width, 1, activation=None, scale=_BRANCH_SCALE)
    )


_Branch = Callable[[Network, Value, int, int], Value]
_VARIANTS: dict[int, tuple[_Branch, tuple[int, ...]]] = {
    18: (_basic, (2, 2, 2, 2)),
    34: (_basic, (3, 4, 6, 3)),
    50: (_bottleneck, (3, 4, 6, 3)),
    101: (_bottleneck, (3, 4, 23, 3)),
    152: (_bottleneck, (3, 8, 36, 3)),
}


def resnet(size: Size, *, depth: int) -> Network:
    branch, depths = _VARIANTS[depth]
    net = Network()
    x = net.image(size.batch, size.image_size or 224)
    x = net(x, *norm_conv(64, 7, 2), max_pool(3, 2, 1))
    for stage, (width, blocks) in enumerate(zip(_WIDTHS, depths, strict=True)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = branch(net, x, width, stride)
            if x.shape != y.shape:
                x = net(x, *norm_conv(y.shape[3], 1, stride, activation=None))
            x = net(net.add(y, x), RELU)
    return net.returns(net(x, GlobalMean(), Linear(CLASSES)))


NETWORKS = {f"resnet{depth}": functools.partial(resnet, depth=depth) for depth in _VARIANTS}
