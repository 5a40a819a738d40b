"""The measures of transformers, and seeded numbers for those in plain JAX."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


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

    def token_ids(self, config: Config, batch: int) -> jax.Array:
        """int32 [batch, tokens]."""
        return jnp.asarray(self._random.integers(0, config.vocabulary, (batch, config.tokens)), jnp.int32)

    def normal(self, *shape: int) -> jax.Array:
        return jnp.asarray(self._random.standard_normal(shape, np.float32))
