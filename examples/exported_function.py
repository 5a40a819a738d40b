"""Export and reload: a decorated function as bytes, called in a process that does not have its source."""

import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.export
import numpy as np

from aspen_jax import CUSTOM_CALL_TARGET, aspen


def layer(weights, x):
    """A dense layer."""
    return jax.nn.gelu(x @ weights)


# The process that loads the function imports aspen_jax first, which makes the custom call known.
LOADER = """
import sys, numpy, jax, jax.export, aspen_jax
with open("layer.exported", "rb") as file:
    layer = jax.export.deserialize(bytearray(file.read()))
numpy.save("result.npy", layer.call(*numpy.load("arguments.npz").values()))
"""

keys = jax.random.split(jax.random.key(0), 2)
weights, x = jax.random.normal(keys[0], (64, 128)) / 8, jax.random.normal(keys[1], (32, 64))

allowed = [jax.export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)]
exported = jax.export.export(jax.jit(aspen(layer, strict=True)), disabled_checks=allowed)(weights, x)
assert CUSTOM_CALL_TARGET in exported.mlir_module()

with tempfile.TemporaryDirectory() as folder:
    data = exported.serialize()
    (Path(folder) / "layer.exported").write_bytes(data)
    np.savez(Path(folder) / "arguments.npz", weights, x)
    subprocess.run([sys.executable, "-c", LOADER], cwd=folder, check=True)
    result = np.load(Path(folder) / "result.npy")

np.testing.assert_allclose(result, layer(weights, x), rtol=1e-4, atol=1e-5)
print(f"{len(data)} bytes, called in another process: {result.shape}, as the undecorated function")
