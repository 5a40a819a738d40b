"""GPT-2, a decoder: norms before each half of a block, causal attention, GELU by tanh, logits from the word table."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from benchmarks.models.model import Model, Size
from benchmarks.models.transformer import (
    Config,
    Params,
    Seeded,
    attend,
    attention,
    bias_of,
    dense,
    feed_forward,
    join_heads,
    layer_norm,
    split_heads,
)

SMALL = Config(layers=12, width=768, heads=12, hidden=3072, tokens=1024, vocabulary=50257)

_EPSILON = 1e-5
_gelu = functools.partial(jax.nn.gelu, approximate=True)

# Keys and values of the tokens so far, each [batch, heads, tokens, width / heads], of every layer.
Cache = list[tuple[jax.Array, jax.Array]]


def logits(params: Params, token_ids: jax.Array, *, heads: int) -> jax.Array:
    """What may come after each token.

    Args:
        params: as from `draw`.
        token_ids: int32 [batch, tokens].
        heads: of each attention.

    Returns:
        float32 [batch, tokens, vocabulary].
    """
    tokens = token_ids.shape[1]
    x = params["words"][token_ids] + params["positions"][:tokens]
    bias = bias_of(jnp.tril(jnp.ones((tokens, tokens), bool)))
    for block in params["blocks"]:
        x = x + attention(block, layer_norm(block["attention_norm"], x, _EPSILON), heads, bias)
        x = x + feed_forward(block, layer_norm(block["hidden_norm"], x, _EPSILON), _gelu)
    return layer_norm(params["norm"], x, _EPSILON) @ params["words"].T


def decode(params: Params, token_id: jax.Array, cache: Cache, position: jax.Array) -> tuple[jax.Array, Cache]:
    """One more token: its logits, and the cache with its keys and values in it.

    Args:
        params: as from `draw`.
        token_id: int32 [batch].
        cache: of the tokens so far, with room for this one.
        position: int32, how many tokens came before.

    Returns:
        float32 [batch, vocabulary], and the new cache.
    """
    _, heads, tokens, _ = cache[0][0].shape
    place = jax.lax.dynamic_slice_in_dim(params["positions"], position, 1)
    x = params["words"][token_id][:, None] + place
    bias = bias_of(jnp.arange(tokens) <= position)
    written = []
    for block, (keys, values) in zip(params["blocks"], cache, strict=True):
        normed = layer_norm(block["attention_norm"], x, _EPSILON)
        query, key, value = (split_heads(dense(block[name], normed), heads) for name in ("query", "key", "value"))
        keys = jax.lax.dynamic_update_slice_in_dim(keys, key, position, 2)
        values = jax.lax.dynamic_update_slice_in_dim(values, value, position, 2)
        written.append((keys, values))
        x = x + dense(block["mix"], join_heads(attend(query, keys, values, bias)))
        x = x + feed_forward(block, layer_norm(block["hidden_norm"], x, _EPSILON), _gelu)
    return layer_norm(params["norm"], x[:, 0], _EPSILON) @ params["words"].T, written


def draw(config: Config, seeded: Seeded) -> Params:
    """Seeded parameters."""
    return {
        "words": seeded.table(config.vocabulary, config.width) * config.width**-0.5,
        "positions": seeded.table(config.tokens, config.width),
        "blocks": [seeded.block(config) for _ in range(config.layers)],
        "norm": seeded.norm(config.width),
    }


def build(name: str, config: Config, batch: int = 1) -> Model:
    """A GPT-2 of these measures that reads a whole text."""
    seeded = Seeded()
    token_ids = seeded.token_ids(config, batch)
    return Model(name, functools.partial(logits, heads=config.heads), draw(config, seeded), (token_ids,))


def build_decode(name: str, config: Config, batch: int = 1) -> Model:
    """The same for one token behind a text that fills three quarters of the cache."""
    seeded = Seeded()
    shape = (batch, config.heads, config.tokens, config.width // config.heads)
    cache = [(seeded.normal(*shape), seeded.normal(*shape)) for _ in range(config.layers)]
    token_id = seeded.token_ids(config, batch)[:, 0]
    position = jnp.asarray(config.tokens * 3 // 4, jnp.int32)
    return Model(name, decode, draw(config, seeded), (token_id, cache, position))


def _sized(size: Size) -> Config:
    return dataclasses.replace(SMALL, tokens=size.tokens or SMALL.tokens)


MODELS = {
    "gpt2": lambda size: build("gpt2", _sized(size), size.batch),
    "gpt2-decode": lambda size: build_decode("gpt2-decode", _sized(size), size.batch),
}
