"""How much of a function's work runs as tiles, and the warning where little of it does.

Work is counted in operations on elements, those of a `scan` once for each of its turns.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from aspen_jax import cost
from aspen_jax.choices import Choices

if TYPE_CHECKING:
    from jax.extend import core

    from aspen_jax.compile import Compiled
    from aspen_jax.partition import Fallback

logger = logging.getLogger("aspen_jax")

# A warning says so many reasons, and is not worth a reader's time for less work, which a custom call would not make faster.
_MOST_REASONS = 3
_LEAST_WORK = 1e6

_warned: set[str] = set()
_lock = threading.Lock()


def left_to_xla(compiled: Compiled, turns: float = 1) -> Iterator[tuple[Fallback, float]]:
    """Each equation that XLA runs with its work, of control flow what is not in its tiled bodies.

    Args:
        compiled: a function, or a body that runs as often as `turns` says.
        turns: how often it runs.
    """
    from aspen_jax.control_flow import is_control_flow

    for fallback in compiled.fallbacks:
        work = turns * cost.executed([fallback.equation])
        if is_control_flow(fallback.equation):
            again = turns * fallback.equation.params.get("length", 1)
            for jaxpr, body in compiled.bodies_of(fallback):
                work -= again * cost.executed(jaxpr.jaxpr.eqns)
                yield from left_to_xla(body, again)
        if work > 0:
            yield fallback, work


def in_tiles(jaxpr: core.Jaxpr, compiled: Iterable[Compiled]) -> float:
    """The share of a function's work in tiles, from 0 to 1; 1 where there is nothing to do, nan with symbolic shapes.

    Args:
        jaxpr: the function.
        compiled: the calls of tiles that it consists of.
    """
    work = cost.executed(jaxpr.eqns)
    left = sum(work for item in compiled for _, work in left_to_xla(item))
    return max(0.0, 1 - left / work) if work else 1.0


def warn_of_fallbacks(jaxpr: core.Jaxpr, compiled: Compiled) -> None:
    """Warns, once a function, where more than half of its work has no kernel.

    What runs in XLA because tiles would not be faster does not count.
    """
    from aspen_jax.control_flow import is_control_flow

    function = compiled.options.choices.function
    if not function or function in _warned:
        return
    left: dict[str, float] = {}
    for fallback, work in left_to_xla(compiled):
        if not fallback.is_tileable and not is_control_flow(fallback.equation):
            where = f" at {fallback.source}" if fallback.source else ""
            reason = f"{fallback.equation.primitive.name}{where} ({fallback.reason})"
            left[reason] = left.get(reason, 0) + work
    work = cost.executed(jaxpr.eqns)
    if sum(left.values()) > max(_LEAST_WORK, work / 2):
        ordered = sorted(left.items(), key=lambda item: -item[1])
        reasons = [f"{100 * part / work:.0f}% {reason}" for reason, part in ordered[:_MOST_REASONS]]
        reasons += [f"{len(ordered) - _MOST_REASONS} more"] if len(ordered) > _MOST_REASONS else []
        _warn(function, f"{100 * sum(left.values()) / work:.0f}% of its flops are", "; ".join(reasons))


def warn_of_all(jaxpr: core.Jaxpr, reason: str, choices: Choices) -> None:
    """Warns, once a function, that all of it is left to XLA.

    Args:
        jaxpr: the function.
        reason: why, in words that follow "the function".
        choices: what the decorator was told.
    """
    if choices.function and choices.function not in _warned and cost.executed(jaxpr.eqns) > _LEAST_WORK:
        _warn(choices.function, "all of it is", f"the function {reason}")


def _warn(function: str, how_much: str, why: str) -> None:
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
