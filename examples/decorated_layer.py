"""A decorated layer: called as before, with the same answer."""

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax import aspen, num_workers


@aspen
def layer(params, images):
    """A 3x3 convolution with bias and ReLU; images are [batch, channels, height, width]."""
    sums = jax.lax.conv(images, params["filters"], window_strides=(1, 1), padding="SAME")
    return jax.nn.relu(sums + params["bias"][:, None, None])


keys = jax.random.split(jax.random.key(0), 3)
params = {
    "filters": jax.random.normal(keys[0], (64, 32, 3, 3)) / 17,
    "bias": jax.random.normal(keys[1], (64,)),
}
images = jax.random.normal(keys[2], (1, 32, 56, 56))

result = layer(params, images)
expected = layer.__wrapped__(params, images)  # the function without the decorator
np.testing.assert_allclose(result, expected, atol=1e-4 * jnp.abs(expected).max())

print(f"{layer.__name__} gives {result.dtype}{list(result.shape)}, by {num_workers()} workers")
print(f"largest difference from the undecorated function: {jnp.abs(result - expected).max():.1e}")
