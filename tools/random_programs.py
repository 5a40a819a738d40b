"""Runs random functions decorated and undecorated, and prints where they differ.

    python tools/random_programs.py --count 2000

The seeds follow from the content of the checkout, so the same sources try the same functions. `--seed` tries others, or one
again. Exit status 1 says that something differs.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Literal

import tyro

ROOT = Path(__file__).parents[1]


def main(
    count: int = 2000,
    seed: int | None = None,
    mode: Literal["forced", "default"] = "forced",
    steps: int = 30,
    seconds: float = float("inf"),
) -> int:
    """Try random functions.

    Args:
        count: how many.
        seed: the first seed; by default it follows from the content of the checkout.
        mode: "forced" tiles what tiles can compute; "default" leaves to XLA what XLA does as fast, and draws larger arrays.
        steps: how many steps each function has.
        seconds: begin no other function after so long.

    Returns:
        0, or 1 where a function differs.
    """
    os.environ["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}"
    os.environ.pop("ASPEN_DISABLE_PASSES", None)
    if mode == "forced":
        os.environ["ASPEN_DISABLE_PASSES"] = "choice"
    sys.path.append(str(ROOT))
    import jax

    from tests.content import content, seed_of
    from tests.random_checks import Tally, faults

    first = seed_of("random programs") * 1_000_000 if seed is None else seed
    print(f"jax {jax.__version__}, {mode}, content {content()}, seeds from {first}", flush=True)
    start = time.monotonic()
    tally = Tally()
    wrong: Counter[str] = Counter()
    for number in range(first, first + count):
        if time.monotonic() - start > seconds:
            break
        try:
            found = list(faults(number, steps, is_forced=mode == "forced", tally=tally))
        except Exception:
            found = [traceback.format_exc(limit=-6)]
        for fault in found[:3]:
            print(f"seed {number}: {fault}", flush=True)
        wrong["differ"] += bool(found)
        wrong["tried"] += 1
        if wrong["tried"] % 100 == 0:
            jax.clear_caches()
    print(f"{wrong['tried']} functions, {wrong['differ']} differ; {tally}")
    return 1 if wrong["differ"] else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
