"""Inception-v3, as torchvision defines it: branches of many kernel shapes side by side."""

from __future__ import annotations

import functools

from benchmarks.zoo.blocks import CLASSES, max_pool, mean_pool, norm_conv
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import GlobalMean, Linear
from benchmarks.zoo.network.network import Network, Value

_conv = functools.partial(norm_conv, epsilon=1e-3)
_ROW, _COLUMN = (1, 7), (7, 1)
_SMALL_ROW, _SMALL_COLUMN = (1, 3), (3, 1)


def _a(net: Network, x: Value, pooled: int) -> Value:
    return net.concat(
        net(x, *_conv(64, 1)),
        net(x, *_conv(48, 1), *_conv(64, 5)),
        net(x, *_conv(64, 1), *_conv(96, 3), *_conv(96, 3)),
        net(x, mean_pool(3, 1, 1), *_conv(pooled, 1)),
    )


def _b(net: Network, x: Value) -> Value:
    return net.concat(
        net(x, *_conv(384, 3, 2, pad=0)),
        net(x, *_conv(64, 1), *_conv(96, 3), *_conv(96, 3, 2, pad=0)),
        net(x, max_pool(3, 2)),
    )


def _c(net: Network, x: Value, width: int) -> Value:
    return net.concat(
        net(x, *_conv(192, 1)),
        net(x, *_conv(width, 1), *_conv(width, _ROW), *_conv(192, _COLUMN)),
        net(x, *_conv(width, 1), *_conv(width, _COLUMN), *_conv(width, _ROW), *_conv(width, _COLUMN), *_conv(192, _ROW)),
        net(x, mean_pool(3, 1, 1), *_conv(192, 1)),
    )


def _d(net: Network, x: Value) -> Value:
    return net.concat(
        net(x, *_conv(192, 1), *_conv(320, 3, 2, pad=0)),
        net(x, *_conv(192, 1), *_conv(192, _ROW), *_conv(192, _COLUMN), *_conv(192, 3, 2, pad=0)),
        net(x, max_pool(3, 2)),
    )


def _e(net: Network, x: Value) -> Value:
    def fork(y: Value) -> Value:
        return net.concat(net(y, *_conv(384, _SMALL_ROW)), net(y, *_conv(384, _SMALL_COLUMN)))

    return net.concat(
        net(x, *_conv(320, 1)),
        fork(net(x, *_conv(384, 1))),
        fork(net(x, *_conv(448, 1), *_conv(384, 3))),
        net(x, mean_pool(3, 1, 1), *_conv(192, 1)),
    )


def inception_v3(size: Size) -> Network:
    net = Network()
    x = net.image(size.batch, size.image_size or 299)
    x = net(x, *_conv(32, 3, 2, pad=0), *_conv(32, 3, pad=0), *_conv(64, 3), max_pool(3, 2))
    x = net(x, *_conv(80, 1), *_conv(192, 3, pad=0), max_pool(3, 2))
    for pooled in (32, 64, 64):
        x = _a(net, x, pooled)
    x = _b(net, x)
    for width in (128, 160, 160, 192):
        x = _c(net, x, width)
    x = _e(net, _e(net, _d(net, x)))
    return net.returns(net(x, GlobalMean(), Linear(CLASSES)))


NETWORKS = {"inception_v3": inception_v3}
