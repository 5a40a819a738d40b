"""A run of a graph as a page of HTML that needs nothing else: no network, no other file."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aspen_jax.cost.timing import duration
from aspen_jax.report.html_table import escaped, html_table
from aspen_jax.report.labels import Labels, bounded
from aspen_jax.report.timeline import Idle, Timeline

if TYPE_CHECKING:
    from aspen_jax.report.explain import Explanation

_LONGEST_TABLE = 25
_SCRIPT = Path(__file__).with_name("page.js")
_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; padding: 0 1em; max-width: 1200px; color: #222; background: #fff }
table { border-collapse: collapse; margin: 0.5em 0 }
th, td { text-align: left; padding: 0.15em 0.8em; border-bottom: 1px solid #ddd }
canvas { width: 100%; border: 1px solid #ddd; cursor: grab }
#shown { height: 3em; white-space: pre-wrap; color: #444 }
"""


def page(name: str, labels: Labels, run: Timeline, explanation: Explanation) -> str:
    """The page's text.

    Args:
        name: of the function.
        labels: of the graph that ran.
        run: when and where its tiles ran.
        explanation: what becomes of the function where it is called.
    """
    # "<" is only text in JSON; written so, no name can end the element.
    data = json.dumps(_data(labels, run)).replace("<", "\\u003c")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f"<title>{escaped(name)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escaped(name)}</h1>",
            *(f"<div>{escaped(line)}</div>" for line in str(run).splitlines()),
            "<h2>Workers</h2>",
            "<div>A colour for each op; the critical path is underlined. The wheel zooms, dragging moves.</div>",
            '<canvas id="gantt"></canvas><div id="shown"></div>',
            "<h2>Ops by time</h2>",
            _ops(labels, run),
            "<h2>Critical path</h2>",
            _critical_path(labels, run),
            "<h2>Idle workers</h2>",
            _idle(labels, run),
            "<h2>Left to XLA</h2>",
            _left_to_xla(explanation),
            f'<script type="application/json" id="data">{data}</script>',
            f"<script>{_SCRIPT.read_text()}</script>",
            "</body></html>",
            "",
        ]
    )


def _data(labels: Labels, run: Timeline) -> dict[str, Any]:
    """What the script draws; times are nanoseconds from the start."""
    rows: list[str] = []
    first_row: dict[int, int] = {}
    for lane, name in run.lanes:
        first_row[lane] = len(rows)
        count = int(run.row[run.lane == lane].max(initial=0)) + 1
        rows += [bounded(name) if row == 0 else "" for row in range(count)]
    critical = set(run.critical_path)
    return {
        "rows": rows,
        "span": run.stop - run.start,
        "ops": labels.ops,
        "tiles": [
            [
                first_row[int(run.lane[tile])] + int(run.row[tile]),
                int(run.begin[tile]) - run.start,
                int(run.end[tile]) - run.start,
                labels.op_number(tile),
                tile,
                labels.boxes[tile],
                int(tile in critical),
            ]
            for tile in run.order.tolist()
        ],
        "gaps": [[first_row[gap.lane], gap.begin - run.start, gap.end - run.start, labels.gap(gap)] for gap in run.gaps],
    }


def _ops(labels: Labels, run: Timeline) -> str:
    took: collections.Counter[int] = collections.Counter()
    estimated: collections.Counter[int] = collections.Counter()
    counts: collections.Counter[int] = collections.Counter()
    for tile in run.order.tolist():
        op = labels.op_number(tile)
        counts[op] += 1
        took[op] += int(run.end[tile] - run.begin[tile])
        estimated[op] += int(labels.costs[tile])
    total = max(took.total(), 1)
    rows = [
        (labels.ops[op], str(counts[op]), duration(time / 1e9), f"{time / total:.1%}", duration(estimated[op] / 1e9))
        for op, time in took.most_common()
    ]
    return _shortened(("op", "tiles", "time of all tiles", "share", "estimated"), rows, numbers=(1, 2, 3, 4))


def _critical_path(labels: Labels, run: Timeline) -> str:
    """Neighbours of one op together."""
    rows: list[tuple[str, str, str, str]] = []
    path = run.critical_path
    start = 0
    for stop in range(1, len(path) + 1):
        if stop < len(path) and labels.op_number(path[stop]) == labels.op_number(path[start]):
            continue
        part = path[start:stop]
        time = sum(int(run.end[tile] - run.begin[tile]) for tile in part)
        since = int(run.begin[part[0]]) - run.start
        rows.append((labels.op(part[0]), str(len(part)), duration(since / 1e9), duration(time / 1e9)))
        start = stop
    return _shortened(("op", "tiles", "begins at", "time"), rows, numbers=(1, 2, 3))


def _idle(labels: Labels, run: Timeline) -> str:
    """A table of the workers' idle time by what they waited for, the longest first."""
    lost: collections.Counter[tuple[str, str]] = collections.Counter()
    longest: dict[tuple[str, str], int] = {}
    for gap in run.gaps:
        key = gap.why.value, "" if gap.why is Idle.DONE else labels.op(gap.tile)
        lost[key] += gap.end - gap.begin
        longest[key] = max(longest.get(key, 0), gap.end - gap.begin)
    rows = [(*key, duration(time / 1e9), duration(longest[key] / 1e9)) for key, time in lost.most_common()]
    return _shortened(("why", "op", "time of all workers", "longest"), rows, numbers=(2, 3))


def _left_to_xla(explanation: Explanation) -> str:
    return "".join(_left_to_xla_lines(explanation)) or "<div>nothing</div>"


def _left_to_xla_lines(explanation: Explanation) -> Iterator[str]:
    if explanation.reason is not None:
        yield f"<div>all of it where it is called, because the function {escaped(explanation.reason)}</div>"
    elif explanation.fallbacks:
        yield "<div>where the function is called; the run above is in tiles as a whole</div>"
        yield explanation.fallback_table()


def _shortened(header: tuple[str, ...], rows: list[tuple[str, ...]], numbers: tuple[int, ...]) -> str:
    rest = len(rows) - _LONGEST_TABLE
    return html_table(header, rows[:_LONGEST_TABLE], numbers) + (f"<div>and {rest} more</div>" if rest > 0 else "")
