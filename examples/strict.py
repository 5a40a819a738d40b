"""strict=True: all of a function runs in tiles, or an error names the lines that cannot."""

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax import UnsupportedError, aspen


def loudest(weights, frames):
    """Scores of the spectra of frames of sound."""
    spectra = jnp.abs(jnp.fft.rfft(frames))  # tiles hold no complex numbers
    return jax.nn.softmax(spectra @ weights)


keys = jax.random.split(jax.random.key(0), 2)
weights = jax.random.normal(keys[0], (129, 10)) / 129
frames = jax.random.normal(keys[1], (64, 256))

try:
    aspen(loudest, strict=True)(weights, frames)
except UnsupportedError as error:
    message = str(error)
else:
    raise AssertionError("a Fourier transform ran in tiles")

assert "fft" in message
assert "strict.py:12" in message  # the line of rfft above
print(message)

# Without strict the transform stays with XLA.
result, expected = aspen(loudest)(weights, frames), loudest(weights, frames)
np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
print(f"without strict: {result.shape}, as the undecorated function")
