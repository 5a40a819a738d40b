"""The parts that transformers are made of, in plain JAX: parameters are dicts of arrays, layers are functions of them.

Activations are float32 [batch, tokens, width], weights [inputs, outputs].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]
Activation = Callable[[jax.Array], jax.Array]

_MASKED = -1e9


@dataclasses.dataclass(frozen=True)
class Config:
    """The measures of a transformer.

    Attributes:
        layers: blocks, one after the other.
        width: of the activations.
        heads: of each attention; they share the width.
        hidden: width inside a block's feed-forward part.
        tokens: length of a text.
        vocabulary: different tokens.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    tokens: int
    vocabulary: int


class Seeded:
    """Draws parameters.

    Matrices keep the size of what they multiply, so that attention looks somewhere and every layer counts in the output; scales
    and shifts are drawn too, because ones and zeros would hide mistakes.
    """

    def __init__(self, seed: int = 0):
        self._random = np.random.default_rng(seed)

    def matrix(self, inputs: int, outputs: int) -> jax.Array:
        return jnp.asarray(self._random.standard_normal((inputs, outputs), np.float32) * np.float32(inputs**-0.5))

    def table(self, rows: int, width: int) -> jax.Array:
        return jnp.asarray(self._random.standard_normal((rows, width), np.float32))

    def around(self, center: float, width: int) -> jax.Array:
        return jnp.asarray(self._random.normal(center, 0.1, width).astype(np.float32))

    def dense(self, inputs: int, outputs: int) -> Params:
        return {"weight": self.matrix(inputs, outputs), "bias": self.around(0, outputs)}

    def norm(self, width: int) -> Params:
        return {"scale": self.around(1, width), "shift": self.around(0, width)}

    def block(self, config: Config) -> Params:
        """A block of BERT, GPT-2 or ViT."""
        width = config.width
        return {
            "query": self.dense(width, width),
            "key": self.dense(width, width),
            "value": self.dense(width, width),
            "mix": self.dense(width, width),
            "attention_norm": self.norm(width),
            "expand": self.dense(width, config.hidden),
            "contract": self.dense(config.hidden, width),
            "hidden_norm": self.norm(width),
        }

    def token_ids(self, config: Config, batch: int) -> jax.Array:
        """int32 [batch, tokens]."""
        return jnp.asarray(self._random.integers(0, config.vocabulary, (batch, config.tokens)), jnp.int32)

    def normal(self, *shape: int) -> jax.Array:
        return jnp.asarray(self._random.standard_normal(shape, np.float32))


def dense(params: Params, x: jax.Array) -> jax.Array:
    """A linear layer with a shift."""
    return x @ params["weight"] + params["bias"]


def layer_norm(params: Params, x: jax.Array, epsilon: float) -> jax.Array:
    """Mean 0 and variance 1 along the width, then scale and shift."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + epsilon) * params["scale"] + params["shift"]


def feed_forward(params: Params, x: jax.Array, activation: Activation) -> jax.Array:
    """The second half of a block: each token by itself."""
    return dense(params["contract"], activation(dense(params["expand"], x)))


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
    return jax.nn.softmax(scores if bias is None else scores + bias, axis=-1) @ value


def attention(params: Params, x: jax.Array, heads: int, bias: jax.Array | None) -> jax.Array:
    """Self-attention, the first half of a block."""
    query, key, value = (split_heads(dense(params[name], x), heads) for name in ("query", "key", "value"))
    return dense(params["mix"], join_heads(attend(query, key, value, bias)))


def bias_of(mask: jax.Array) -> jax.Array:
    """What to add to scores so that softmax leaves out where the mask is false."""
    return jnp.where(mask, 0.0, _MASKED).astype(jnp.float32)
