"""Program -> Program passes, in the order in which they run. Each can be switched off; the result is the same, only slower.

To add one, write a module with a function `run(program) -> program` and name it in `PASSES`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection

from aspen_jax.cost.machine import Machine
from aspen_jax.errors import InputError
from aspen_jax.ir.program import Program
from aspen_jax.passes import (
    affine,
    attention,
    bf16x6,
    constants,
    conv_pairs,
    conv_panels,
    epilogue,
    fuse,
    in_place,
    layout,
    outputs,
    panels,
    rows,
    scales,
    simplify,
    split_depth,
    strassen,
    winograd,
)

PASSES: dict[str, Callable[[Program], Program]] = {
    "simplify": simplify.run,
    "layout": layout.run,
    "affine": affine.run,
    "winograd": winograd.run,
    "bf16x6": bf16x6.run,
    "strassen": strassen.run,
    "panels": panels.run,
    "constants": constants.run,
    "fuse": fuse.run,
    "rows": rows.run,
    "epilogue": epilogue.run,
    "conv_pairs": conv_pairs.run,
    "attention": attention.run,
    "conv_panels": conv_panels.run,
    "scales": scales.run,
    "split_depth": split_depth.run,
}

# These want the outputs as the caller gets them, and no op behind them.
LAST_PASSES: dict[str, Callable[[Program], Program]] = {"in_place": in_place.run}

# Those that ask the cost model.
_CHOOSING = {
    "winograd": winograd.run,
    "bf16x6": bf16x6.run,
    "strassen": strassen.run,
    "attention": attention.run,
    "split_depth": split_depth.run,
}

DISABLE_VARIABLE = "ASPEN_DISABLE_PASSES"

# Named among the passes, but rewrites nothing: it leaves to XLA what that does faster (aspen_jax/lowering/choice.py).
CHOICE = "choice"


def disabled_by_environment() -> frozenset[str]:
    """The passes named in ASPEN_DISABLE_PASSES, a comma-separated list.

    Raises:
        InputError: a name is not a pass.
    """
    names = frozenset(filter(None, (name.strip() for name in os.environ.get(DISABLE_VARIABLE, "").split(","))))
    _check(names)
    return names


def run_passes(program: Program, disabled: Collection[str] = (), machine: Machine | None = None) -> Program:
    """Rewrite a program by every pass that is not disabled, and make its outputs fit for a TileGraph.

    Args:
        program: what to rewrite.
        disabled: names of passes.
        machine: the cost model that chooses between algorithms.

    Raises:
        InputError: a disabled name is not a pass.
    """
    _check(disabled)
    choosing = {}
    if machine is not None:
        choosing = {name: functools.partial(run, machine=machine) for name, run in _CHOOSING.items()}
    for name, run in {**PASSES, **choosing}.items():
        if name not in disabled:
            program = run(program).pruned()
    program = outputs.run(program).pruned()
    for name, run in LAST_PASSES.items():
        if name not in disabled:
            program = run(program)
    return program


def _check(names: Collection[str]) -> None:
    known = [*PASSES, *LAST_PASSES, CHOICE]
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InputError(f"no pass is called {', '.join(map(repr, unknown))}; choose from {', '.join(known)}")
