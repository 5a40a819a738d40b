"""Errors of aspen_jax. Each names the offending value and ends with what to do."""

from __future__ import annotations


class AspenError(Exception):
    """Base of every error that aspen_jax raises on its own account."""


class UnsupportedError(AspenError, NotImplementedError):
    """A function cannot be tiled as a whole and `strict=True` was asked for."""


class GraphFormatError(AspenError, ValueError):
    """A graph file or graph bytes are truncated, corrupt, of another version, or describe an impossible graph."""


class InputError(AspenError, ValueError):
    """Arrays or options handed in do not fit: shape, dtype, tree, device, count or name."""


class EngineError(AspenError, RuntimeError):
    """A run ended with an error in the engine, such as a failed tile or a lack of memory."""


class LinkError(AspenError, ConnectionError):
    """The other side of a split run is lost, late, or refuses a request.

    Attributes:
        reason: the name of a refusal, such as "BUSY" (aspen_jax/split/split.proto), or of a status of gRPC, such as
            "UNAVAILABLE".
    """

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason
