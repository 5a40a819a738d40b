"""What the decorator was told, as it goes along with each call."""

from __future__ import annotations

from typing import NamedTuple


class Choices(NamedTuple):
    """Options of `aspen` that concern how a call is compiled.

    Attributes:
        strict: refuse a function that cannot be tiled as a whole.
        device: the name of a target, or "auto" (aspen_jax/targets/registry.py).
        function: name and line of the decorated function, for messages; "" for a part of one, such as a loop's body.
        executor: what runs it, by a name that its target knows; None until that is decided.
        is_repeated: it is the body of a loop, so that XLA starts a call of it without JAX.
        is_body: it is the body of a loop or a branch, a computation of its own to XLA.
        run_key: when its runs on the CPU are due (`aspen_jax.runtime.run_key`).
    """

    strict: bool = False
    device: str = "auto"
    function: str = ""
    executor: str | None = None
    is_repeated: bool = False
    is_body: bool = False
    run_key: int = 0
