"""Whether tiles run a part of a function or XLA does: each side's time by what was measured of such work, and a margin.

Both times are sums of amounts of work (`xla_cost.py`, `apu/estimate.py`), each with a rate of its own from rates.json.
`python -m benchmarks chooser --fit` measures generated parts on both sides and finds the rates.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

from aspen_jax import xla_cost
from aspen_jax.apu import estimate

if TYPE_CHECKING:
    from aspen_jax.partition import Tileable
    from aspen_jax.program import Program
    from aspen_jax.tilegraph import TileGraph

# Tiles must be predicted to take so much less: what is predicted errs, and a user notices a loss before a gain.
MARGIN = 0.7

# Of long parts, where calls and caches matter less.
LONG_NS = 1e6
MARGIN_OF_LONG = 0.95

Amounts = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Rates:
    """Nanoseconds of a unit of each amount; an amount without a rate takes none.

    Attributes:
        xla: of what XLA does.
        tiles: of what tiles do.
    """

    xla: Amounts
    tiles: Amounts


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What is known of a part before it runs.

    Attributes:
        xla: amounts of work in XLA.
        tiles: amounts of work in tiles.
    """

    xla: Amounts
    tiles: Amounts

    @classmethod
    def of(
        cls, part: Tileable, program: Program, graph: TileGraph, num_workers: int, *, is_whole: bool, is_repeated: bool
    ) -> Evidence:
        """Of a part.

        Args:
            part: its equations.
            program: its ops after all passes.
            graph: its tiles.
            num_workers: how many workers there are; XLA has as many threads.
            is_whole: whether it is all that the function does.
            is_repeated: whether it is the body of a loop.
        """
        outputs = [operand.value for operand in part.program.outputs]
        call = {"calls in a loop" if is_repeated else "calls": 1.0}
        xla = xla_cost.of_part(part.items, outputs, num_workers)
        if not is_whole:
            xla.pop(xla_cost.ASYNCHRONOUS, None)
        operands, results = float(len(part.program.inputs)), float(len(outputs))
        arrays = {"operands": operands, "results": results}
        if is_whole:
            xla |= arrays
        if is_repeated:
            # XLA compiles small loops as one, without what is between loops elsewhere.
            xla = {f"{name} in a loop" if name in ("loops", "rows") else name: amount for name, amount in xla.items()}
            arrays = {f"{name} in a loop": amount for name, amount in arrays.items()}
            # XLA copies what a call gives into the loop's state.
            arrays["carried bytes"] = float(sum(value.nbytes for value in outputs))
        return cls({**call, **xla}, {**call, **arrays, **estimate.amounts(program, graph, num_workers)})

    def nanoseconds(self, rates: Rates) -> tuple[float, float]:
        """The predicted times in XLA and in tiles."""
        return _time(self.xla, rates.xla), _time(self.tiles, rates.tiles)

    def why_left_to_xla(self, rates: Rates) -> str | None:
        """The reason why XLA runs the part, or None where tiles do."""
        xla, tiles = self.nanoseconds(rates)
        if tiles < xla * (MARGIN_OF_LONG if xla > LONG_NS else MARGIN):
            return None
        return f"XLA is as fast: about {_text(xla)}, and {_text(tiles)} in tiles"


@functools.cache
def rates() -> Rates:
    """The rates that come with the package, of the machine that its rates.json names."""
    found = json.loads(resources.files("aspen_jax").joinpath("rates.json").read_text())
    return Rates(found["xla"], found["tiles"])


def _time(amounts: Amounts, rates: Amounts) -> float:
    return sum(amount * rates.get(name, 0.0) for name, amount in amounts.items())


def _text(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e3:.3g} us" if nanoseconds < 1e6 else f"{nanoseconds / 1e6:.3g} ms"
