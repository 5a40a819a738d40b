"""jit, vmap and grad of a decorated function: they work as on the undecorated one."""

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax import aspen


def loss(params, x, y):
    """The squared error of a small network for one example."""
    hidden = jax.nn.gelu(x @ params["expand"])
    return ((hidden @ params["contract"] - y) ** 2).mean()


tiled = aspen(loss, strict=True)  # strict: all of it in tiles, small as it is

keys = jax.random.split(jax.random.key(0), 4)
params = {
    "expand": jax.random.normal(keys[0], (64, 256)) / 8,
    "contract": jax.random.normal(keys[1], (256, 16)) / 16,
}
x = jax.random.normal(keys[2], (32, 64))
y = jax.random.normal(keys[3], (32, 16))

TRANSFORMATIONS = {
    "jit": lambda f: jax.jit(f)(params, x[0], y[0]),
    "vmap": lambda f: jax.vmap(f, in_axes=(None, 0, 0))(params, x, y),
    "value_and_grad": lambda f: jax.value_and_grad(f)(params, x[0], y[0]),
    "jit of vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(f), in_axes=(None, 0, 0)))(params, x, y),
}

for name, transformed in TRANSFORMATIONS.items():
    result, expected = transformed(tiled), transformed(loss)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), result, expected)
    print(f"{name}: {[jnp.shape(leaf) for leaf in jax.tree.leaves(result)]}, as the undecorated function")
