"""Whether tiles run a part of a function or XLA does: each side's time by what was measured of such work, and a margin.

Both times are sums of amounts of work (`xla_cost.py`, `tile_cost.py`), each with a rate of its own from rates.json.
`python -m benchmarks chooser --fit` measures generated parts on both sides and finds a machine's rates.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import TYPE_CHECKING

from aspen_jax import _engine
from aspen_jax.ir.program import Value
from aspen_jax.ops.loop import SOME_TURNS
from aspen_jax.targets.cpu import tile_cost as estimate
from aspen_jax.targets.cpu import xla_cost

if TYPE_CHECKING:
    from aspen_jax.frontend.partition import Converted, Tileable
    from aspen_jax.graph.tilegraph import TileGraph
    from aspen_jax.ir.program import Program

# Tiles must be predicted to take so much less than XLA: what is predicted errs, and a user notices a loss before a gain. It errs
# most where XLA takes little time, since calls, threads and caches matter there. Between the two the margin grows with the
# logarithm of that time.
SHORT_NS, MARGIN_OF_SHORT = 2e4, 0.5
LONG_NS, MARGIN_OF_LONG = 1e6, 0.95

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
        cls,
        part: Tileable,
        program: Program,
        graph: TileGraph,
        num_workers: int,
        *,
        is_whole: bool,
        is_repeated: bool,
        is_body: bool,
    ) -> Evidence:
        """The evidence about a part.

        Args:
            part: its equations.
            program: its ops after all passes.
            graph: its tiles.
            num_workers: how many workers there are; XLA has as many threads.
            is_whole: whether it is all that the function does.
            is_repeated: whether it is the body of a loop.
            is_body: whether it is the body of a loop or a branch.
        """
        outputs = [operand.value for operand in part.program.outputs]
        call = {"calls in a loop" if is_repeated else "calls": 1.0}
        loops = [item for item in part.items if item.body is not None]
        read = [value for item in loops for value in item.inputs if isinstance(value, Value)]
        others = [item for item in part.items if item.body is None]
        xla = xla_cost.of_part(others, [*outputs, *read], num_workers, is_body=is_body)
        for item in loops:
            for name, amount in _of_turns(item, num_workers).items():
                xla[name] = xla.get(name, 0.0) + amount
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
        return time_of(self.xla, rates.xla), time_of(self.tiles, rates.tiles)

    def why_left_to_xla(self, rates: Rates) -> str | None:
        """The reason why XLA runs the part, or None where tiles do."""
        xla, tiles = self.nanoseconds(rates)
        if tiles < xla * margin(xla):
            return None
        return f"tiles would not clearly win: about {duration(tiles)}, and {duration(xla)} in XLA"


def _of_turns(loop: Converted, num_workers: int) -> dict[str, float]:
    """What XLA does for all turns of a loop."""
    body, turns = loop.body, loop.equation.params.get("length", SOME_TURNS)
    assert body is not None
    found = xla_cost.of_part(body.items, [item.value for item in body.program.outputs], num_workers, is_body=True)
    found.pop(xla_cost.ASYNCHRONOUS, None)
    found = {f"{name} in a loop" if name in ("loops", "rows") else name: amount for name, amount in found.items()}
    return {name: amount * turns for name, amount in found.items()}


def margin(xla: float) -> float:
    """The share of XLA's time, in nanoseconds, that tiles may take."""
    length = math.log(max(xla, SHORT_NS) / SHORT_NS) / math.log(LONG_NS / SHORT_NS)
    return MARGIN_OF_SHORT + min(1.0, length) * (MARGIN_OF_LONG - MARGIN_OF_SHORT)


@functools.cache
def rates() -> Rates:
    """The rates that come with the package: of a machine with this one's instructions, or else of the first in rates.json."""
    machines = json.loads(resources.files("aspen_jax.targets.cpu").joinpath("rates.json").read_text())
    return of_machine(machines, _engine.cpu_target())


def of_machine(machines: Mapping[str, Mapping[str, Amounts]], target: str) -> Rates:
    """The rates of the machine with a target's instructions; those that it lacks are of the first machine that has them."""
    own = [machines[target]] if target in machines else []
    known = (*own, *machines.values())
    return Rates(*(dict(collections.ChainMap(*(dict(one[side]) for one in known))) for side in ("xla", "tiles")))


def time_of(amounts: Amounts, rates: Amounts) -> float:
    """Nanoseconds of amounts of work."""
    return sum(amount * rates.get(name, 0.0) for name, amount in amounts.items())


def duration(nanoseconds: float) -> str:
    """Three digits and a unit."""
    return f"{nanoseconds / 1e3:.3g} us" if nanoseconds < 1e6 else f"{nanoseconds / 1e6:.3g} ms"
