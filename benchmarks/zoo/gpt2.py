"""GPT-2, a decoder: norms before each half of a block, causal attention, GELU by tanh, logits from the word table."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from benchmarks.zoo.model import Model, Size
from benchmarks.zoo.network.in_jax import Params
from benchmarks.zoo.network.layers import Activation, Attention, Embedding, LayerNorm, Linear, Logits, Positions
from benchmarks.zoo.network.network import Network
from benchmarks.zoo.network.parameters import draw
from benchmarks.zoo.network.parts import attend, bias_of, dense, join_heads, layer_norm, split_heads
from benchmarks.zoo.transformer import Config, Seeded

SMALL = Config(layers=12, width=768, heads=12, hidden=3072, tokens=1024, vocabulary=50257)

_NORM = LayerNorm(1e-5)

# Keys and values of the tokens so far, each [batch, heads, tokens, width / heads], of every layer.
Cache = list[tuple[jax.Array, jax.Array]]


def gpt2(size: Size, *, config: Config) -> Network:
    """Reads a whole text; scores of what may come after each token, [batch, tokens, vocabulary]."""
    tokens = size.tokens or config.tokens
    net = Network()
    words = net(net.input("token ids", (size.batch, tokens), config.vocabulary), Embedding(config.vocabulary, config.width))
    x = net(words, Positions(tokens))
    for _ in range(config.layers):
        x = net.add(x, net(x, _NORM, Attention(config.heads, causal=True)))
        x = net.add(x, net(x, _NORM, Linear(config.hidden), Activation("gelu_tanh"), Linear(config.width)))
    return net.returns(net.tied(Logits(config.vocabulary), net(x, _NORM), words))


def decode(params: Params, token_id: jax.Array, cache: Cache, position: jax.Array) -> tuple[jax.Array, Cache]:
    """One more token: its logits, and the cache with its keys and values in it.

    Args:
        params: of the network above.
        token_id: int32 [batch].
        cache: of the tokens so far, with room for this one.
        position: int32, how many tokens came before.

    Returns:
        float32 [batch, vocabulary], and the new cache.
    """
    _, heads, tokens, _ = cache[0][0].shape
    place = jax.lax.dynamic_slice_in_dim(params["Positions0"]["table"], position, 1)
    x = params["Embedding0"]["table"][token_id][:, None] + place
    bias = bias_of(jnp.arange(tokens) <= position)
    written = []
    for layer, (keys, values) in enumerate(cache):
        attention, norm = params[f"Attention{layer}"], params[f"LayerNorm{2 * layer}"]
        normed = layer_norm(norm, x, _NORM.epsilon)
        query, key, value = (split_heads(dense(attention, normed, f"{part}_"), heads) for part in ("query", "key", "value"))
        keys = jax.lax.dynamic_update_slice_in_dim(keys, key, position, 2)
        values = jax.lax.dynamic_update_slice_in_dim(values, value, position, 2)
        written.append((keys, values))
        x = x + dense(attention, join_heads(attend(query, keys, values, bias)), "mix_")
        expand, contract = (params[f"Linear{2 * layer + half}"] for half in (0, 1))
        norm = params[f"LayerNorm{2 * layer + 1}"]
        x = x + dense(contract, jax.nn.gelu(dense(expand, layer_norm(norm, x, _NORM.epsilon)), approximate=True))
    norm = params[f"LayerNorm{2 * len(cache)}"]
    return layer_norm(norm, x[:, 0], _NORM.epsilon) @ params["Embedding0"]["table"].T, written


def build_decode(config: Config, batch: int = 1) -> Model:
    """Build the model of one decoded token, behind a text that fills three quarters of the cache."""
    seeded = Seeded()
    shape = (batch, config.heads, config.tokens, config.width // config.heads)
    cache = [(seeded.normal(*shape), seeded.normal(*shape)) for _ in range(config.layers)]
    token_id = seeded.token_ids(config, batch)[:, 0]
    position = jnp.asarray(config.tokens * 3 // 4, jnp.int32)
    params = jax.tree.map(jnp.asarray, draw(gpt2(Size(batch), config=config)))
    return Model("gpt2-decode", decode, params, (token_id, cache, position))


def _build_decode(size: Size) -> Model:
    return build_decode(dataclasses.replace(SMALL, tokens=size.tokens or SMALL.tokens), size.batch)


NETWORKS = {"gpt2": functools.partial(gpt2, config=SMALL)}
MODELS = {"gpt2-decode": _build_decode}
