"""A network as a JAX function of (params, *inputs), as one would write it by hand: images are NHWC, params a dict of dicts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.zoo.network import layers
from benchmarks.zoo.network.network import Network
from benchmarks.zoo.network.parts import attend, bias_of, dense, join_heads, layer_norm, split_heads

Params = dict[str, dict[str, Any]]
# Given a BatchNorm's name, parameters and input: the parameters to go on with.
OnNorm = Callable[[str, dict[str, Any], jax.Array], dict[str, Any]]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "leaky_relu": functools.partial(jax.nn.leaky_relu, negative_slope=0.1),
    "silu": jax.nn.silu,
    "hardswish": jax.nn.hard_swish,
    "softplus": jax.nn.softplus,
    "sigmoid": jax.nn.sigmoid,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "tanh": jnp.tanh,
}


def in_jax(network: Network, on_norm: OnNorm | None = None) -> Callable[..., Any]:
    """The function: (params, *inputs) -> an output, or a tuple where there are several."""

    def apply(params: Params, *inputs: jax.Array) -> Any:
        values = dict(zip(network.inputs, inputs, strict=True))
        for node in network.nodes:
            own = params.get(node.parameters, {})
            sources = [values[name] for name in node.sources]
            if on_norm is not None and isinstance(node.layer, layers.BatchNorm):
                own = on_norm(node.name, own, *sources)
            values[node.name] = _compute(node.layer, own, *sources)
        outputs = [values[name] for name in network.outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return apply


@functools.singledispatch
def _compute(layer: layers.Layer, params: dict[str, Any], *inputs: jax.Array) -> jax.Array:
    raise NotImplementedError(layer)


@_compute.register
def _(layer: layers.Conv, params: dict[str, Any], x: jax.Array) -> jax.Array:
    strides = (layer.window.stride,) * 2
    y = jax.lax.conv_general_dilated(
        x,
        params["weight"],
        strides,
        layer.window.pads(x.shape),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=layer.groups,
    )
    return y + params["bias"] if layer.bias else y


@_compute.register
def _(layer: layers.BatchNorm, params: dict[str, Any], x: jax.Array) -> jax.Array:
    factor = jax.lax.rsqrt(params["variance"] + layer.epsilon) * params["scale"]
    return (x - params["mean"]) * factor + params["shift"]


@_compute.register
def _(layer: layers.Activation, params: dict[str, Any], x: jax.Array) -> jax.Array:
    return ACTIVATIONS[layer.kind](x)


@_compute.register
def _(layer: layers.Pool, params: dict[str, Any], x: jax.Array) -> jax.Array:
    height, width = layer.window.kernel
    pads = ((0, 0), *layer.window.pads(x.shape), (0, 0))
    reduce = functools.partial(
        jax.lax.reduce_window,
        window_dimensions=(1, height, width, 1),
        window_strides=(1, layer.window.stride, layer.window.stride, 1),
        padding=pads,
    )
    if layer.kind == "max":
        return reduce(x, -jnp.inf, jax.lax.max)
    return reduce(x, 0.0, jax.lax.add) / (height * width)


@_compute.register
def _(layer: layers.GlobalMean, params: dict[str, Any], x: jax.Array) -> jax.Array:
    return x.mean((1, 2), keepdims=True)


@_compute.register
def _(layer: layers.Flatten, params: dict[str, Any], x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0], -1)


@_compute.register
def _(layer: layers.Upsample, params: dict[str, Any], x: jax.Array) -> jax.Array:
    return x.repeat(layer.factor, 1).repeat(layer.factor, 2)


@_compute.register
def _(layer: layers.Add, params: dict[str, Any], *inputs: jax.Array) -> jax.Array:
    return functools.reduce(jnp.add, inputs)


@_compute.register
def _(layer: layers.Multiply, params: dict[str, Any], x: jax.Array, gate: jax.Array) -> jax.Array:
    return x * gate


@_compute.register
def _(layer: layers.Concat, params: dict[str, Any], *inputs: jax.Array) -> jax.Array:
    return jnp.concatenate(inputs, axis=-1)


@_compute.register
def _(layer: layers.Linear, params: dict[str, Any], x: jax.Array) -> jax.Array:
    return dense(params, x.reshape(x.shape[0], -1) if x.ndim == 4 else x)


@_compute.register
def _(layer: layers.LayerNorm, params: dict[str, Any], x: jax.Array) -> jax.Array:
    return layer_norm(params, x, layer.epsilon)


@_compute.register
def _(layer: layers.Embedding, params: dict[str, Any], ids: jax.Array) -> jax.Array:
    return params["table"][ids]


@_compute.register
def _(layer: layers.Logits, params: dict[str, Any], x: jax.Array) -> jax.Array:
    return x @ params["table"].T


@_compute.register
def _(layer: layers.Positions, params: dict[str, Any], x: jax.Array) -> jax.Array:
    return x + params["table"][: x.shape[1]]


@_compute.register
def _(layer: layers.Tokens, params: dict[str, Any], x: jax.Array) -> jax.Array:
    batch, _, _, channels = x.shape
    first = jnp.broadcast_to(params["first"], (batch, 1, channels))
    return jnp.concatenate([first, x.reshape(batch, -1, channels)], axis=1)


@_compute.register
def _(layer: layers.First, params: dict[str, Any], x: jax.Array) -> jax.Array:
    return x[:, 0]


@_compute.register
def _(layer: layers.Attention, params: dict[str, Any], x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    bias = None if mask is None else bias_of(mask[:, None, None, :])
    if layer.causal:
        bias = bias_of(jnp.tril(jnp.ones((x.shape[1],) * 2, bool)))
    query, key, value = (split_heads(dense(params, x, f"{part}_"), layer.heads) for part in ("query", "key", "value"))
    return dense(params, join_heads(attend(query, key, value, bias)), "mix_")
