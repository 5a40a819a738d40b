"""explain: which operations run as tiles, which stay with XLA, and why."""

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax import aspen


@aspen
def classify(params, sound):
    """Class probabilities of sounds [batch, 32768]."""
    frames = sound.reshape(-1, 128, 256)
    x = jnp.abs(jnp.fft.rfft(frames))[:, None]  # a spectrogram, as an image of one channel
    x = jax.nn.relu(jax.lax.conv(x, params["first"], (1, 1), "SAME"))
    x = jax.nn.relu(jax.lax.conv(x, params["second"], (1, 1), "SAME"))
    return jax.nn.softmax(x.mean((2, 3)) @ params["last"])


shapes = {"first": (32, 1, 3, 3), "second": (64, 32, 3, 3), "last": (64, 10)}
keys = iter(jax.random.split(jax.random.key(0), 4))
params = {name: jax.random.normal(next(keys), shape) / 16 for name, shape in shapes.items()}
sound = jax.random.normal(next(keys), (1, 32768))

explanation = classify.explain(params, sound)
print(explanation)

assert {fallback.primitive for fallback in explanation.fallbacks} >= {"fft"}
np.testing.assert_allclose(classify(params, sound), classify.__wrapped__(params, sound), rtol=1e-3, atol=1e-4)
