"""A train step of flax nnx: the decorated step changes model and optimizer, as under nnx.jit."""

import jax
import numpy as np
import optax
from flax import nnx

from aspen_jax import aspen


class Network(nnx.Module):
    """Two dense layers with a normalisation between them."""

    def __init__(self, rngs):
        self.expand = nnx.Linear(32, 128, rngs=rngs)
        self.norm = nnx.LayerNorm(128, rngs=rngs)
        self.contract = nnx.Linear(128, 8, rngs=rngs)

    def __call__(self, x):
        return self.contract(nnx.gelu(self.norm(self.expand(x))))


def train_step(model, optimizer, x, y):
    loss, gradients = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
    optimizer.update(model, gradients)
    return loss


def losses(step):
    """The losses of four steps from the same start."""
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    x, y = jax.random.normal(jax.random.key(1), (64, 32)), jax.random.normal(jax.random.key(2), (64, 8))
    return [float(step(model, optimizer, x, y)) for _ in range(4)]


tiled, expected = losses(aspen(train_step, strict=True)), losses(nnx.jit(train_step))
np.testing.assert_allclose(tiled, expected, rtol=1e-3)
assert tiled[-1] < tiled[0]  # it learns
print("losses, decorated:", *(f"{loss:.4f}" for loss in tiled))
print("losses, nnx.jit:  ", *(f"{loss:.4f}" for loss in expected))
