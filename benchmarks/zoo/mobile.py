"""MobileNetV2 and EfficientNet-B0, as torchvision defines them: depthwise convolutions between 1x1 ones."""

from __future__ import annotations

from benchmarks.zoo.blocks import CLASSES, conv, norm_conv
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import Activation, ActivationKind, GlobalMean, Linear
from benchmarks.zoo.network.network import Network, Value

# Each stage: how much wider a block is inside, its channels, blocks, the first one's stride, the depthwise kernel.
_MOBILENET_V2 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 32, 3, 2, 3),
    (6, 64, 4, 2, 3),
    (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)
_EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
_Stages = tuple[tuple[int, int, int, int, int], ...]


def _squeeze_and_excite(net: Network, x: Value, squeezed: int) -> Value:
    gate = net(x, GlobalMean(), conv(squeezed, 1), Activation("silu"), conv(x.shape[3], 1), Activation("sigmoid"))
    return net.multiply(x, gate)


def _network(size: Size, stages: _Stages, activation: ActivationKind, *, gated: bool) -> Network:
    net = Network()
    x = net(net.image(size.batch, size.image_size or 224), *norm_conv(32, 3, 2, activation=activation))
    for expansion, channels, blocks, stage_stride, kernel in stages:
        for block in range(blocks):
            stride = stage_stride if not block else 1
            before, width = x.shape[3], x.shape[3] * expansion
            y = net(x, *norm_conv(width, 1, activation=activation)) if expansion > 1 else x
            y = net(y, *norm_conv(width, kernel, stride, groups=width, activation=activation))
            if gated:
                y = _squeeze_and_excite(net, y, before // 4)
            y = net(y, *norm_conv(channels, 1, activation=None))
            x = net.add(x, y) if x.shape == y.shape else y
    return net.returns(net(x, *norm_conv(1280, 1, activation=activation), GlobalMean(), Linear(CLASSES)))


def mobilenet_v2(size: Size) -> Network:
    return _network(size, _MOBILENET_V2, "relu6", gated=False)


def efficientnet_b0(size: Size) -> Network:
    return _network(size, _EFFICIENTNET_B0, "silu", gated=True)


NETWORKS = {"mobilenet_v2": mobilenet_v2, "efficientnet_b0": efficientnet_b0}
