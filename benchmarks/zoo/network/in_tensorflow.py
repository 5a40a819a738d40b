"""A network as a TensorFlow function of (params, *inputs), as one would write it by hand: images are NHWC.

Params that are numpy arrays become constants of the graph, which TensorFlow folds and reorders. Tensors become arguments.
"""
# pyright: reportMissingImports=false
# TensorFlow is optional, also where types are checked.

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.zoo.network import layers
from benchmarks.zoo.network.network import Network

Params = dict[str, dict[str, Any]]

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": tf.nn.relu,
    "relu6": tf.nn.relu6,
    "leaky_relu": functools.partial(tf.nn.leaky_relu, alpha=0.1),
    "silu": tf.nn.silu,
    "hardswish": lambda x: x * tf.nn.relu6(x + 3) / 6,
    "softplus": tf.nn.softplus,
    "sigmoid": tf.sigmoid,
    "gelu": functools.partial(tf.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(tf.nn.gelu, approximate=True),
    "tanh": tf.tanh,
}


def in_tensorflow(network: Network) -> Callable[..., tuple[Any, ...]]:
    """The function: (params, *inputs) -> a tuple of outputs. Wrap it in `tf.function`."""

    def apply(params: Params, *inputs: Any) -> tuple[Any, ...]:
        values = dict(zip(network.inputs, inputs, strict=True))
        for node in network.nodes:
            sources = [values[name] for name in node.sources]
            values[node.name] = _compute(node.layer, params.get(node.parameters, {}), *sources)
        return tuple(values[name] for name in network.outputs)

    return apply


@functools.singledispatch
def _compute(layer: layers.Layer, params: dict[str, Any], *inputs: Any) -> Any:
    raise NotImplementedError(layer)


@_compute.register
def _(layer: layers.Conv, params: dict[str, Any], x: Any) -> Any:
    stride, padding = layer.window.stride, _explicit(layer.window, x)
    if 1 < layer.groups == x.shape[3] == layer.channels:
        weight = tf.reshape(params["weight"], (*layer.window.kernel, layer.channels, 1))
        y = tf.nn.depthwise_conv2d(x, weight, (1, stride, stride, 1), padding)
    else:
        y = tf.nn.conv2d(x, params["weight"], stride, padding)
    return tf.nn.bias_add(y, params["bias"]) if layer.bias else y


@_compute.register
def _(layer: layers.BatchNorm, params: dict[str, Any], x: Any) -> Any:
    names = ("scale", "shift", "mean", "variance")
    y, _, _ = tf.compat.v1.nn.fused_batch_norm(x, *(params[name] for name in names), epsilon=layer.epsilon, is_training=False)
    return y


@_compute.register
def _(layer: layers.Activation, params: dict[str, Any], x: Any) -> Any:
    return _ACTIVATIONS[layer.kind](x)


@_compute.register
def _(layer: layers.Pool, params: dict[str, Any], x: Any) -> Any:
    pool, outside = (tf.nn.max_pool2d, -math.inf) if layer.kind == "max" else (tf.nn.avg_pool2d, 0)
    # XLA's maxima take no explicit padding, and in other means it does not count.
    padded = tf.pad(x, _explicit(layer.window, x), constant_values=outside)
    return pool(padded, layer.window.kernel, layer.window.stride, "VALID")


@_compute.register
def _(layer: layers.GlobalMean, params: dict[str, Any], x: Any) -> Any:
    return tf.reduce_mean(x, (1, 2), keepdims=True)


@_compute.register
def _(layer: layers.Flatten, params: dict[str, Any], x: Any) -> Any:
    return _flat(x)


@_compute.register
def _(layer: layers.Upsample, params: dict[str, Any], x: Any) -> Any:
    return tf.image.resize(x, (x.shape[1] * layer.factor, x.shape[2] * layer.factor), "nearest")


@_compute.register
def _(layer: layers.Add, params: dict[str, Any], *inputs: Any) -> Any:
    return functools.reduce(tf.add, inputs)


@_compute.register
def _(layer: layers.Multiply, params: dict[str, Any], x: Any, gate: Any) -> Any:
    return x * gate


@_compute.register
def _(layer: layers.Concat, params: dict[str, Any], *inputs: Any) -> Any:
    return tf.concat(inputs, -1)


@_compute.register
def _(layer: layers.Linear, params: dict[str, Any], x: Any) -> Any:
    return _dense(params, _flat(x) if x.shape.rank == 4 else x)


@_compute.register
def _(layer: layers.LayerNorm, params: dict[str, Any], x: Any) -> Any:
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, params["shift"], params["scale"], layer.epsilon)


@_compute.register
def _(layer: layers.Embedding, params: dict[str, Any], ids: Any) -> Any:
    return tf.gather(params["table"], ids)


@_compute.register
def _(layer: layers.Logits, params: dict[str, Any], x: Any) -> Any:
    return _product(x, params["table"], transpose_b=True)


@_compute.register
def _(layer: layers.Positions, params: dict[str, Any], x: Any) -> Any:
    return x + params["table"][: x.shape[1]]


@_compute.register
def _(layer: layers.Tokens, params: dict[str, Any], x: Any) -> Any:
    batch, height, width, channels = x.shape
    first = tf.broadcast_to(params["first"], (batch, 1, channels))
    return tf.concat([first, tf.reshape(x, (batch, height * width, channels))], 1)


@_compute.register
def _(layer: layers.First, params: dict[str, Any], x: Any) -> Any:
    return x[:, 0]


@_compute.register
def _(layer: layers.Attention, params: dict[str, Any], x: Any, mask: Any = None) -> Any:
    batch, tokens, width = x.shape
    split = (batch, tokens, layer.heads, width // layer.heads)

    def heads(part: str) -> Any:
        return tf.transpose(tf.reshape(_dense(params, x, f"{part}_"), split), (0, 2, 1, 3))

    scores = tf.matmul(heads("query"), heads("key"), transpose_b=True) * split[-1] ** -0.5
    seen = mask[:, None, None, :] if mask is not None else None
    if layer.causal:
        seen = tf.linalg.band_part(tf.ones((tokens, tokens), tf.bool), -1, 0)
    if seen is not None:
        scores += tf.where(seen, 0.0, tf.float32.min)
    mixed = tf.matmul(tf.nn.softmax(scores), heads("value"))
    return _dense(params, tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), x.shape), "mix_")


def _explicit(window: layers.Window, x: Any) -> Any:
    return [(0, 0), *window.pads(x.shape), (0, 0)]


def _flat(x: Any) -> Any:
    return tf.reshape(x, (x.shape[0], -1))


def _dense(params: dict[str, Any], x: Any, prefix: str = "") -> Any:
    return _product(x, params[f"{prefix}weight"], bias=params[f"{prefix}bias"])


def _product(x: Any, weight: Any, transpose_b: bool = False, bias: Any = None) -> Any:
    """Multiply by a matrix as Keras' Dense does: with the leading dimensions as one, or matmul would copy the matrix for each."""
    y = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), weight, transpose_b=transpose_b)
    if bias is not None:
        y = tf.nn.bias_add(y, bias)
    return tf.reshape(y, (*x.shape[:-1], y.shape[-1]))
