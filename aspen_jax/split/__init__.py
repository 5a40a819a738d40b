"""Split execution: a function is cut in two, and each half runs where you say, on a device or on a server.

It knows the public face of aspen_jax, `errors` and the cache's folder, and is never imported by aspen_jax itself.
Begin at `cut` in cut.py, or with the tutorial docs/tutorials/split.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aspen_jax.errors import AspenError
from aspen_jax.split.cut import Crossing, ScanStep, crossing, crossings, cut, num_cuts

if TYPE_CHECKING:
    from aspen_jax.split.client import Client, Record
    from aspen_jax.split.halves import Halves
    from aspen_jax.split.security import Tls
    from aspen_jax.split.server import Server, serve
    from aspen_jax.split.servicer import Offer, PeerLimits, Servicer

__all__ = [
    "Client",
    "Crossing",
    "Halves",
    "Offer",
    "PeerLimits",
    "Record",
    "ScanStep",
    "Server",
    "Servicer",
    "Tls",
    "crossing",
    "crossings",
    "cut",
    "num_cuts",
    "serve",
]

# What needs gRPC is imported when it is first asked for: cutting needs no network.
_BY_GRPC = {
    "Client": "client",
    "Halves": "halves",
    "Offer": "servicer",
    "PeerLimits": "servicer",
    "Record": "client",
    "Server": "server",
    "Servicer": "servicer",
    "Tls": "security",
    "serve": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _BY_GRPC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_BY_GRPC[name]}"), name)
    except ImportError as error:
        raise AspenError(f"{name} needs the extra 'split' ({error}); pip install 'aspen_jax[split]'") from error
