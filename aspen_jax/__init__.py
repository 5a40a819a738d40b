"""aspen_jax runs a JAX function as one graph of tiles, without barriers between operators.

Example:
    >>> from aspen_jax import aspen
    >>> layer = aspen(lambda x, w: jax.nn.relu(x @ w))
    >>> y = layer(x, w)  # as the undecorated function
    >>> print(layer.explain(x, w))  # ops, tiles, and what stays with XLA
"""

from aspen_jax.api.decorator import aspen
from aspen_jax.errors import AspenError, EngineError, GraphFormatError, InputError, UnsupportedError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.runtime import CUSTOM_CALL_TARGET, num_workers, set_num_workers

__version__ = "0.1.0"

__all__ = [
    "CUSTOM_CALL_TARGET",
    "AspenError",
    "EngineError",
    "GraphFormatError",
    "InputError",
    "TileGraph",
    "UnsupportedError",
    "aspen",
    "num_workers",
    "set_num_workers",
]
