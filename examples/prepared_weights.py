"""Prepared weights: stored once in the order in which tiles read them, then passed under jax.jit."""

import jax
import numpy as np

from aspen_jax import aspen


@aspen(weights="params", strict=True)
def model(params, x):
    """Dense layers with weights [outputs, inputs], as PyTorch and Equinox hold them."""
    for weight in params:
        x = jax.nn.relu(x @ weight.T)
    return x


keys = jax.random.split(jax.random.key(0), 4)
params = [jax.random.normal(key, (256, 256)) / 16 for key in keys[:3]]
x = jax.random.normal(keys[3], (8, 256))
expected = model.__wrapped__(params, x)

# A call outside of jax.jit prepares by itself what it is told are weights, and remembers it.
np.testing.assert_allclose(model(params, x), expected, rtol=1e-4, atol=1e-4)

# Under jax.jit weights are tracers, so they are prepared beforehand.
ready = model.prepare(params, jax.ShapeDtypeStruct(x.shape, x.dtype))
step = jax.jit(lambda params, x: model(params, x).sum(axis=-1))
np.testing.assert_allclose(step(ready, x), expected.sum(axis=-1), rtol=1e-4, atol=1e-4)

print("given:   ", *(type(weight).__name__ for weight in params))
print("prepared:", *(type(weight).__name__ for weight in ready))
