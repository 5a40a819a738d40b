"""A row for each workload, in the table of its place in the paper."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from aspen_jax.cost.timing import Timing, speedup
from aspen_jax.passes import OPTIONAL
from aspen_jax.report.comparison import PLAIN
from benchmarks import zoo
from benchmarks.chains.sides import ALIGNED, APART, JOINED, PADDED, PLAIN_PADDED, UNPADDED, join, pad
from benchmarks.peers.match import Match
from benchmarks.peers.prepared import Prepared
from benchmarks.zoo.bolt import WORKLOADS, Place
from benchmarks.zoo.model import Size

# Of the passes that join the ops of a pair, those that there are.
_CHAINS = tuple(name for name in ("conv_pairs", "stacks") if name in OPTIONAL)
_EPILOGUES = ("epilogue",)
_TIMEOUT_S = 600.0

Row = tuple[list[str], dict[str, Any]]  # its cells, and the same as plain data


@dataclasses.dataclass(frozen=True)
class Table:
    """How the workloads of a place are measured and shown.

    Attributes:
        title: what they are.
        header: of the columns behind the workload's name and batch.
        measure: gives the cells of these columns for a workload's name and batch.
    """

    title: str
    header: tuple[str, ...]
    measure: Callable[[str, int], Row]


def tables(sides: Sequence[str], workers: int, rounds: int) -> dict[Place, Table]:
    """All tables.

    Args:
        sides: names of peers for figure 8, aspen first.
        workers: threads of a peer.
        rounds: how often each side is timed.
    """

    def joining(title: str, passes: Collection[str]) -> Table:
        header = (
            "apart, ms",
            "joined, ms",
            "times as fast",
            "paper, on a T4",
            "between, MB",
            f"{PLAIN}, ms",
            f"ahead of {PLAIN}",
        )
        return Table(title, header, functools.partial(_joining, passes, rounds))

    return {
        "table 1": joining("Table 1: two products, a ReLU behind each", _CHAINS),
        "table 2": joining("Table 2: a 3x3 and a 1x1 convolution, a shift and a ReLU behind each", _CHAINS),
        "table 3": Table(
            "Table 3: convolutions whose channels are no multiple of 8",
            (
                "as it is, ms",
                "padded, times as fast",
                "paper, on a T4",
                "padding's share",
                "paper's share",
                f"{PLAIN}, ms",
                f"{PLAIN} padded, times as fast",
            ),
            functools.partial(_padding, rounds),
        ),
        "figure 8": Table(
            "Figure 8: products and convolutions alone",
            (*(f"{side}, ms" for side in sides), "fastest peer", "ahead of it"),
            functools.partial(_beside_peers, sides, workers, rounds),
        ),
        "figure 9": joining("Figure 9: a product and a convolution with a shift and an activation", _EPILOGUES),
    }


def _joining(passes: Collection[str], rounds: int, name: str, batch: int) -> Row:
    found = join(zoo.build(name, Size(batch)), passes, rounds)
    times = found.timings
    joined = [_ms(times[JOINED]), _times(times[APART], times[JOINED])] if found.is_joined else ["not fused", ""]
    paper, between = WORKLOADS[name].paper, f"{found.bytes_between / 1e6:.3g}"
    plain = [_ms(times[PLAIN]), _times(times[PLAIN], times[JOINED if found.is_joined else APART])]
    cells = [_ms(times[APART]), *joined, f"{paper:.2f}" if paper else "", between, *plain]
    return cells, {"is_joined": found.is_joined, "bytes_between": found.bytes_between, "timings": _plain(times)}


def _padding(rounds: int, name: str, batch: int) -> Row:
    times = pad(zoo.build(name, Size(batch)), rounds)
    share = 1 - 1 / speedup(times[PADDED], times[ALIGNED])
    cells = [
        _ms(times[UNPADDED]),
        _times(times[UNPADDED], times[PADDED]),
        f"{WORKLOADS[name].paper:.2f}",
        f"{share:.0%}",
        f"{WORKLOADS[name].padding_share}%",
        _ms(times[PLAIN]),
        _times(times[PLAIN], times[PLAIN_PADDED]),
    ]
    return cells, {"padding_share": share, "timings": _plain(times)}


def _beside_peers(sides: Sequence[str], workers: int, rounds: int, name: str, batch: int) -> Row:
    with tempfile.TemporaryDirectory() as directory:
        prepared = Prepared(Path(directory), name, Size(batch))
        result = Match(prepared, sides, workers, rounds, _TIMEOUT_S, None, tqdm(disable=True)).play()
    found = [result.sides[side] for side in sides]
    best = result.best_peer()
    ahead = f"{result.ahead(best):.2f}" if best and found[0].timing else ""
    return [*(_ms(side.timing) if side.timing else side.state for side in found), best or "", ahead], dataclasses.asdict(result)


def _ms(timing: Timing) -> str:
    return f"{timing.minimum * 1e3:.3g} / {timing.median * 1e3:.3g}"


def _times(slow: Timing, fast: Timing) -> str:
    return f"{speedup(slow, fast):.2f}"


def _plain(timings: Mapping[str, Timing]) -> dict[str, Any]:
    return {side: timing.to_json() for side, timing in timings.items()}
