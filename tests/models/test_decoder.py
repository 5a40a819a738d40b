"""A small decoder in plain JAX: prompt and step with a key-value cache, each one custom call and nothing else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import aspen

LAYERS, HEADS, WIDTH, VOCABULARY, POSITIONS = 2, 4, 32, 53, 24


def parameters() -> dict:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape) * 0.2, jnp.float32)

    layers = [
        {
            "scale": normal(2, WIDTH) + 1,
            "shift": normal(2, WIDTH),
            "attend": normal(WIDTH, 3 * WIDTH),
            "project": normal(WIDTH, WIDTH),
            "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {"tokens": normal(VOCABULARY, WIDTH), "positions": normal(POSITIONS, WIDTH), "layers": layers}


def norm(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def decode(weights, cache, tokens, start):
    """The next tokens and logits after `tokens` [batch, time] at positions start, start + 1, ...; and the cache with them."""
    time = tokens.shape[1]
    x = weights["tokens"][tokens] + lax.dynamic_slice_in_dim(weights["positions"], start, time)
    # A query sees the keys up to its own position; those behind are not written yet.
    queries = start + lax.broadcasted_iota(jnp.int32, (time, POSITIONS), 0)
    visible = queries >= lax.broadcasted_iota(jnp.int32, (time, POSITIONS), 1)
    new_cache = []
    for layer, (keys, values) in zip(weights["layers"], cache, strict=True):
        h = norm(x, layer["scale"][0], layer["shift"][0]) @ layer["attend"]
        q, k, v = (part.reshape(*part.shape[:-1], HEADS, -1).swapaxes(1, 2) for part in jnp.split(h, 3, -1))
        keys = lax.dynamic_update_slice(keys, k, (0, 0, start, 0))
        values = lax.dynamic_update_slice(values, v, (0, 0, start, 0))
        new_cache.append((keys, values))
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, keys) / np.sqrt(WIDTH // HEADS)
        attention = jax.nn.softmax(jnp.where(visible, scores, -1e9), -1)
        mixed = jnp.einsum("bhqk,bhkd->bhqd", attention, values).swapaxes(1, 2).reshape(x.shape)
        x = x + mixed @ layer["project"]
        h = norm(x, layer["scale"][1], layer["shift"][1])
        x = x + jax.nn.gelu(h @ layer["up"]) @ layer["down"]
    logits = x[:, -1] @ weights["tokens"].T
    return jnp.argmax(logits, -1), logits, new_cache


@pytest.mark.parametrize("batch", [1, 3])
def test_generation_is_one_custom_call_a_step(batch):
    weights = parameters()
    shape = (batch, HEADS, POSITIONS, WIDTH // HEADS)
    cache = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(LAYERS)]
    prompt = jnp.asarray(np.random.default_rng(1).integers(0, VOCABULARY, (batch, 7)), jnp.int32)
    tiled, plain = aspen(decode, strict=True), jax.jit(decode)

    def generate(step):
        token, logits, state = step(weights, cache, prompt, jnp.int32(0))
        tokens, all_logits = [token], [logits]
        for position in range(7, 15):
            token, logits, state = step(weights, state, tokens[-1][:, None], jnp.int32(position))
            tokens.append(token)
            all_logits.append(logits)
        return np.stack(tokens, 1), np.stack(all_logits, 1), state

    ours, theirs = generate(tiled), generate(plain)
    np.testing.assert_array_equal(ours[0], theirs[0])
    for a, b in zip(jax.tree.leaves(ours[1:]), jax.tree.leaves(theirs[1:]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    for tokens in (prompt, prompt[:, :1]):
        explanation = tiled.explain(weights, cache, tokens, jnp.int32(3))
        assert len(explanation.parts) == 1
        assert not explanation.fallbacks
