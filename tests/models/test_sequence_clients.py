"""Sequence models of other libraries, decorated unchanged: one custom call without loops, forward and gradient as without.

Each case is a function of float32 parameters and of inputs, built as that library's users would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx

from aspen_jax import CUSTOM_CALL_TARGET, aspen
from aspen_jax.report.difference import largest_difference

Case = tuple[Callable[..., Any], Any, tuple[Any, ...]]

BATCH, TOKENS, WIDTH, HEADS, VOCABULARY = 3, 11, 32, 4, 43

CASES: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    CASES[build.__name__] = build
    return build


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def token_ids() -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).integers(1, VOCABULARY, (BATCH, TOKENS)), jnp.int32)


def seeded(tree: Any) -> Any:
    """Parameters that are drawn as zeros or ones (shifts, scales) at random, so that they count."""
    random = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: leaf + jnp.asarray(random.normal(0, 0.05, leaf.shape), leaf.dtype), tree)


def keras_model(inputs: Any, outputs: Any, *examples: jax.Array) -> Case:
    model = keras.Model(inputs, outputs)
    fixed = [variable.value for variable in model.non_trainable_variables]

    def apply(params: list[jax.Array], *inputs: jax.Array) -> Any:
        return model.stateless_call(params, fixed, list(inputs) if len(inputs) > 1 else inputs[0], training=False)[0]

    return apply, seeded([variable.value for variable in model.trainable_variables]), examples


def nnx_model(model: nnx.Module, *examples: jax.Array) -> Case:
    model.eval()
    definition, params, rest = nnx.split(model, nnx.Param, ...)
    return lambda params, *inputs: nnx.merge(definition, params, rest)(*inputs), seeded(params), examples


def equinox_model(model: Any, *examples: jax.Array, call: Callable[..., Any] | None = None) -> Case:
    params, static = eqx.partition(model, eqx.is_inexact_array)
    call = call or (lambda model, *inputs: jax.vmap(model)(*inputs))
    return lambda params, *inputs: call(eqx.combine(params, static), *inputs), seeded(params), examples


@case
def keras_encoder() -> Case:
    """Embedding with a padding mask that Keras hands on, attention and norms."""
    layers = keras.layers
    ids = keras.Input((TOKENS,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH, mask_zero=True)(ids)
    attended = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    hidden = layers.Dense(2 * WIDTH, activation="gelu")(x)
    x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(WIDTH)(hidden)]))
    return keras_model(ids, layers.GlobalAveragePooling1D()(x), token_ids().at[:, -3:].set(0))


@case
def keras_decoder() -> Case:
    """Causal attention whose queries share keys and values in groups, RMS norm, SwiGLU."""
    layers = keras.layers
    inputs = keras.Input((TOKENS, WIDTH))
    normed = layers.RMSNormalization()(inputs)
    attended = layers.GroupQueryAttention(WIDTH // HEADS, HEADS, 2)(normed, normed, use_causal_mask=True)
    x = inputs + attended
    normed = layers.RMSNormalization()(x)
    gated = layers.Dense(3 * WIDTH, activation="silu")(normed) * layers.Dense(3 * WIDTH)(normed)
    contracted = layers.EinsumDense("abc,cd->abd", (None, WIDTH), bias_axes="d")(gated)
    return keras_model(inputs, x + contracted, normal(BATCH, TOKENS, WIDTH))


@case
def keras_cross_attention() -> Case:
    query, memory = keras.Input((5, WIDTH)), keras.Input((TOKENS, WIDTH))
    outputs = keras.layers.MultiHeadAttention(HEADS, 6)(query, memory)
    return keras_model([query, memory], outputs, normal(BATCH, 5, WIDTH), normal(BATCH, TOKENS, WIDTH))


@case
def keras_group_norm() -> Case:
    layers = keras.layers
    inputs = keras.Input((9, 8, 12))
    x = layers.GroupNormalization(4)(layers.Conv2D(16, 3, padding="same")(inputs))
    return keras_model(inputs, layers.Activation("silu")(x), normal(BATCH, 9, 8, 12))


def keras_recurrent(layer: Any) -> Case:
    ids = keras.Input((TOKENS,), dtype="int32")
    x = keras.layers.Embedding(VOCABULARY, WIDTH)(ids)
    return keras_model(ids, keras.layers.Dense(7)(layer(x)), token_ids())


@case
def keras_gru() -> Case:
    return keras_recurrent(keras.layers.GRU(24))


@case
def keras_lstm_both_ways() -> Case:
    return keras_recurrent(keras.layers.Bidirectional(keras.layers.LSTM(16, return_sequences=True)))


class NnxBlock(nnx.Module):
    """A decoder block as flax's own examples write it."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.hidden_norm = nnx.RMSNorm(WIDTH, rngs=rngs)
        self.expand = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.contract = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = self.embed(ids)
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(ids))
        x = x + self.contract(nnx.gelu(self.expand(self.hidden_norm(x))))
        return self.embed.attend(x)


@case
def flax_nnx_decoder() -> Case:
    return nnx_model(NnxBlock(nnx.Rngs(0)), token_ids())


class LinenBlock(nn.Module):
    """An encoder block with a padding mask."""

    @nn.compact
    def __call__(self, ids: jax.Array) -> jax.Array:
        x = nn.Embed(VOCABULARY, WIDTH)(ids)
        mask = nn.make_attention_mask(ids > 5, ids > 5)
        x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(HEADS)(x, x, mask=mask))
        return nn.LayerNorm()(x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(2 * WIDTH)(x), approximate=False)))


@case
def flax_linen_encoder() -> Case:
    ids = token_ids()
    model = LinenBlock()
    return lambda params, ids: model.apply(params, ids), seeded(model.init(jax.random.key(0), ids)), (ids,)


class EquinoxBlock(eqx.Module):
    """Rotary embedding, causal attention, SwiGLU."""

    embedding: eqx.nn.Embedding
    rotary: eqx.nn.RotaryPositionalEmbedding
    norm: eqx.nn.RMSNorm
    attention: eqx.nn.MultiheadAttention
    hidden_norm: eqx.nn.LayerNorm
    expand: eqx.nn.Linear
    contract: eqx.nn.Linear

    def __init__(self, key: jax.Array):
        keys = jax.random.split(key, 4)
        self.embedding = eqx.nn.Embedding(VOCABULARY, WIDTH, key=keys[0])
        self.rotary = eqx.nn.RotaryPositionalEmbedding(WIDTH // HEADS)
        self.norm = eqx.nn.RMSNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(HEADS, WIDTH, key=keys[1])
        self.hidden_norm = eqx.nn.LayerNorm(WIDTH)
        self.expand = eqx.nn.Linear(WIDTH, 4 * WIDTH, key=keys[2])
        self.contract = eqx.nn.Linear(2 * WIDTH, WIDTH, key=keys[3])

    def __call__(self, ids: jax.Array) -> jax.Array:
        x = jax.vmap(self.embedding)(ids)

        def rotated(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            turn = jax.vmap(self.rotary, in_axes=1, out_axes=1)
            return turn(query), turn(key), value

        normed = jax.vmap(self.norm)(x)
        mask = jnp.tril(jnp.ones((len(ids), len(ids)), bool))
        x = x + self.attention(normed, normed, normed, mask=mask, process_heads=rotated)
        gate, linear = jnp.split(jax.vmap(self.expand)(jax.vmap(self.hidden_norm)(x)), 2, axis=-1)
        return x + jax.vmap(self.contract)(jax.nn.silu(gate) * linear)


@case
def equinox_decoder() -> Case:
    return equinox_model(EquinoxBlock(jax.random.key(0)), token_ids())


@case
def equinox_gru() -> Case:
    def call(cell: eqx.nn.GRUCell, x: jax.Array) -> jax.Array:
        def step(state: jax.Array, inputs: jax.Array) -> tuple[jax.Array, None]:
            return jax.vmap(cell)(inputs, state), None

        return jax.lax.scan(step, jnp.zeros((BATCH, 20)), x.swapaxes(0, 1))[0]

    return equinox_model(eqx.nn.GRUCell(WIDTH, 20, key=jax.random.key(0)), normal(BATCH, TOKENS, WIDTH), call=call)


@case
def jax_attention_with_grouped_queries() -> Case:
    """The function of jax.nn, with a length of its own for each text."""
    lengths = jnp.array([TOKENS, 4, 7])

    def apply(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        query = (x @ params["query"]).reshape(BATCH, TOKENS, HEADS, 8)
        key, value = ((x @ params[name]).reshape(BATCH, TOKENS, 2, 8) for name in ("key", "value"))
        return jax.nn.dot_product_attention(query, key, value, key_value_seq_lengths=lengths, is_causal=True)

    params = {"query": normal(WIDTH, 8 * HEADS), "key": normal(WIDTH, 16), "value": normal(WIDTH, 16)}
    return apply, jax.tree.map(lambda leaf: leaf * WIDTH**-0.5, params), (normal(BATCH, TOKENS, WIDTH),)


@pytest.fixture(params=CASES, scope="module")
def built(request) -> tuple[str, Case]:
    keras.utils.set_random_seed(0)
    return request.param, CASES[request.param]()


@pytest.mark.sweep
def test_forward_is_as_undecorated(built):
    name, (apply, params, inputs) = built
    expected = jax.jit(apply)(params, *inputs)
    loops = "gru" in name or "lstm" in name  # these stay, and their bodies are tiled
    compiled = jax.jit(aspen(apply, strict=not loops)).lower(params, *inputs).compile()
    text = compiled.as_text() or ""
    calls = text.count(f'custom_call_target="{CUSTOM_CALL_TARGET}"')
    assert calls >= 1 if loops else calls == 1
    assert loops or (" dot(" not in text and " convolution(" not in text)
    assert np.abs(expected).max() > 0.1, "a vanishing output would compare equal whatever was computed"
    assert largest_difference(compiled(params, *inputs), expected) <= 1e-5


@pytest.mark.sweep
def test_gradient_is_as_undecorated(built):
    _, (apply, params, inputs) = built

    def gradient(apply: Callable[..., Any]) -> list[jax.Array]:
        return jax.tree.leaves(jax.jit(jax.grad(lambda params: (apply(params, *inputs) ** 2).mean()))(params))

    expected = gradient(apply)
    largest = max(np.abs(leaf).max() for leaf in expected)
    for actual, wanted in zip(gradient(aspen(apply)), expected, strict=True):
        assert np.abs(actual - wanted).max() <= 1e-4 * max(np.abs(wanted).max(), 1e-2 * largest)  # of some, all is rounding
