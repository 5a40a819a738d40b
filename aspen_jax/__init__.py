"""aspen_jax runs a JAX function as one graph of tiles, without barriers between operators.

Example:
    >>> from aspen_jax import aspen
    >>> layer = aspen(lambda x, w: jax.nn.relu(x @ w))
    >>> y = layer(x, w)  # as the undecorated function
    >>> print(layer.explain(x, w))  # ops, tiles, and what stays with XLA
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("aspen_jax._engine") is None:  # in a checkout, Python finds the sources before what is installed
    raise ImportError(
        f"{__path__[0]} is source code without its compiled engine: start Python as `python -P`, or in another folder, to use "
        "the package that `pip install .` installed, or run `pip install -e .` to use this one"
    )

from aspen_jax.errors import AspenError, EngineError, GraphFormatError, InputError, UnsupportedError
from aspen_jax.runtime import CUSTOM_CALL_TARGET, limits, num_workers, set_num_workers  # it tells XLA of the custom call

if TYPE_CHECKING:
    from aspen_jax.api.decorator import aspen
    from aspen_jax.graph.tilegraph import TileGraph
    from aspen_jax.report.profile import profile

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
    "limits",
    "num_workers",
    "profile",
    "set_num_workers",
]

# What the rest of the package comes with. A process that only runs what was exported does without.
_LATER = {"TileGraph": "graph.tilegraph", "aspen": "api.decorator", "profile": "report.profile"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
