"""Operations for tests/ops/special_pairs.py, in JAX and in NumPy: of two matrices, to one. NumPy computes in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

LARGEST, SMALLEST = (float(value) for value in (np.finfo(np.float32).max, np.finfo(np.float32).tiny))
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


def seen(x, size, steps=1, dilation=1, padding=0.0):
    """What windows see of a matrix with a border: each is centred on an element, `steps` from the next one."""
    span = (size - 1) * dilation + 1
    padded = np.pad(x, (span // 2, span // 2), constant_values=padding)
    return np.lib.stride_tricks.sliding_window_view(padded, (span, span))[::steps, ::steps, ::dilation, ::dilation]


def spread(x):
    """The matrix with zeros between its elements."""
    wide = np.zeros((2 * x.shape[0] - 1, 2 * x.shape[1] - 1), x.dtype)
    wide[::2, ::2] = x
    return wide


def convolution(x, w, steps=1, spread=1, dilation=1, padding=1):
    """The convolution of a matrix by a matrix."""
    pads = [(padding, padding)] * 2
    return lax.conv_general_dilated(x[None, None], w[None, None], [steps] * 2, pads, [spread] * 2, [dilation] * 2)[0, 0]


def products(windows, w, is_there: Any = True):
    """Sums of products from +0. Padding, and zeros between elements, add nothing: not even times NaN."""
    return np.where(is_there, windows * w, 0.0).sum((2, 3)) + 0.0


def by_rows(x, w):
    """The convolution of each row of a matrix by a row of its own."""
    return lax.conv_general_dilated(x[None], w[:, None], (1,), "VALID", feature_group_count=x.shape[0])[0]


def of_channels(x, w):
    """The convolution whose channels are the rows of a matrix."""
    return lax.conv_general_dilated(x[None], w[: x.shape[0], : x.shape[0]], (1,), "SAME")[0]


def of_channels_in_numpy(x, w):
    taps = w.shape[2]
    padded = np.pad(x, ((0, 0), (taps // 2, taps // 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=1)
    return np.einsum("cwt,oct->ow", windows, w[: x.shape[0], : x.shape[0]]) + 0.0


def pool(x, kind, steps=1):
    start, combine = {"max": (-jnp.inf, lax.max), "min": (jnp.inf, lax.min), "sum": (0.0, lax.add)}[kind]
    return lax.reduce_window(x, start, combine, (3, 3), (steps, steps), [(1, 1), (1, 1)])


def extreme(x, axis):
    """IEEE's maximum along axes: NaN comes through, -0 is less than +0."""
    found = x.max(axis)
    return np.where(found == 0, np.where(((x == 0) & ~np.signbit(x)).any(axis), 0.0, -0.0), found)


def pool_in_numpy(x, kind, steps=1):
    if kind == "sum":
        return seen(x, 3, steps).sum((2, 3)) + 0.0
    sign = 1 if kind == "max" else -1
    return sign * extreme(seen(sign * x, 3, steps, padding=-np.inf), (2, 3))


def pool_gradient(x, y):
    return jax.vjp(lambda x: pool(x, "max"), x)[1](y)[0]


def pool_gradient_in_numpy(x, y):
    """Of each window the first of its largest elements gets that of y. A NaN yields to the next one; JAX pads with -inf."""
    padded = np.pad(x, 1, constant_values=-np.inf)
    out = np.zeros_like(padded)
    for row, column in np.ndindex(x.shape):
        place, *others = itertools.product(range(row, row + 3), range(column, column + 3))
        for other in others:
            place = place if padded[place] >= padded[other] else other
        out[place] += y[row, column]
    return out[1:-1, 1:-1]


def halves(x):
    """Rows, each twice."""
    return np.arange(x.shape[0]) // 2


def combined(combine):
    def scattered(x, y):
        out = x.copy()
        for target, row in zip(halves(x), y, strict=True):
            out[target] = combine(out[target], row)
        return out

    return scattered


def every_second(x, y):
    out = x.copy()
    out[::2] = y[: len(out[::2])]
    return out


def written_within(x, y):
    out = x.copy()
    out[1:3, 1:3] = y[:2, :2]
    return out


def filled(x):
    return np.concatenate([x[1:], np.full_like(x[:1], np.nan)])


TAPS = WEIGHTS[:3, :3]
CHANNELS = np.stack([WEIGHTS[:, :48], WEIGHTS[:, 8:56], WEIGHTS[:, 16:]], -1)[:48]

apart("conv", lambda x, y: convolution(x, TAPS), lambda x, y: products(seen(x, 3), TAPS))
apart("conv in steps", lambda x, y: convolution(x, TAPS, steps=2), lambda x, y: products(seen(x, 3, steps=2), TAPS))
apart(
    "conv dilated",
    lambda x, y: convolution(x, TAPS, dilation=2, padding=2),
    lambda x, y: products(seen(x, 3, dilation=2), TAPS),
)
apart(
    "conv transposed",
    lambda x, y: convolution(x, TAPS, spread=2)[: x.shape[0], : x.shape[1]],
    lambda x, y: products(seen(spread(x), 3), TAPS)[: x.shape[0], : x.shape[1]],
)
apart("conv by y", lambda x, y: convolution(x, y[:3, :3], padding=0), lambda x, y: products(seen(x, 3), y[:3, :3])[1:-1, 1:-1])
apart(
    "conv by y padded",
    lambda x, y: convolution(x, y[:3, :3]),
    lambda x, y: products(seen(x, 3), y[:3, :3], seen(np.ones_like(x), 3) > 0),
)
apart(
    "conv by y transposed",
    lambda x, y: convolution(x, y[:3, :3], spread=2)[: x.shape[0], : x.shape[1]],
    lambda x, y: products(seen(spread(x), 3), y[:3, :3], seen(spread(np.ones_like(x)), 3) > 0)[: x.shape[0], : x.shape[1]],
)
apart("conv of channels", lambda x, y: of_channels(x, CHANNELS), lambda x, y: of_channels_in_numpy(x, CHANNELS))
apart("conv pointwise", lambda x, y: of_channels(x, CHANNELS[..., :1]), lambda x, y: of_channels_in_numpy(x, CHANNELS[..., :1]))
apart("conv of rows", lambda x, y: by_rows(x, y[:, :1]), lambda x, y: x * y[:, :1] + 0.0)
apart(
    "conv of rows whole",
    lambda x, y: by_rows(x, y) + jnp.zeros_like(x),
    lambda x, y: np.broadcast_to((x * y).sum(1, keepdims=True) + 0.0, x.shape),
)
for kind in ("max", "min", "sum"):
    apart(f"{kind} pool", lambda x, y, kind=kind: pool(x, kind), lambda x, y, kind=kind: pool_in_numpy(x, kind))
apart("max pool in steps", lambda x, y: pool(x, "max", 2), lambda x, y: pool_in_numpy(x, "max", 2))
apart("mean pool", lambda x, y: pool(x, "sum") / 9.0, lambda x, y: pool_in_numpy(x, "sum") / 9.0)
apart("max pool gradient", pool_gradient, pool_gradient_in_numpy)
apart("scatter add", lambda x, y: x.at[halves(x)].add(y), combined(np.add))
apart("scatter mul", lambda x, y: x.at[halves(x)].multiply(y), combined(np.multiply))
apart("scatter max", lambda x, y: x.at[halves(x)].max(y), combined(largest))
apart("scatter min", lambda x, y: x.at[halves(x)].min(y), combined(smallest))
apart("scatter", lambda x, y: x.at[np.arange((x.shape[0] + 1) // 2) * 2].set(y[: (x.shape[0] + 1) // 2]), every_second)
apart("update", lambda x, y: lax.dynamic_update_slice(x, y[:2, :2], (1, 1)), written_within)
apart("take or fill", lambda x, y: x.at[np.arange(x.shape[0]) + 1].get(mode="fill"), lambda x, y: filled(x))
apart(
    "pad",
    lambda x, y: lax.pad(x, y[0, 0], [(1, -1, 0), (-1, 1, 0)]),
    lambda x, y: np.pad(x[:-1, 1:], ((1, 0), (0, 1)), constant_values=y[0, 0]),
)
both("prod", through(lambda numpy, x: x.prod(1, keepdims=True)))
both("cumprod", lambda numpy, x, y: numpy.cumprod(x, axis=1))
apart("cummin", lambda x, y: lax.cummin(x, axis=1), lambda x, y: np.minimum.accumulate(x, axis=1))
apart("cumsum from behind", lambda x, y: lax.cumsum(x, axis=1, reverse=True), lambda x, y: np.cumsum(x[:, ::-1], 1)[:, ::-1])
apart("cumlogsumexp", lambda x, y: lax.cumlogsumexp(x, axis=1), lambda x, y: np.logaddexp.accumulate(x, axis=1))
apart("argsort", lambda x, y: jnp.argsort(x, axis=1).astype(x.dtype), lambda x, y: np.argsort(x, axis=1, kind="stable"))
apart(
    "sort by y",
    lambda x, y: lax.sort([y, x], dimension=1)[1],
    lambda x, y: np.take_along_axis(x, np.argsort(y, 1, kind="stable"), 1),
)
