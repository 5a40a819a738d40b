"""A function run by aspen and by `jax.jit`: the same results? how fast?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from aspen_jax import runtime
from aspen_jax.api import arguments, objects
from aspen_jax.api.bound import BoundAspenFunction
from aspen_jax.api.decorator import aspen
from aspen_jax.api.function import AspenFunction
from aspen_jax.api.user_function import blaming
from aspen_jax.cost.timing import Timing, check_rounds, interleaved, speedup, table
from aspen_jax.errors import InputError
from aspen_jax.report.difference import largest_difference

# What every dtype and algorithm is held to by default, as a share of the largest output.
TOLERANCE = 1e-4

PLAIN, TILED = "jax.jit", "aspen"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """How a function decorated with `aspen` does beside the undecorated one under `jax.jit`.

    Attributes:
        name: the function's name.
        custom_calls: custom calls into the engine in the compiled function.
        left_to_xla: primitives of equations that are not tiled.
        tiles: tiles of all graphs.
        edges: edges of all graphs.
        difference: largest difference of the results, as a share of the largest output.
        tolerance: the largest difference allowed.
        flops: floating-point operations of a call, as XLA counts them in the undecorated function.
        workers: threads of each side.
        timings: one for `PLAIN` and one for `TILED`; empty where the results are not the same.
    """

    name: str
    custom_calls: int
    left_to_xla: tuple[str, ...]
    tiles: int
    edges: int
    difference: float
    tolerance: float
    flops: float
    workers: int
    timings: dict[str, Timing]

    @property
    def agrees(self) -> bool:
        """Whether the results are the same."""
        return self.difference <= self.tolerance

    @property
    def speedup(self) -> float:
        """How many times as fast as `jax.jit` aspen is; NaN where it was not timed."""
        return speedup(self.timings[PLAIN], self.timings[TILED]) if self.timings else math.nan

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        timings = {name: timing.to_json() for name, timing in self.timings.items()}
        return {**fields, "timings": timings, "agrees": self.agrees, "speedup": self.speedup if timings else None}

    def __str__(self) -> str:
        calls = "1 custom call" if self.custom_calls == 1 else f"{self.custom_calls} custom calls"
        left = f"left to XLA: {', '.join(self.left_to_xla)}" if self.left_to_xla else "nothing left to XLA"
        lines = [
            f"{self.name}: {calls}, {self.tiles} tiles, {self.edges} edges, {left}",
            f"largest difference {self.difference:.1e} of the largest output",
        ]
        if not self.agrees:
            lines.append(f"THE RESULTS DIFFER by more than {self.tolerance:g}, so nothing was timed")
        else:
            lines.append(table(self.timings, self.flops))
            lines.append(f"aspen is {self.speedup:.2f} times as fast with {self.workers} workers, rounds interleaved")
        return "\n".join(lines)


def compare(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    name: str | None = None,
    rounds: int = 20,
    tolerance: float = TOLERANCE,
    jitted: bool = False,
    on_round: Callable[[], object] | None = None,
) -> Comparison:
    """Compare a function run by aspen with the same under `jax.jit`: first the results, then the times, in turns.

    Args:
        function: decorated or not; what is not is decorated without options.
        args: its positional arguments; leaves that are no arrays are static.
        kwargs: its keyword arguments.
        name: what to call it.
        rounds: how often each side is timed.
        tolerance: largest difference allowed, as a share of the largest output.
        jitted: time `jax.jit` of the decorated function rather than a plain call of it.
        on_round: called after each round.

    Raises:
        InputError: the function cannot be called so, or an option is out of range.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise InputError(f"the tolerance is {tolerance}; take a finite share of the largest output, such as {TOLERANCE:g}")
    check_rounds(rounds)
    kwargs = kwargs or {}
    decorated: Any = function if isinstance(function, AspenFunction | BoundAspenFunction) else aspen(function)
    name = str(name or decorated.__name__)
    structure, leaves = _split(decorated, name, args, kwargs)
    plain = jax.jit(_on_leaves(decorated.__wrapped__, structure))
    tiled = jax.jit(_on_leaves(decorated, structure))
    with blaming(f"{name} under jax.jit"):
        expected = jax.block_until_ready(plain(leaves))

    compiled = tiled.lower(leaves).compile()
    explanation = decorated.explain(*args, **kwargs)
    actual = tiled(leaves) if jitted else decorated(*args, **kwargs)
    difference = largest_difference(actual, expected)
    timings: dict[str, Timing] = {}
    if difference <= tolerance:
        call = (lambda: tiled(leaves)) if jitted else (lambda: decorated(*args, **kwargs))
        timings = interleaved({PLAIN: lambda: plain(leaves), TILED: call}, rounds, on_round)
    left = {fallback.primitive for fallback in explanation.fallbacks} or ({"all of it"} if explanation.reason else set())
    return Comparison(
        name=name,
        custom_calls=(compiled.as_text() or "").count(f'custom_call_target="{runtime.CUSTOM_CALL_TARGET}"'),
        left_to_xla=tuple(sorted(left)),
        tiles=sum(part.graph.num_tiles for part in explanation.parts),
        edges=sum(part.graph.num_edges for part in explanation.parts),
        difference=difference,
        tolerance=tolerance,
        flops=_flops(plain, leaves),
        workers=runtime.num_workers(),
        timings=timings,
    )


def _flops(plain: Any, leaves: list[Any]) -> float:
    """FLOPs of the function as it was written; XLA knows no cost of a function without operations."""
    return max(0.0, float((plain.lower(leaves).cost_analysis() or {}).get("flops", 0.0)))


def _split(decorated: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[arguments.Structure, list[Any]]:
    """Static and traced leaves, as the decorated function parts them."""
    leaves, tree = jax.tree.flatten(objects.opened((args, kwargs)))
    try:
        structure, traced = arguments.split(leaves, tree, scalars_static=False, shapes_traced=False)
        if structure.has_scalars:
            try:
                jax.eval_shape(_on_leaves(decorated.__wrapped__, structure), traced)
            except Exception:  # as the decorator does: the function may need numbers as they are
                structure, traced = arguments.split(leaves, tree, scalars_static=True, shapes_traced=False)
    except arguments.RefusedLeaf as error:
        raise arguments.refuse(decorated.__wrapped__, name, args, kwargs, error.args[0]) from None
    return structure, traced


def _on_leaves(function: Callable[..., Any], structure: arguments.Structure) -> Callable[[list[Any]], Any]:
    def on_leaves(leaves: list[Any]) -> Any:
        args, kwargs = objects.closed(structure.whole(leaves))
        return function(*args, **kwargs)

    return on_leaves
