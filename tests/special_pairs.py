"""What tests/test_special_values.py runs in a process of its own: pairs of operations on special values, three ways.

    python tests/special_pairs.py --seed 7 [--share 0.1] [--default]

Each pair runs in tiles, by `jax.jit` at XLA's default optimisation level, and in NumPy. There each operation computes in float64
and rounds to float32: that is who is right. Prints a line of JSON: what differed, and what was run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

if "--default" not in sys.argv:
    os.environ["ASPEN_DISABLE_PASSES"] = "choice"

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from aspen_jax import aspen

ROWS, COLUMNS = 8, 24
LARGEST, SMALLEST = (float(value) for value in (np.finfo(np.float32).max, np.finfo(np.float32).tiny))
SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, SMALLEST, LARGEST, -LARGEST, 1.0, -1.0, 2.0, 0.5])
DENORMAL = np.float32([1e-40, -1e-40, 1e-45, -1e-45, 1.1e-38])
WEIGHTS = np.random.default_rng(0).uniform(0.5, 1.5, (64, 64)).astype(np.float32)


class Operation(NamedTuple):
    """An operation of a matrix and a matrix beside it, in JAX and in NumPy."""

    jax: Callable[[Any, Any], Any]
    numpy: Callable[[Any, Any], Any]


OPERATIONS: dict[str, Operation] = {}


def both(name: str, function: Callable[[Any, Any, Any], Any]) -> None:
    """One that is written alike: `function(numpy or jax.numpy, x, y)`."""
    OPERATIONS[name] = Operation(lambda x, y: function(jnp, x, y), lambda x, y: function(np, x, y))


def apart(name: str, of_jax: Callable[[Any, Any], Any], of_numpy: Callable[[Any, Any], Any]) -> None:
    OPERATIONS[name] = Operation(of_jax, of_numpy)


def to_int(x):
    limits = np.iinfo(np.int32)
    return np.where(np.isnan(x), 0, np.clip(np.trunc(np.nan_to_num(x, nan=0.0)), limits.min, limits.max))


def largest(x, y):
    """IEEE's maximum: NaN comes through, -0 is less than +0."""
    return np.where((x == 0) & (y == 0), np.where(np.signbit(x), y, x), np.maximum(x, y))


def smallest(x, y):
    return -largest(-x, -y)


def narrowed(dtype):
    return lambda x, y: x.astype(dtype).astype(x.dtype)


def through(function):
    """A function that gives what is as wide as its argument."""
    return lambda numpy, x, y: numpy.broadcast_to(function(numpy, x), x.shape)


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


for name in ("exp", "log", "log1p", "expm1", "tanh", "sqrt", "square", "floor", "abs", "sign", "sin", "cbrt"):
    both(name, lambda numpy, x, y, name=name: getattr(numpy, name)(x))
both("neg", lambda numpy, x, y: -x)
both("reciprocal", lambda numpy, x, y: 1.0 / x)
apart("rsqrt", lambda x, y: lax.rsqrt(x), lambda x, y: 1 / np.sqrt(x))
apart("logistic", lambda x, y: jax.nn.sigmoid(x), lambda x, y: 1 / (1 + np.exp(-x)))
apart("relu", lambda x, y: jax.nn.relu(x), lambda x, y: largest(x, np.zeros_like(x)))
both("cube", lambda numpy, x, y: x * x * x)
both("add", lambda numpy, x, y: x + y)
both("sub", lambda numpy, x, y: x - y)
both("mul", lambda numpy, x, y: x * y)
both("div", lambda numpy, x, y: x / y)
both("divided", lambda numpy, x, y: y / x)
apart("max", lambda x, y: jnp.maximum(x, y), largest)
apart("min", lambda x, y: jnp.minimum(x, y), smallest)
both("mul 2", lambda numpy, x, y: x * 2.0)
both("mul 1e30", lambda numpy, x, y: x * 1e30)
both("mul 1e-30", lambda numpy, x, y: x * 1e-30)
both("mul inf", lambda numpy, x, y: x * numpy.inf)
both("mul 0", lambda numpy, x, y: x * 0.0)
both("mul 1", lambda numpy, x, y: x * 1.0)
both("add 0", lambda numpy, x, y: x + 0.0)
both("add max", lambda numpy, x, y: x + LARGEST)
both("sub max", lambda numpy, x, y: x - LARGEST)
both("sub inf", lambda numpy, x, y: x - numpy.inf)
both("div 3", lambda numpy, x, y: x / 3.0)
both("div 0", lambda numpy, x, y: x / numpy.float32(0.0))
both("div 3e38", lambda numpy, x, y: x / np.float32(3e38))
both("div column", lambda numpy, x, y: x / y[:, :1])
both("div one", lambda numpy, x, y: x / y[0, 0])
both("mul column", lambda numpy, x, y: x * y[:, :1])
both("x > y", lambda numpy, x, y: (x > y).astype(x.dtype))
both("x >= 0", lambda numpy, x, y: (x >= 0).astype(x.dtype))
both("x == x", lambda numpy, x, y: (x == x).astype(x.dtype))
both("isfinite", lambda numpy, x, y: numpy.isfinite(x).astype(x.dtype))
both("bool", lambda numpy, x, y: (x != 0).astype(x.dtype))
both("bool column", lambda numpy, x, y: (x[:, :1] != 0).astype(x.dtype))
both("one hot", lambda numpy, x, y: (numpy.argmax(y, 1)[:, None] == numpy.arange(x.shape[1])).astype(x.dtype) + 0.0 * x)
both("mask", lambda numpy, x, y: (y > 0).astype(x.dtype) * x)
both("where", lambda numpy, x, y: numpy.where(y > 0, x, 0.0))
both("where not", lambda numpy, x, y: numpy.where(x > 0, y, x))
both("clip", lambda numpy, x, y: numpy.clip(x, -1.0, 1.0))
both("nan_to_num", lambda numpy, x, y: numpy.where(numpy.isnan(x), 0.0, x))
apart("bfloat16", narrowed(jnp.bfloat16), lambda x, y: x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64))
apart("float16", narrowed(jnp.float16), lambda x, y: x.astype(np.float32).astype(np.float16).astype(np.float64))
apart("int32", narrowed(jnp.int32), lambda x, y: to_int(x))
both("sum", through(lambda numpy, x: x.sum(1, keepdims=True)))
both("sum of columns", through(lambda numpy, x: x.sum(0, keepdims=True)))
both("mean", through(lambda numpy, x: x.mean(1, keepdims=True)))
both("amax", through(lambda numpy, x: x.max(1, keepdims=True)))
both("amin", through(lambda numpy, x: x.min(0, keepdims=True)))
both("argmax", lambda numpy, x, y: numpy.broadcast_to(numpy.argmax(x, 1)[:, None], x.shape).astype(x.dtype))
apart("softmax", lambda x, y: jax.nn.softmax(x, axis=1), lambda x, y: softmax(x))
both("cumsum", lambda numpy, x, y: numpy.cumsum(x, axis=1))
apart("cummax", lambda x, y: lax.cummax(x, axis=1), lambda x, y: np.maximum.accumulate(x, axis=1))
both("product", lambda numpy, x, y: x @ WEIGHTS[: x.shape[1], : x.shape[1]])
both("row product", lambda numpy, x, y: numpy.einsum("ij,ij->i", x, y)[:, None] + 0.0 * x)
both("transpose", lambda numpy, x, y: x.T)
both("reshape", lambda numpy, x, y: x.reshape(x.shape[1], x.shape[0]))
both("reverse", lambda numpy, x, y: x[:, ::-1])
both("first row", lambda numpy, x, y: numpy.broadcast_to(x[:1], x.shape))
both("concatenate", lambda numpy, x, y: numpy.concatenate([x, y])[1:-1][: x.shape[0]])
both("take", lambda numpy, x, y: numpy.take(x, np.arange(x.shape[0]) // 2, axis=0))
apart("sort", lambda x, y: lax.sort(x, dimension=1), lambda x, y: np.sort(x, axis=1, kind="stable"))

# Their terms may overflow on the way, which depends on the order.
SUMS = {"sum", "sum of columns", "mean", "softmax", "cumsum", "product", "row product"}
LARGE = {"mul 1e30", "add max", "sub max", "cube", "square", "exp", "expm1", "mul", "row product", "product"}
BOOLS = {"x > y", "x >= 0", "x == x", "isfinite", "bool", "bool column"}
SCALES = {"mul", "square", "cube", "mul 2", "mul 1e30", "mul 1e-30", "mul inf", "mul 0", "mul column", "row product"}
OFFSETS = {"add", "sub", "add max", "sub max", "sub inf", "one hot", "row product"}

# Where tiles may differ from float64, as docs/reference/special_values.md says. They agree with `jax.jit` about masks.
AS_XLA = {"a product with a mask selects": lambda first, second: "mask" in (first, second) or first in BOOLS}
UNDECIDED = {
    "a sum overflows on the way, or not": lambda first, second: (
        (second in SUMS and (first in LARGE or first.startswith(("div", "rec")))) or (first in SUMS and second in SUMS)
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
