"""What descriptions of convolutional networks have in common."""

from __future__ import annotations

from benchmarks.zoo.network.layers import Activation, ActivationKind, BatchNorm, Conv, Layer, Pool, Window

CLASSES = 1000
RELU = Activation("relu")


def conv(channels: int, kernel: int | tuple[int, int], stride: int = 1, pad: int | None = None, groups: int = 1) -> Conv:
    """A convolution with a shift, padded so that only the stride makes the image smaller, or by `pad` on every side."""
    extents = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    padding = (extents[0] // 2, extents[1] // 2) if pad is None else (pad, pad)
    return Conv(channels, Window(extents, stride, padding), groups)


def norm_conv(
    channels: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    pad: int | None = None,
    groups: int = 1,
    *,
    activation: ActivationKind | None = "relu",
    epsilon: float = 1e-5,
    scale: float = 1.0,
) -> tuple[Layer, ...]:
    """A convolution with batch normalisation in place of a shift, by scales around `scale`, and an activation."""
    plain = conv(channels, kernel, stride, pad, groups)
    layers = (Conv(plain.channels, plain.window, groups, bias=False), BatchNorm(epsilon, scale))
    return layers if activation is None else (*layers, Activation(activation))


def max_pool(kernel: int, stride: int, pad: int = 0, *, ceil: bool = False) -> Pool:
    return Pool("max", Window((kernel, kernel), stride, (pad, pad), ceil))


def mean_pool(kernel: int, stride: int, pad: int = 0) -> Pool:
    return Pool("mean", Window((kernel, kernel), stride, (pad, pad)))
