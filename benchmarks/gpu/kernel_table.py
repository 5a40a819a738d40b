"""What the check for GPUs found, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aspen_jax.cost.timing import aligned, duration
from benchmarks.kernel_cases import KernelCase


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
