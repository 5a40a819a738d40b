"""What the check for GPUs found, as tables."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from aspen_jax.cost.timing import aligned, duration
from aspen_jax.cuda.executor import EXECUTORS
from benchmarks.kernel_cases import KernelCase


def models_table(
    entries: Mapping[str, dict[str, Any]], models: Sequence[str], batches: Sequence[int], dtypes: Sequence[str]
) -> list[str]:
    """A line for each model: each executor, jax.jit, torch.compile, and how much faster than the best of those two ours is."""
    rows: list[tuple[str, ...]] = [("", *EXECUTORS, "jax.jit", "torch.compile", "faster", "replay")]
    for batch, name, dtype in itertools.product(batches, models, dtypes):
        what = f"{name}/{batch}/{dtype}"
        sides = {side: item["median"] for side, item in entries.get(f"times/{what}", {}).get("seconds", {}).items()}
        peers = [entries.get(f"{peer}/{what}", {}).get("seconds", {}).get("median") for peer in ("jax.jit", "torch.compile")]
        theirs = min((item for item in (sides.get("xla"), *peers) if item), default=None)
        ours = min((sides[side] for side in sides if side != "xla"), default=None)
        replay = entries.get(f"executors/{what}", {}).get("host", {}).get("graph")
        times = [duration(item) if item else "-" for item in (*(sides.get(side) for side in EXECUTORS), *peers)]
        share = f"{theirs / ours:.2f}x" if theirs and ours else "-"
        rows.append((f"{name} batch {batch} {dtype}", *times, share, duration(replay) if replay else "-"))
    return aligned(rows)


def kernels_table(entries: Mapping[str, dict[str, Any]], cases: Sequence[KernelCase], dtypes: Sequence[str]) -> list[str]:
    """A line for each kernel: ours, theirs, and which share of the best of them ours reaches."""
    rows: list[tuple[str, ...]] = [("", "ours", "torch", "cupy", "share", "TFLOP/s")]
    for dtype in dtypes:
        for case in cases:
            ours = entries.get(f"table/{dtype}/{case.name}", {}).get("seconds")
            theirs = [entries.get(f"{name}/{dtype}", {}).get("seconds", {}).get(case.name) for name in ("torch", "cupy")]
            best = min((item for item in theirs if item), default=None)
            rates = (f"{best / ours:.0%}" if ours and best else "-", f"{case.flops / ours / 1e12:.3g}" if ours else "-")
            rows.append((f"{case.name} {dtype}", *(duration(item) if item else "-" for item in (ours, *theirs)), *rates))
    return aligned(rows)
