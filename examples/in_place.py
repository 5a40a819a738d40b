"""Updates in place: a donated buffer and the carry of a scan are written where they lie."""

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax import aspen


def write(cache, row, i):
    """The cache with one row replaced."""
    return cache.at[i].set(row)


def fill(cache, x, weights):
    """A loop that writes a row of the cache in each turn."""

    def turn(carry, i):
        cache, x = carry
        x = jnp.tanh(x @ weights)
        return (jax.lax.dynamic_update_slice(cache, x, (i, 0)), x), None

    (cache, _), _ = jax.lax.scan(turn, (cache, x), jnp.arange(len(cache)))
    return cache


row = jnp.arange(128.0)
cache = jnp.zeros((512, 128))
address = cache.unsafe_buffer_pointer()
donating = jax.jit(aspen(write, strict=True), donate_argnums=0)
written = donating(cache, row, 7)
assert cache.is_deleted()
assert written.unsafe_buffer_pointer() == address  # nothing was copied
np.testing.assert_array_equal(written, write(jnp.zeros((512, 128)), row, 7))
print("one row of a donated buffer: written in place")

weights = jax.random.normal(jax.random.key(0), (128, 128)) / 11
x = jnp.ones((1, 128))
filled = jax.jit(aspen(fill, strict=True), donate_argnums=0)(jnp.zeros((64, 128)), x, weights)
np.testing.assert_allclose(filled, fill(jnp.zeros((64, 128)), x, weights), rtol=1e-4, atol=1e-5)
print(f"a scan filled {len(filled)} rows, as the undecorated function")
