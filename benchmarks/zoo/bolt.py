"""The workloads of Bolt's microbenchmarks (section 4.1): products, convolutions and pairs of them.

The paper's batch is 32. At another one there are as many more or fewer rows, or images.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, get_args

from benchmarks.zoo.blocks import RELU
from benchmarks.zoo.model import Describe, Size
from benchmarks.zoo.network.layers import Activation, ActivationKind, Conv, Layer, Linear, Window
from benchmarks.zoo.network.network import Network

Place = Literal["table 1", "table 2", "table 3", "figure 8", "figure 9"]
PLACES: tuple[Place, ...] = get_args(Place)
ALIGNMENT = 8  # channels, to a multiple of which Bolt pads

_BATCH = 32


@dataclasses.dataclass(frozen=True)
class Workload:
    """A part of a network.

    Attributes:
        place: where the paper has it.
        describe: the network of this part alone.
        paper: how many times as fast Bolt made it there, on a GPU; None where our copy of the paper has no number.
        padding_share: of the padded time that padding took there, in percent.
        has_batch: whether its size depends on the batch.
    """

    place: Place
    describe: Describe
    paper: float | None = None
    padding_share: int | None = None
    has_batch: bool = True


def _gemms(
    size: Size, *, rows: int, widths: tuple[int, ...], activation: ActivationKind | None, has_batch: bool = True
) -> Network:
    """Products one behind the other, of `rows` rows at the paper's batch."""
    net = Network()
    x = net.input("rows", (size.batch, rows // _BATCH, widths[0]) if has_batch else (1, rows, widths[0]))
    for width in widths[1:]:
        x = net(x, Linear(width), *([Activation(activation)] if activation else []))
    return net.returns(x)


def _conv(size: Size, *, images: int = _BATCH, extents: tuple[int, int], channels: int, layers: tuple[Layer, ...]) -> Network:
    net = Network()
    return net.returns(net(net.input("image", (size.batch * images // _BATCH, *extents, channels)), *layers))


def padded(size: Size, *, images: int, extents: tuple[int, int], channels: int, outputs: int, window: Window) -> Network:
    """A convolution of table 3."""
    return _conv(size, images=images, extents=extents, channels=channels, layers=(Conv(outputs, window),))


def _pairs_of_products() -> dict[str, Workload]:
    found = {}
    for rows, *widths, paper in (
        (2464, 4, 1, 4, 1.24),
        (16384, 256, 64, 16, 1.34),
        (32768, 576, 128, 64, 1.28),
        (128320, 96, 32, 96, 1.46),
    ):
        describe = functools.partial(_gemms, rows=int(rows), widths=tuple(map(int, widths)), activation="relu")
        found[f"gemms-{rows}x{'x'.join(map(str, widths))}"] = Workload("table 1", describe, paper)
    return found


def _pairs_of_convolutions() -> dict[str, Workload]:
    found = {}
    for extent, channels, width, stride, paper in (
        (224, 3, 48, 2, 1.10),
        (112, 48, 48, 2, 1.41),
        (56, 48, 48, 1, 1.87),
        (224, 3, 64, 2, 1.24),
        (112, 64, 64, 2, 1.12),
        (56, 64, 64, 1, 2.02),
    ):
        layers = (Conv(width, Window((3, 3), stride, (1, 1))), RELU, Conv(width, Window((1, 1))), RELU)
        describe = functools.partial(_conv, extents=(extent, extent), channels=channels, layers=layers)
        found[f"convs-{extent}x{channels}x{width}s{stride}"] = Workload("table 2", describe, paper)
    return found


def _unaligned() -> dict[str, Workload]:
    found = {}
    for images, height, width, channels, outputs, kernel, paper, share in (
        (32, 20, 26, 46, 32, (3, 3), 1.62, 18),
        (32, 20, 26, 46, 32, (5, 5), 1.95, 9),
        (128, 14, 19, 46, 32, (5, 7), 1.77, 15),
        (288, 11, 15, 46, 32, (5, 7), 1.71, 18),
        (32, 20, 26, 174, 64, (3, 3), 1.60, 24),
        (32, 20, 26, 174, 64, (5, 5), 1.99, 12),
    ):
        pads = (0, 0) if kernel == (5, 7) else (kernel[0] // 2, kernel[1] // 2)
        describe = functools.partial(
            padded, images=images, extents=(height, width), channels=channels, outputs=outputs, window=Window(kernel, 1, pads)
        )
        name = f"conv-{height}x{width}x{channels}x{outputs}k{kernel[0]}x{kernel[1]}"
        found[name] = Workload("table 3", describe, paper, share)
    return found


def _alone() -> dict[str, Workload]:
    """BERT's products with texts of 40 tokens, two square ones, and all kinds of 3x3 convolutions that ResNet-50 has.

    Our copy of the paper lacks the axis of figure 8: the sizes of the square products and of the convolutions are our choice.
    """
    found = {}
    for rows, *widths in ((1280, 768, 768), (1280, 768, 3072), (1280, 3072, 768), (1024, 1024, 1024), (2048, 2048, 2048)):
        has_batch = rows == 1280
        describe = functools.partial(_gemms, rows=rows, widths=tuple(widths), activation=None, has_batch=has_batch)
        found[f"gemm-{rows}x{widths[0]}x{widths[1]}"] = Workload("figure 8", describe, has_batch=has_batch)
    for extent, width, stride in ((56, 64, 1), (56, 128, 2), (28, 128, 1), (28, 256, 2), (14, 256, 1), (14, 512, 2), (7, 512, 1)):
        layers = (Conv(width, Window((3, 3), stride, (1, 1)), bias=False),)
        describe = functools.partial(_conv, extents=(extent, extent), channels=width, layers=layers)
        found[f"conv-{extent}x{width}s{stride}"] = Workload("figure 8", describe)
    return found


def _with_epilogues() -> dict[str, Workload]:
    found = {}
    kinds: tuple[ActivationKind, ...] = ("relu", "gelu", "hardswish", "softplus")
    for kind in kinds:
        describe = functools.partial(_gemms, rows=1280, widths=(768, 3072), activation=kind)
        found[f"gemm-1280x768x3072-{kind}"] = Workload("figure 9", describe)
    for kind in kinds:
        layers = (Conv(64, Window((3, 3), 1, (1, 1))), Activation(kind))
        describe = functools.partial(_conv, extents=(56, 56), channels=64, layers=layers)
        found[f"conv-56x64-{kind}"] = Workload("figure 9", describe)
    return found


WORKLOADS = {**_pairs_of_products(), **_pairs_of_convolutions(), **_unaligned(), **_alone(), **_with_epilogues()}
