"""The parts that transformers are made of, in plain JAX: parameters are dicts of arrays, layers are functions of them.

Activations are float32 [batch, tokens, width], weights [inputs, outputs].
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]

_MASKED = -1e9


def dense(params: Params, x: jax.Array, prefix: str = "") -> jax.Array:
    """A linear layer with a shift."""
    return x @ params[f"{prefix}weight"] + params[f"{prefix}bias"]


def layer_norm(params: Params, x: jax.Array, epsilon: float) -> jax.Array:
    """Mean 0 and variance 1 along the width, then scale and shift."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + epsilon) * params["scale"] + params["shift"]


def split_heads(x: jax.Array, heads: int) -> jax.Array:
    """[batch, tokens, width] as [batch, heads, tokens, width / heads]."""
    batch, tokens, width = x.shape
    return x.reshape(batch, tokens, heads, width // heads).transpose(0, 2, 1, 3)


def join_heads(x: jax.Array) -> jax.Array:
    """The inverse of `split_heads`."""
    batch, heads, tokens, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, tokens, heads * width)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Softmax attention.

    Args:
        query: [batch, heads, queries, n].
        key: [batch, heads, keys, n].
        value: likewise.
        bias: added to the scores, of a shape that broadcasts to [batch, heads, queries, keys]; or None.

    Returns:
        [batch, heads, queries, n].
    """
    scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    return jax.nn.softmax(scores if bias is None else scores + bias.astype(scores.dtype), axis=-1) @ value


def bias_of(mask: jax.Array) -> jax.Array:
    """What to add to scores so that softmax leaves out where the mask is false."""
    return jnp.where(mask, 0.0, _MASKED).astype(jnp.float32)
