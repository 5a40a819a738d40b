"""The single ops that the kernels are measured on: shapes of ResNet-50, VGG-16, MobileNetV2 and BERT, batch 1."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class KernelCase:
    """One op.

    Attributes:
        name: model, kind and shape.
        function: of float32 arrays.
        shapes: of its arguments.
        flops: floating-point operations.
    """

    name: str
    function: Callable[..., jax.Array]
    shapes: tuple[Shape, ...]
    flops: float

    @property
    def bytes(self) -> int:
        """What has to be read and written at least, each once."""
        inputs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in self.shapes]
        return 4 * sum(math.prod(item.shape) for item in (*inputs, jax.eval_shape(self.function, *inputs)))


def _conv(
    model: str,
    size: int,
    channels: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    precision: str | None = None,
) -> KernelCase:
    function = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(stride, stride),
        padding="SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        precision=precision,
    )
    weights = (kernel, kernel, channels // groups, outputs)
    flops = 2 * math.prod(weights) * (-(-size // stride)) ** 2
    kind = f"depthwise {kernel}x{kernel}" if groups > 1 else f"conv {kernel}x{kernel}"
    name = f"{model} {kind}/{stride} {size}x{size}x{channels}->{outputs}{' ' + precision if precision else ''}"
    return KernelCase(name, function, ((1, size, size, channels), weights), flops)


def _conv3x3(model: str, size: int, channels: int) -> tuple[KernelCase, KernelCase]:
    """A 3x3 convolution by the direct algorithm, and as the default precision allows. Both count the direct one's flops."""
    return _conv(model, size, channels, channels, 3, precision="highest"), _conv(model, size, channels, channels, 3)


def _matmul(model: str, m: int, k: int, n: int) -> KernelCase:
    return KernelCase(f"{model} matmul {m}x{k}x{n}", jnp.matmul, ((m, k), (k, n)), 2 * m * k * n)


def _attention(model: str, queries: int, heads: int, keys: int, width: int) -> KernelCase:
    """Attention of one sequence."""
    shapes = tuple((1, count, heads, width) for count in (queries, keys, keys))
    name = f"{model} attention {queries}x{heads}x{width} of {keys} keys"
    return KernelCase(name, jax.nn.dot_product_attention, shapes, 4 * queries * heads * keys * width)


def _depthwise(size: int, channels: int, stride: int = 1) -> KernelCase:
    return _conv("mobilenet", size, channels, channels, 3, stride, channels)


def _max_pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _add_relu(x: Any, y: Any) -> jax.Array:
    return jnp.maximum(x + y, 0)


_BIG = (1, 56, 56, 256)
CASES = (
    _conv("resnet", 224, 3, 64, 7, 2),
    _conv("resnet", 56, 64, 64, 1),
    *_conv3x3("resnet", 56, 64),
    _conv("resnet", 56, 64, 256, 1),
    *_conv3x3("resnet", 28, 128),
    _conv("resnet", 28, 512, 128, 1),
    *_conv3x3("resnet", 14, 256),
    _conv("resnet", 14, 1024, 256, 1),
    *_conv3x3("resnet", 7, 512),
    _conv("resnet", 7, 512, 2048, 1),
    _conv("vgg", 224, 3, 64, 3),
    *_conv3x3("vgg", 224, 64),
    *_conv3x3("vgg", 112, 128),
    *_conv3x3("vgg", 56, 256),
    *_conv3x3("vgg", 28, 512),
    _conv("mobilenet", 56, 24, 144, 1),
    _conv("mobilenet", 14, 384, 64, 1),
    _matmul("bert", 128, 768, 768),
    _matmul("bert", 128, 768, 3072),
    _matmul("square", 1024, 1024, 1024),
    _depthwise(112, 96, 2),
    _depthwise(56, 144),
    _depthwise(14, 384),
    _matmul("vgg dense", 1, 4096, 4096),
    KernelCase("resnet add and relu 56x56x256", _add_relu, (_BIG, _BIG), 2 * math.prod(_BIG)),
    KernelCase("resnet max pool 3x3/2 112x112x64", _max_pool, ((1, 112, 112, 64),), 9 * 56 * 56 * 64),
)


def _in_batches(case: KernelCase, batch: int) -> KernelCase:
    (_, *rest), *others = case.shapes
    return dataclasses.replace(case, name=f"{case.name} x{batch}", shapes=((batch, *rest), *others), flops=batch * case.flops)


_GPU_CONVOLUTIONS = (
    _conv("resnet", 224, 3, 64, 7, 2),
    _conv("resnet", 56, 64, 64, 3),
    _conv("resnet", 28, 128, 128, 3),
    _conv("resnet", 14, 1024, 256, 1),
    _conv("resnet", 7, 512, 512, 3),
)
# What kernels of GPUs are compared on with cuBLAS and cuDNN.
GPU_CASES = (
    *_GPU_CONVOLUTIONS,
    *(_in_batches(case, 32) for case in _GPU_CONVOLUTIONS),
    _matmul("vgg dense", 1, 4096, 4096),
    _matmul("bert", 128, 768, 768),
    _matmul("bert", 128, 768, 3072),
    _matmul("square", 1024, 1024, 1024),
    _matmul("square", 4096, 4096, 4096),
    *(_attention("gpt2", queries, 12, keys, 64) for queries, keys in ((1, 1024), (4, 1024), (8, 4096))),
)
