"""Recurrent networks and other loops whose bodies do little."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.clients.program import Client, Program, add, client, integers, library, normal, weights


def _tanh_loop(width: int, batch: int) -> Program:
    def loop(state: Any, weight: Any) -> Any:
        return lax.fori_loop(0, 1000, lambda _, state: jnp.tanh(state @ weight + 0.1), state)

    return loop, (normal(8, 8 * batch, width), weights(9, width, width) * 0.9)


for _width in (32, 64, 128, 256):
    add(Client(f"tanh-loop-{_width}", functools.partial(_tanh_loop, _width)))


def _lstm(params: Any, inputs: Any) -> Any:
    def cell(state: Any, x: Any) -> Any:
        c, h = state
        gates = x @ params["inputs"] + h @ params["state"] + params["bias"]
        enter, forget, new, leave = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(forget + 1) * c + jax.nn.sigmoid(enter) * jnp.tanh(new)
        h = jax.nn.sigmoid(leave) * jnp.tanh(c)
        return (c, h), h

    zero = jnp.zeros((inputs.shape[1], params["state"].shape[0]))
    return lax.scan(cell, (zero, zero), inputs)[1]


def _lstm_arguments(batch: int, width: int = 128, turns: int = 1000) -> tuple[Any, Any]:
    params = {
        "inputs": normal(10, width, 4 * width) * 0.05,
        "state": normal(11, width, 4 * width) * 0.05,
        "bias": jnp.zeros(4 * width),
    }
    return params, normal(12, turns, batch, width)


@client()
def lstm(batch: int) -> Program:
    return _lstm, _lstm_arguments(batch)


@client()
def lstm_gradient(batch: int) -> Program:
    return jax.grad(lambda params, x: (_lstm(params, x) ** 2).mean()), _lstm_arguments(batch)


@client()
def mlp_loop(batch: int) -> Program:
    layers = [normal(13 + i, *shape) * 0.2 for i, shape in enumerate([(32, 64), (64, 64), (64, 32)])]

    def loop(layers: Any, x: Any) -> Any:
        def body(x: Any, _: None) -> tuple[Any, None]:
            y = x
            for layer in layers:
                y = jnp.tanh(y @ layer)
            return x + 0.01 * y, None

        return lax.scan(body, x, None, length=1000)[0]

    return loop, (layers, normal(17, batch, 32))


def _recurrent(cell: str, batch: int) -> Program:
    nn = library("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            x = nn.Embed(4000, 256)(tokens)
            for _ in range(2):
                x = nn.RNN(getattr(nn, cell)(256))(x)
            return nn.Dense(4000)(x)

    model: Any = Model()
    tokens = integers(0, 4000, batch, 64)
    return model.apply, (model.init(jax.random.key(1), tokens), tokens)


add(Client("lstm-language-model", functools.partial(_recurrent, "OptimizedLSTMCell"), ("flax",), is_faster=True))
add(Client("gru-language-model", functools.partial(_recurrent, "GRUCell"), ("flax",)))


@client(is_faster=True)
def unrolled_rnn(batch: int) -> Program:
    def unrolled(weight: Any, inputs: Any) -> Any:
        state = jnp.zeros(inputs.shape[1:])
        for x in inputs:
            state = jnp.tanh(state @ weight + x)
        return state

    return unrolled, (weights(18, 64, 64), normal(19, 300, 8 * batch, 64))


@client()
def deep_mlp(batch: int) -> Program:
    def apply(layers: Any, x: Any) -> Any:
        for layer in layers:
            x = jax.nn.relu(x @ layer)
        return x

    return apply, ([weights(20 + i, 128, 128) * 1.4 for i in range(500)], normal(19, 32 * batch, 128))


@client("equinox", is_faster=True)
def decoding(batch: int) -> Program:
    """Greedy decoding of 64 tokens by a small transformer with a cache of keys and values."""
    eqx = library("equinox")
    width, heads, depth, words, length = 256, 8, 4, 2000, 128

    class Block(eqx.Module):
        norm: Any
        attention_in: Any
        attention_out: Any
        second_norm: Any
        up: Any
        down: Any

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 4)
            self.norm, self.second_norm = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
            self.attention_in = eqx.nn.Linear(width, 3 * width, key=keys[0])
            self.attention_out = eqx.nn.Linear(width, width, key=keys[1])
            self.up = eqx.nn.Linear(width, 4 * width, key=keys[2])
            self.down = eqx.nn.Linear(4 * width, width, key=keys[3])

        def __call__(self, x: Any, keys: Any, values: Any, position: Any) -> Any:
            query, key, value = (part.reshape(heads, -1) for part in jnp.split(self.attention_in(self.norm(x)), 3))
            keys = lax.dynamic_update_index_in_dim(keys, key, position, 0)
            values = lax.dynamic_update_index_in_dim(values, value, position, 0)
            scores = jnp.einsum("hd,thd->ht", query, keys) * (width // heads) ** -0.5
            scores = jax.nn.softmax(jnp.where(jnp.arange(length) <= position, scores, -jnp.inf), -1)
            x = x + self.attention_out(jnp.einsum("ht,thd->hd", scores, values).reshape(width))
            return x + self.down(jax.nn.gelu(self.up(self.second_norm(x)))), keys, values

    class Decoder(eqx.Module):
        words: Any
        positions: Any
        blocks: Any
        norm: Any

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, depth + 2)
            self.words = eqx.nn.Embedding(words, width, key=keys[0])
            self.positions = eqx.nn.Embedding(length, width, key=keys[1])
            self.blocks = [Block(key) for key in keys[2:]]
            self.norm = eqx.nn.LayerNorm(width)

        def step(self, token: Any, cache: Any, position: Any) -> Any:
            x = self.words(token) + self.positions(position)
            new = []
            for block, (keys, values) in zip(self.blocks, cache, strict=True):
                x, *updated = block(x, keys, values, position)
                new.append(tuple(updated))
            return self.norm(x) @ self.words.weight.T, new

    params, rest = eqx.partition(Decoder(jax.random.key(0)), eqx.is_array)

    def decode(params: Any, prompts: Any) -> Any:
        model: Any = eqx.combine(params, rest)

        def one(prompt: Any) -> Any:
            def body(state: Any, position: Any) -> Any:
                token, cache = state
                given = prompt[jnp.minimum(position, len(prompt) - 1)]
                logits, cache = model.step(jnp.where(position < len(prompt), given, token), cache, position)
                token = logits.argmax().astype(jnp.int32)
                return (token, cache), (token, logits.max())

            cache = [(jnp.zeros((length, heads, width // heads)),) * 2 for _ in range(depth)]
            return lax.scan(body, (jnp.int32(0), cache), jnp.arange(64))[1]

        return jax.vmap(one)(prompts)

    return decode, (params, integers(1, words, batch, 8))
