"""Random small JAX functions: compositions of the operations that tiles run, over random shapes. Used by property tests."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array


def random_function(seed: int, steps: int = 6) -> tuple[Callable[..., list[Array]], list[np.ndarray]]:
    """A function of float32 arrays, and arguments for it. The same seed gives the same function."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 3)), int(rng.integers(4, 12)), int(rng.integers(4, 12)), int(rng.choice([1, 3, 8, 17])))
    arguments = [rng.standard_normal(shape, np.float32)]
    plan = [_STEPS[rng.integers(len(_STEPS))] for _ in range(steps)]
    seeds = rng.integers(0, 2**31, steps)
    weights: list[np.ndarray] = []

    # A dry run draws the weights that the steps ask for, so that they become arguments, as parameters are in real models.
    def run(x: Array, take: Callable[[tuple[int, ...]], Array]) -> list[Array]:
        kept = [x]
        for step, step_seed in zip(plan, seeds, strict=True):
            x = step(np.random.default_rng(step_seed), x, kept, take)
            kept.append(x)
        return [kept[-1], *kept[1 : 1 + int(seeds[0] % 2)]]

    def draw(shape: tuple[int, ...]) -> Array:
        weights.append((rng.standard_normal(shape) / np.sqrt(max(1, np.prod(shape[:-1])))).astype(np.float32))
        return jnp.asarray(weights[-1])

    run(jnp.asarray(arguments[0]), draw)

    def function(x: Array, *rest: Array) -> list[Array]:
        remaining = list(rest)
        return run(x, lambda _: remaining.pop(0))

    return function, [*arguments, *weights]


def _conv(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    window = tuple(int(rng.integers(1, min(4, extent) + 1)) for extent in x.shape[1:3])
    groups = int(rng.choice([g for g in (1, 1, x.shape[3]) if x.shape[3] % g == 0]))
    out = groups * int(rng.choice([1, 2, 5]))
    w = take((*window, x.shape[3] // groups, out))
    padding = [(int(rng.integers(0, 3)), int(rng.integers(0, 3))) for _ in range(2)]
    dilation = tuple(
        int(rng.integers(1, 3)) if padding[i][0] + padding[i][1] + x.shape[1 + i] > 2 * window[i] else 1 for i in (0, 1)
    )
    strides = tuple(map(int, rng.integers(1, 3, 2)))
    return lax.conv_general_dilated(
        x,
        w,
        strides,
        padding,
        rhs_dilation=dilation,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
        precision=lax.Precision.HIGHEST,
    )


def _affine(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    return x * take((x.shape[-1],)) + take((x.shape[-1],))


def _activation(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    functions = (jax.nn.relu, jax.nn.silu, jnp.tanh, jax.nn.gelu, lambda y: jnp.clip(y, 0, 6), jnp.abs, jax.nn.leaky_relu)
    return functions[rng.integers(len(functions))](x)


def _pool(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    window = (1, *(int(rng.integers(1, min(3, extent) + 1)) for extent in x.shape[1:3]), 1)
    strides = (1, *map(int, rng.integers(1, 3, 2)), 1)
    start, combine = ((-jnp.inf, lax.max), (0.0, lax.add), (jnp.inf, lax.min))[rng.integers(3)]
    return lax.reduce_window(x, start, combine, window, strides, str(rng.choice(["SAME", "VALID"])))


def _residual(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    same = [y for y in kept if y.shape == x.shape]
    return x + same[rng.integers(len(same))] * 0.5


def _concatenate(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    if x.size > 20_000:
        return x
    return jnp.concatenate([x, x[:, ::-1]], axis=int(rng.integers(1, 4)))


def _pad(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    low, high = rng.integers(0, 3, 2)
    return lax.pad(
        x, x.dtype.type(rng.choice([0.0, 1.5])), ((0, 0, 0), (low, high, int(rng.integers(0, 2))), (high, low, 0), (0, 0, 0))
    )


def _slice(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    return x[:, int(rng.integers(0, 2)) :, :: int(rng.integers(1, 3))] if min(x.shape[1:3]) > 2 else x


def _normalise(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    axes = ((3,), (1, 2), (1, 2, 3))[rng.integers(3)]
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.square(x - mean).mean(axes, keepdims=True) + 1e-3)


def _softmax(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    return jax.nn.softmax(x, axis=int(rng.integers(1, 4)))


def _dense(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    return jnp.matmul(x, take((x.shape[-1], int(rng.choice([1, 4, 33])))), precision=lax.Precision.HIGHEST)


def _transpose(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    return jnp.swapaxes(x, 1, 2) if rng.integers(2) else jnp.transpose(x, (0, 3, 1, 2)) if x.shape[3] < 12 else x


def _reshape(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    n, h, w, c = x.shape
    return x.reshape((n, w, h, c)) if rng.integers(2) else x.reshape((n, h * w, 1, c))


def _select(rng: np.random.Generator, x: Array, kept: list[Array], take: Callable) -> Array:
    return jnp.where(x > 0.1, x, -0.5 * x + 0.25)


_STEPS = (
    _conv, _conv, _conv, _affine, _activation, _activation, _pool, _residual, _concatenate, _pad, _slice, _normalise, _softmax,
    _dense, _transpose, _reshape, _select,
)  # fmt: skip
