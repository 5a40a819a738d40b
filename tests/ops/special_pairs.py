"""What tests/ops/test_special_values.py runs in a process of its own: pairs of operations on special values, three ways.

    python tests/ops/special_pairs.py --seed 7 [--share 0.1] [--default]

Each pair runs in tiles, by `jax.jit` at XLA's default optimisation level, and in NumPy. There each operation computes in float64
and rounds to float32: that is who is right. Prints a line of JSON: what differed, and what was run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

if "--default" not in sys.argv:
    os.environ["ASPEN_DISABLE_PASSES"] = "choice"

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax import aspen

# Last, so that the checkout does not shadow the installed package.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.ops.special_operations import LARGEST, OPERATIONS, SMALLEST

ROWS, COLUMNS = 8, 24
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, SMALLEST, LARGEST, -LARGEST, 1.0, -1.0, 2.0, 0.5])
DENORMAL = np.float32([1e-40, -1e-40, 1e-45, -1e-45, 1.1e-38])

# Their terms may overflow on the way, which depends on the order.
SUMS = {"sum", "sum of columns", "mean", "softmax", "cumsum", "product", "row product", "sum pool", "mean pool", "scatter add"}
SUMS |= {name for name in OPERATIONS if name.startswith("conv")} | {"cumsum from behind", "max pool gradient"}
PRODUCTS = {"prod", "cumprod", "scatter mul"}
LARGE = {"int32", "mul 1e30", "add max", "sub max", "cube", "square", "exp", "expm1", "mul", "row product", "product"}
SMALL = {"mul 1e-30", "div 3e38"}
BOOLS = {"x > y", "x >= 0", "x == x", "isfinite", "bool", "bool column"}
SCALES = {"mul", "square", "cube", "mul 2", "mul 1e30", "mul 1e-30", "mul inf", "mul 0", "mul column", "row product"}
OFFSETS = {"add", "sub", "add max", "sub max", "sub inf", "one hot", "row product"}

# Where tiles may differ from float64, as docs/reference/special_values.md says. They agree with `jax.jit` about masks.
AS_XLA = {"a product with a mask selects": lambda first, second: "mask" in (first, second) or first in BOOLS}
UNDECIDED = {
    "a sum overflows or cancels on the way, or not": lambda first, second: (
        (second in SUMS and (first in LARGE or first.startswith(("div", "rec")))) or (first in SUMS and second in SUMS)
    ),
    "a product of many overflows on the way, or not": lambda first, second: (
        second in PRODUCTS and (first in LARGE | SMALL | SUMS | PRODUCTS or first.startswith(("div", "rec")))
    ),
    "a product and a sum round once": lambda first, second: first in SCALES and second in OFFSETS,
    "floats of 16 bits keep float32 between two operations": lambda first, second: "16" in first + second,
}

PAIRS = [(first, second) for first in OPERATIONS for second in OPERATIONS]


def beside(matrix, like):
    """The matrix beside a first result: as much of it as that has elements."""
    rows, columns = like.shape
    return matrix[:rows, :columns]


def pair(first: str, second: str, which: str):
    """The second operation of the first, on one matrix and two beside it."""

    def of_jax(x, y, z):
        middle = OPERATIONS[first].jax(x, beside(y, x))
        return OPERATIONS[second].jax(middle, beside(z, middle))

    def of_numpy(x, y, z):
        middle = OPERATIONS[first].numpy(x, beside(y, x)).astype(np.float32).astype(np.float64)
        return OPERATIONS[second].numpy(middle, beside(z, middle)).astype(np.float32)

    return of_jax if which == "jax" else of_numpy


def drawn(rng: np.random.Generator, special: np.ndarray, *shape: int, share: float) -> np.ndarray:
    usual = rng.standard_normal(shape).astype(np.float32) * np.float32(2)
    return np.where(rng.random(shape) < share, rng.choice(special, shape), usual).astype(np.float32)


def kinds(values: np.ndarray) -> np.ndarray:
    """0: NaN, 1 and 2: infinities, 3: too small to be normal, 4: any other number."""
    small = np.abs(values) < SMALLEST * 2
    return np.select([np.isnan(values), values == np.inf, values == -np.inf, small], [0, 1, 2, 3], 4)


def apart_from(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Where two results differ by more than rounding."""
    both_large = (np.abs(ours) > LARGEST / 4) & (np.abs(theirs) > LARGEST / 4) & (np.sign(ours) == np.sign(theirs))
    with np.errstate(all="ignore"):
        near = np.abs(ours.astype(np.float64) - theirs) <= 1e-3 * np.maximum(1e-3, np.abs(theirs.astype(np.float64)))
        near &= np.isfinite(ours) & np.isfinite(theirs)
    same = kinds(ours) == kinds(theirs)
    return ~((same & (near | (kinds(ours) < 3))) | near | both_large)


def compared(chosen, matrices, ours, theirs) -> list[dict[str, Any]]:
    found = []
    for (first, second), x, y, z, mine, other in zip(chosen, *matrices, ours, theirs, strict=True):
        with np.errstate(all="ignore"):
            right = pair(first, second, "numpy")(*(item.astype(np.float64) for item in (x, y, z)))
        mine, other = np.asarray(mine), np.asarray(other)
        differs = apart_from(mine, other)
        wrong = apart_from(mine, right)
        explained = [*AS_XLA, *UNDECIDED]
        reasons = [name for name in explained if {**AS_XLA, **UNDECIDED}[name](first, second)]
        if not (differs.any() or wrong.any()):
            continue
        count = {
            "ours is right": int((differs & ~wrong).sum()),
            "jax.jit is right": int((differs & ~apart_from(other, right)).sum()),
            "neither": int((differs & wrong & apart_from(other, right)).sum()),
            "both differ from float64": int((~differs & wrong).sum()),
        }
        place = tuple(np.argwhere(differs | wrong)[0])
        example = [float(item[place]) for item in (mine, other, right)]
        found.append({"pair": [first, second], "count": count, "example": example, "reasons": reasons})
    return found


def wrong(item: dict[str, Any]) -> bool:
    """Whether tiles differ from float64 in a way that no row of the tables explains."""
    count = item["count"]
    if any(reason in UNDECIDED for reason in item["reasons"]):
        return False
    if item["reasons"] and item["denormals"]:
        return False  # XLA takes a denormal number for zero, so it has another mask
    is_unlike_both = count["neither"] + count["jax.jit is right"] > 0
    return is_unlike_both or (count["both differ from float64"] > 0 and not item["reasons"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of all pairs")
    parser.add_argument("--batch", type=int, default=48, help="pairs of one function")
    parser.add_argument("--only", nargs=2, help="one pair")
    parser.add_argument("--denormals", action="store_true", help="denormal numbers too, which XLA flushes to zero")
    parser.add_argument("--default", action="store_true", help="the default mode, beside enough work for tiles")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    order = [tuple(arguments.only)] if arguments.only else [PAIRS[k] for k in rng.permutation(len(PAIRS))]
    order = order[: max(1, int(len(order) * arguments.share))]
    special = np.concatenate([SPECIAL, DENORMAL]) if arguments.denormals else SPECIAL
    found, in_tiles, fallbacks = [], [], set()
    shown: list[Any] = []
    weights = rng.standard_normal((512, 512)).astype(np.float32) / 32
    for begin in range(0, len(order), arguments.batch):
        chosen = order[begin : begin + arguments.batch]
        # One special value in a row or none, for reductions, and many, for the rest.
        matrices = [[], [], []]
        for names in chosen:
            values = special[np.abs(special) != LARGEST] if SUMS & {*names} else special
            if PRODUCTS & {*names}:
                values = special[~(np.abs(special) <= SMALLEST) & (np.abs(special) != LARGEST)]
            for matrix in matrices:
                matrix.append(drawn(rng, values, 32, 32, share=rng.choice([0.02, 0.6])))
        matrices[0] = [item[:ROWS, :COLUMNS] for item in matrices[0]]

        def function(x, y, z, dense, chosen=chosen):
            work = jnp.tanh(dense @ weights) @ weights if arguments.default else dense
            return [pair(*names, "jax")(*item) for names, *item in zip(chosen, x, y, z, strict=True)], work

        explanation = aspen(function).explain(*matrices, weights)
        in_tiles.append(explanation.in_tiles)
        fallbacks |= {fallback.primitive for fallback in explanation.fallbacks}
        ours, _ = aspen(function)(*matrices, weights)
        theirs, _ = jax.jit(function)(*matrices, weights)
        found += [{**item, "denormals": arguments.denormals} for item in compared(chosen, matrices, ours, theirs)]
        print(f"{begin + len(chosen)} of {len(order)} pairs", file=sys.stderr, flush=True)
        for item in found[len(shown) :]:
            if wrong(item):
                print(json.dumps(item), file=sys.stderr, flush=True)
        shown = found.copy()
    summary = {"wrong": list(filter(wrong, found)), "in tiles": min(in_tiles), "left": sorted(fallbacks), "pairs": len(order)}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
