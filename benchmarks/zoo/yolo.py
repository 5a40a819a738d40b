"""YOLOv3: Darknet-53, and three heads that see ever finer images."""

from __future__ import annotations

import functools

from aspen_jax.errors import InputError
from benchmarks.zoo.blocks import conv, norm_conv
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import Upsample
from benchmarks.zoo.network.network import Network, Value

_PREDICTIONS = 3 * (80 + 5)  # three boxes a place: 80 classes, four numbers for the box, one for whether there is any
_BLOCKS = (1, 2, 8, 8, 4)
_COARSEST = 32

_conv = functools.partial(norm_conv, activation="leaky_relu")


def _neck(net: Network, x: Value, width: int) -> Value:
    return net(x, *_conv(width, 1), *_conv(2 * width, 3), *_conv(width, 1), *_conv(2 * width, 3), *_conv(width, 1))


def yolov3(size: Size) -> Network:
    """Predictions at the three scales, coarse first."""
    extent = size.image_size or 416
    if extent < _COARSEST or extent % _COARSEST:
        raise InputError(f"yolov3 takes images of a multiple of {_COARSEST} pixels, not {extent}; take another size")
    net = Network()
    x = net(net.image(size.batch, extent), *_conv(32, 3))
    scales = []
    for stage, blocks in enumerate(_BLOCKS):
        width = 32 << stage
        x = net(x, *_conv(2 * width, 3, 2))
        for _ in range(blocks):
            x = net.add(x, net(x, *_conv(width, 1), *_conv(2 * width, 3)))
        scales.append(x)
    heads = []
    for width, scale in zip((512, 256, 128), reversed(scales), strict=False):
        x = scale if not heads else net.concat(net(x, *_conv(width, 1), Upsample(2)), scale)
        x = _neck(net, x, width)
        heads.append(net(x, *_conv(2 * width, 3), conv(_PREDICTIONS, 1)))
    return net.returns(*heads)


NETWORKS = {"yolov3": yolov3}
