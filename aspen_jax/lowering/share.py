"""How much of a function's work runs as tiles, and the warning where little of it does.

Work is counted in operations on elements, those of a `scan` once for each of its turns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.cost import equations as cost
from aspen_jax.primitive import warning
from aspen_jax.primitive.control_flow import is_control_flow

if TYPE_CHECKING:
    from jax.extend import core

    from aspen_jax.frontend.partition import Fallback
    from aspen_jax.ir.program import Op
    from aspen_jax.lowering.compile import Compiled

# A warning says so many reasons.
_MOST_REASONS = 3


@dataclasses.dataclass(frozen=True)
class Share:
    """Where the work of a function is done, in operations on elements.

    Attributes:
        tiled: in tiles.
        left: each equation that XLA runs with its work, of control flow what is not in its tiled bodies.
    """

    tiled: float
    left: tuple[tuple[Fallback, float], ...]

    @property
    def total(self) -> float:
        """The work of the whole function; nan with symbolic shapes."""
        return self.tiled + sum(work for _, work in self.left)

    @classmethod
    def of(cls, jaxpr: core.Jaxpr, compiled: Compiled, turns: float = 1) -> Share:
        """Find where a function's work is done, or the work of a body that runs `turns` times."""
        # What is computed when tracing, or by nobody, is in neither.
        works = [cost.executed([fallback.equation]) for fallback in compiled.fallbacks]
        rest = cost.executed(jaxpr.eqns) - sum(works)
        tiled = turns * max(0.0, min(rest, sum(_work(op) for part in compiled.parts for op in part.traced.ops)))
        left = []
        for fallback, of_fallback in zip(compiled.fallbacks, works, strict=True):
            work = turns * of_fallback
            if is_control_flow(fallback.equation):
                again = turns * fallback.equation.params.get("length", 1)
                for body, of_body in compiled.bodies_of(fallback):
                    inner = cls.of(body.jaxpr, of_body, again)
                    work -= again * cost.executed(body.jaxpr.eqns)
                    tiled += inner.tiled
                    left += inner.left
            if work > 0:
                left.append((fallback, work))
        return cls(tiled, tuple(left))


def in_tiles(calls: Iterable[tuple[core.ClosedJaxpr, Compiled]]) -> float:
    """The share in tiles of the calls that a function consists of, from 0 to 1; 1 where there is nothing to do."""
    shares = [Share.of(jaxpr.jaxpr, compiled) for jaxpr, compiled in calls]
    total = sum(share.total for share in shares)
    return sum(share.tiled for share in shares) / total if total else 1.0


def _work(op: Op) -> float:
    whole = np.array([[(0, extent) for extent in op.output.shape]]).reshape(1, -1, 2)
    return float(op.family.work(op, whole).flops.sum())


def warn_of_fallbacks(jaxpr: core.Jaxpr, compiled: Compiled) -> None:
    """Warns, once a function, where more than half of its work has no kernel.

    What runs in XLA because tiles would not be faster does not count.
    """
    function = compiled.options.choices.function
    if not warning.is_quiet(function) or all(fallback.is_tileable for fallback in compiled.fallbacks):
        return
    share = Share.of(jaxpr, compiled)
    left: dict[str, float] = {}
    for fallback, work in share.left:
        if not fallback.is_tileable and not is_control_flow(fallback.equation):
            where = f" at {fallback.source}" if fallback.source else ""
            reason = f"{fallback.equation.primitive.name}{where} ({fallback.reason})"
            left[reason] = left.get(reason, 0) + work
    refused = sum(left.values())
    if refused > max(warning.LEAST_WORK, share.total / 2):
        ordered = sorted(left.items(), key=lambda item: -item[1])
        reasons = [f"{work / share.total:.0%} {reason}" for reason, work in ordered[:_MOST_REASONS]]
        reasons += [f"{len(ordered) - _MOST_REASONS} more"] if len(ordered) > _MOST_REASONS else []
        warning.warn(function, f"{refused / share.total:.0%} of its flops are", "; ".join(reasons))
