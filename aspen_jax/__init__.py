"""aspen_jax: a JAX function as one graph of tiles, run without barriers between operators."""

from aspen_jax.api import aspen
from aspen_jax.errors import AspenError, EngineError, GraphFormatError, InputError, UnsupportedError

__version__ = "0.1.0"

__all__ = [
    "AspenError",
    "EngineError",
    "GraphFormatError",
    "InputError",
    "UnsupportedError",
    "aspen",
]
