"""A small Llama: RMS norm, rotary position embedding, queries that share keys and values in groups, SwiGLU."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.zoo.model import Model, Size
from benchmarks.zoo.transformer import Config, Seeded


@dataclasses.dataclass(frozen=True)
class LlamaConfig(Config):
    """The measures of a Llama.

    Attributes:
        key_heads: of keys and values; as many queries share each as it takes to make up `heads`.
    """

    key_heads: int


Params = dict[str, Any]

SMALL = LlamaConfig(layers=8, width=512, heads=8, hidden=1408, tokens=256, vocabulary=8192, key_heads=2)

_EPSILON = 1e-5
_LONGEST_WAVE = 10_000.0


def logits(params: Params, token_ids: jax.Array, *, heads: int, key_heads: int) -> jax.Array:
    """What may come after each token.

    Args:
        params: as from `draw`.
        token_ids: int32 [batch, tokens].
        heads: of the queries.
        key_heads: of keys and values.

    Returns:
        float32 [batch, tokens, vocabulary].
    """
    x = params["words"][token_ids]
    for block in params["blocks"]:
        x = x + _attention(block, _rms_norm(block["attention_norm"], x), heads, key_heads)
        normed = _rms_norm(block["hidden_norm"], x)
        x = x + (jax.nn.silu(normed @ block["gate"]) * (normed @ block["expand"])) @ block["contract"]
    return _rms_norm(params["norm"], x) @ params["head"]


def _attention(params: Params, x: jax.Array, heads: int, key_heads: int) -> jax.Array:
    batch, tokens, width = x.shape
    query = (x @ params["query"]).reshape(batch, tokens, heads, -1)
    key, value = ((x @ params[name]).reshape(batch, tokens, key_heads, -1) for name in ("key", "value"))
    mixed = jax.nn.dot_product_attention(_rotated(query), _rotated(key), value, is_causal=True)
    return mixed.reshape(batch, tokens, width) @ params["mix"]


def _rotated(x: jax.Array) -> jax.Array:
    """[batch, tokens, heads, n] with the two halves of the last dimension turned by an angle that grows with the position."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * _LONGEST_WAVE ** (-jnp.arange(half) / half)
    cos, sin = (jnp.expand_dims(f(angles), 1) for f in (jnp.cos, jnp.sin))
    low, high = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def _rms_norm(scale: jax.Array, x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + _EPSILON) * scale


def draw(config: LlamaConfig, seeded: Seeded) -> Params:
    """Seeded parameters."""
    width, hidden, key_width = config.width, config.hidden, config.width // config.heads * config.key_heads
    return {
        "words": seeded.table(config.vocabulary, width),
        "blocks": [
            {
                "attention_norm": seeded.around(1, width),
                "query": seeded.matrix(width, width),
                "key": seeded.matrix(width, key_width),
                "value": seeded.matrix(width, key_width),
                "mix": seeded.matrix(width, width),
                "hidden_norm": seeded.around(1, width),
                "gate": seeded.matrix(width, hidden),
                "expand": seeded.matrix(width, hidden),
                "contract": seeded.matrix(hidden, width),
            }
            for _ in range(config.layers)
        ],
        "norm": seeded.around(1, width),
        "head": seeded.matrix(width, config.vocabulary),
    }


def build(name: str, config: LlamaConfig, batch: int = 1) -> Model:
    """A Llama of these measures that reads a whole text."""
    seeded = Seeded()
    apply = functools.partial(logits, heads=config.heads, key_heads=config.key_heads)
    token_ids = seeded.token_ids(config, batch)
    return Model(name, apply, draw(config, seeded), (token_ids,))


def _build_sized(size: Size) -> Model:
    return build("llama-small", dataclasses.replace(SMALL, tokens=size.tokens or SMALL.tokens), size.batch)


MODELS = {"llama-small": _build_sized}
