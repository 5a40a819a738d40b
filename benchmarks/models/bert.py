"""BERT, an encoder: norms behind each half of a block, exact GELU, a padding mask."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from aspen_jax.errors import InputError
from benchmarks.models.model import Build, Model, Size
from benchmarks.models.transformer import Config, Params, Seeded, attention, bias_of, dense, feed_forward, layer_norm

BASE = Config(layers=12, width=768, heads=12, hidden=3072, tokens=128, vocabulary=30522)
LARGE = Config(layers=24, width=1024, heads=16, hidden=4096, tokens=128, vocabulary=30522)

_EPSILON = 1e-12
_POSITIONS = 512
_gelu = functools.partial(jax.nn.gelu, approximate=False)


def encode(params: Params, token_ids: jax.Array, segments: jax.Array, mask: jax.Array, *, heads: int) -> jax.Array:
    """The last hidden states.

    Args:
        params: as from `draw`.
        token_ids: int32 [batch, tokens].
        segments: likewise; 0 in the first sentence of a pair, 1 in the second.
        mask: bool [batch, tokens]; false where a text is over.
        heads: of each attention.

    Returns:
        float32 [batch, tokens, width].
    """
    x = params["words"][token_ids] + params["segments"][segments] + params["positions"][: token_ids.shape[1]]
    x = layer_norm(params["norm"], x, _EPSILON)
    bias = bias_of(mask[:, None, None, :])
    for block in params["blocks"]:
        x = layer_norm(block["attention_norm"], x + attention(block, x, heads, bias), _EPSILON)
        x = layer_norm(block["hidden_norm"], x + feed_forward(block, x, _gelu), _EPSILON)
    return x


def pool(params: Params, hidden: jax.Array) -> jax.Array:
    """The first token's state through one more layer, [batch, width]."""
    return jnp.tanh(dense(params["pooler"], hidden[:, 0]))


def draw(config: Config, seeded: Seeded) -> Params:
    """Seeded parameters."""
    return {
        "words": seeded.table(config.vocabulary, config.width),
        "segments": seeded.table(2, config.width),
        "positions": seeded.table(_POSITIONS, config.width),
        "norm": seeded.norm(config.width),
        "blocks": [seeded.block(config) for _ in range(config.layers)],
        "pooler": seeded.dense(config.width, config.width),
    }


def build(name: str, config: Config, batch: int = 1) -> Model:
    """A BERT of these measures; the last eighth of each text is padding.

    Raises:
        InputError: the text is longer than there are positions.
    """
    if config.tokens > _POSITIONS:
        raise InputError(f"{name} has positions for {_POSITIONS} tokens, not {config.tokens}; take a shorter text")

    def apply(params: Params, token_ids: jax.Array, segments: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = encode(params, token_ids, segments, mask, heads=config.heads)
        return hidden, pool(params, hidden)

    seeded = Seeded()
    token_ids = seeded.token_ids(config, batch)
    place = jnp.broadcast_to(jnp.arange(config.tokens), token_ids.shape)
    segments = (place >= config.tokens // 2).astype(jnp.int32)
    mask = place < config.tokens - config.tokens // 8
    return Model(name, apply, draw(config, seeded), (token_ids, segments, mask))


def _entry(name: str, config: Config) -> Build:
    def build_sized(size: Size) -> Model:
        return build(name, dataclasses.replace(config, tokens=size.tokens or config.tokens), size.batch)

    return build_sized


MODELS = {name: _entry(name, config) for name, config in (("bert-base", BASE), ("bert-large", LARGE))}
