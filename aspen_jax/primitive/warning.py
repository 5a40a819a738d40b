"""The warning, once a function, that the decorator makes it no faster."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aspen_jax import forks
from aspen_jax.cost import equations as cost
from aspen_jax.primitive.choices import Choices

if TYPE_CHECKING:
    from jax.extend import core

logger = logging.getLogger("aspen_jax")

# Less work is not worth a reader's time: a custom call would not make it faster.
LEAST_WORK = 1e6

_warned: set[str] = set()
_lock = forks.Lock()


def warn_of_all(jaxpr: core.Jaxpr, reason: str, choices: Choices) -> None:
    """Warns that all of a function is left to XLA.

    Args:
        jaxpr: the function.
        reason: why, in words that follow "the function".
        choices: what the decorator was told.
    """
    if is_quiet(choices.function) and cost.executed(jaxpr.eqns) > LEAST_WORK:
        warn(choices.function, "all of it is", f"the function {reason}")


def is_quiet(function: str) -> bool:
    """Whether a function has a name to warn by, and nobody was warned of it."""
    return bool(function) and function not in _warned


def warn(function: str, how_much: str, why: str) -> None:
    """Warns that a part of a function is left to XLA, unless that was said before."""
    with _lock:
        if function in _warned:
            return
        _warned.add(function)
    logger.warning(
        "%s: %s left to XLA and no faster for @aspen: %s. explain() of the function says more; "
        'logging.getLogger("aspen_jax").setLevel("ERROR") silences this.',
        function,
        how_much,
        why,
    )
