"""A function cut in two: what crosses each cut, and what calls through a server take."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from aspen_jax.api.bound import BoundAspenFunction
from aspen_jax.api.decorator import aspen
from aspen_jax.api.function import AspenFunction
from aspen_jax.cost.timing import check_rounds, duration
from aspen_jax.report.difference import largest_difference
from aspen_jax.split import crossings

if TYPE_CHECKING:
    from aspen_jax.split import Client, Record


@dataclasses.dataclass(frozen=True)
class SplitCalls:
    """Calls through a server beside the whole function here.

    Attributes:
        records: what each call took, one behind the other.
        pipelined: seconds a call, several on their way at once.
        whole: seconds of the whole function here.
        difference: largest difference from the whole function's results, as a share of the largest output.
    """

    records: tuple[Record, ...]
    pipelined: float
    whole: float
    difference: float

    def __str__(self) -> str:
        stages = {
            name: statistics.median(getattr(record, name) for record in self.records)
            for name in ("head", "pack", "link", "server", "tail")
        }
        first = self.records[0]
        bits = "all bits" if first.bits is None else f"{first.bits} bits"
        return "\n".join((
            f"cut {first.cut}, {bits}: {first.sent_bytes} bytes sent, {first.received_bytes} received a call",
            "medians: " + ", ".join(f"{name} {duration(seconds)}" for name, seconds in stages.items()) + " (of the server's)",
            f"pipelined {duration(self.pipelined)} a call; the whole function here {duration(self.whole)}",
            f"largest difference {self.difference:.1e} of the largest output",
        ))  # fmt: skip


def cuts_table(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], rows: int = 40) -> str:
    """What crosses each cut, at most `rows` of them, those with the fewest bytes."""
    found = [
        (sum(item.nbytes for item in crossing), number, crossing)
        for number, crossing in enumerate(crossings(function, *args, **kwargs))
    ]
    kept = sorted(sorted(found, key=lambda row: row[0])[:rows], key=lambda row: row[1])
    lines = [f"{'cut':>6}  {'bytes':>12}  what crosses"]
    for size, number, crossing in kept:
        what = ", ".join(f"{item.name} {item.dtype}{list(item.shape)}" for item in crossing)
        lines.append(f"{number:>6}  {size:>12}  {what if len(what) <= 90 else what[:87] + '...'}")
    return "\n".join([*lines, f"{len(found)} cuts; shown are the {len(kept)} with the fewest bytes"])


def split_calls(
    client: Client, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], rounds: int
) -> SplitCalls:
    """Call a client, and compare with the whole function here.

    Args:
        client: for that function.
        function: decorated or not.
        args: arrays.
        kwargs: arrays by name.
        rounds: calls one behind the other, and again as many at once.

    Raises:
        LinkError: the server is lost, late or refuses.
        InputError: there are no rounds.
    """
    check_rounds(rounds)
    whole: Any = function if isinstance(function, AspenFunction | BoundAspenFunction) else aspen(function)
    expected = whole(*args, **kwargs)
    result = client(*args, **kwargs)  # both compile
    client.records.clear()
    alone = []
    for _ in tqdm(range(rounds), desc="calls", dynamic_ncols=True, leave=False, disable=None):
        begin = time.perf_counter()
        largest_difference(whole(*args, **kwargs), expected)  # waits
        alone.append(time.perf_counter() - begin)
        client(*args, **kwargs)
    records = tuple(client.records)
    begin = time.perf_counter()
    for future in [client.submit(*args, **kwargs) for _ in range(rounds)]:
        future.result()
    pipelined = (time.perf_counter() - begin) / rounds
    return SplitCalls(records, pipelined, min(alone), largest_difference(result, expected))
