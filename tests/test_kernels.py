"""Every kernel through the engine, against jax.lax: random shapes and parameters, in many tiles, on the CPU target in use.

`test_targets.py` runs this file again for the other targets of the machine.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from aspen_jax import apu, frontend
from aspen_jax.apu.machine import Machine
from aspen_jax.passes import PASSES, run_passes
from aspen_jax.program import Value
from tests.random_functions import random_function

# Tiles as small as the grains allow, so that boxes begin and end everywhere.
TINY_TILES = Machine(tile_ns=0.0, shortest_tile_ns=1.0, tiles_per_worker=16)


def run_tiled(function, arguments, disabled=(), machine: Machine = TINY_TILES) -> list[np.ndarray]:
    """The function's outputs by tile graphs; it must have no fallback."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    assert not trace.fallbacks, [(item.name, item.reason) for item in trace.fallbacks]
    values: dict[Value, np.ndarray] = dict(zip(trace.inputs, map(np.asarray, jax.tree.leaves(arguments)), strict=True))
    for part in trace.parts:
        graph = apu.build(run_passes(part, disabled), 2, machine)
        graph.verify()
        results = graph.run(*(values[value] for value in part.inputs))
        values.update((operand.value, result) for operand, result in zip(part.outputs, results, strict=True))
    return [values[item] if isinstance(item, Value) else item for item in trace.outputs]


def check(function, *arguments, tolerance: float = 1e-5, disabled=()) -> None:
    """Within `tolerance` of the largest output; integers and bools exactly."""
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    for ours, theirs in zip(run_tiled(function, arguments, disabled), expected, strict=True):
        theirs = np.asarray(theirs)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        if theirs.dtype != np.float32:
            np.testing.assert_array_equal(ours, theirs)
            continue
        assert np.isfinite(theirs).all()
        largest = float(np.abs(theirs).max(initial=1e-30))
        assert float(np.abs(ours - theirs).max(initial=0)) <= tolerance * largest


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    depthwise = draw(st.booleans()) and groups > 1
    channels = 1 if depthwise else draw(st.integers(1, 20))
    groups = draw(st.integers(1, 40)) if depthwise else groups
    outputs = groups * draw(st.sampled_from([1, 2] if depthwise else [1, 3, 16, 33, 64]))
    window = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    image = draw(st.tuples(st.integers(4, 16), st.integers(4, 16)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = tuple(draw(st.integers(1, 2)) if image[i] > 2 * window[i] else 1 for i in (0, 1))
    padding = tuple((draw(st.integers(-1, 3)), draw(st.integers(-1, 3))) for _ in range(2))
    return draw(st.integers(1, 2)), image, channels * groups, window, outputs, groups, stride, dilation, padding


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.integers(0, 2**31), st.booleans())
def test_conv2d(shape, seed, epilogue):
    batch, image, channels, window, outputs, groups, stride, dilation, padding = shape
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *image, channels), np.float32)
    w = rng.standard_normal((*window, channels // groups, outputs), np.float32)

    def function(x, w, scale, shift):
        y = lax.conv_general_dilated(
            x, w, stride, padding, rhs_dilation=dilation, dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups, precision=lax.Precision.HIGHEST,
        )  # fmt: skip
        return jax.nn.relu6(y * scale + shift) if epilogue else y

    check(function, x, w, *rng.standard_normal((2, outputs), np.float32))


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 5, 13, 14, 29, 64]),
    st.sampled_from([1, 3, 16, 31, 100, 300]),
    st.sampled_from([1, 7, 16, 32, 45, 200]),
    st.sampled_from(["mk,kn", "km,kn", "mk,nk", "km,nk"]),
    st.integers(0, 2**31),
)
def test_matmul(batch, m, k, n, order, seed):
    rng = np.random.default_rng(seed)
    sizes = {"m": m, "k": k, "n": n}
    left, right = order.split(",")
    a = rng.standard_normal((batch, *(sizes[letter] for letter in left)), np.float32)
    b = rng.standard_normal((batch, *(sizes[letter] for letter in right)), np.float32)
    residual = rng.standard_normal((batch, m, n), np.float32)

    def function(a, b, residual):
        return jnp.einsum(f"b{left},b{right}->bmn", a, b, precision=lax.Precision.HIGHEST) + residual

    check(function, a, b, residual)


@pytest.mark.parametrize("seed", range(30))
def test_random_functions(seed):
    function, arguments = random_function(2000 + seed)
    check(function, *arguments, tolerance=5e-5)


@pytest.mark.parametrize("seed", range(6))
def test_random_functions_without_passes(seed):
    function, arguments = random_function(3000 + seed)
    check(function, *arguments, tolerance=5e-5, disabled=tuple(PASSES))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 2**31))
def test_pool(data, seed):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 9)) for _ in range(rank))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    window = tuple(min(w, s) for w, s in zip(draw(1, 3), shape, strict=True))
    strides, base, dilation = draw(1, 2), draw(1, 2), draw(1, 1)
    padding = tuple(zip(draw(0, 2), draw(0, 2), strict=True))
    kind = data.draw(st.sampled_from([(-np.inf, lax.max), (np.inf, lax.min), (0.0, lax.add)]))
    x = np.random.default_rng(seed).standard_normal(shape, np.float32)

    def function(x):
        y = lax.reduce_window(x, np.float32(kind[0]), kind[1], window, strides, padding, base, dilation)
        return jnp.clip(y, -5.0, 5.0)  # an empty window is infinite

    check(function, x)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 2**31))
def test_reduce(data, seed):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 40)) for _ in range(rank))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    kind = data.draw(st.sampled_from([jnp.sum, jnp.max, jnp.min]))
    x = np.random.default_rng(seed).standard_normal(shape, np.float32)
    check(lambda x: (kind(x, axes), kind((x * 10).astype(jnp.int32), axes), (x > 1).any(axes), (x > -1).all(axes)), x)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(0, 2**31))
def test_movement(data, seed):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 12)) for _ in range(rank))
    axis = data.draw(st.integers(0, rank - 1))
    config = tuple(
        (data.draw(st.integers(-1, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in range(rank)
    )
    order = tuple(data.draw(st.permutations(range(rank))))
    dtype = data.draw(st.sampled_from([np.float32, np.int32, np.uint8, np.float16, np.bool_]))
    x = (np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype)

    def function(x, value):
        y = lax.pad(x, value, config)
        y = jnp.concatenate([y, y[::-1], lax.slice_in_dim(y, 0, min(2, y.shape[axis]), axis=axis)], axis) if min(y.shape) else y
        return y.transpose(order), x[::2].T.reshape(-1)

    check(function, x, np.array(1, dtype))


def test_large_matrix_vector_product_is_accurate():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 25088), np.float32), rng.standard_normal((25088, 40), np.float32)
    (result,) = run_tiled(lambda x, w: x @ w, (x, w), machine=Machine())
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(result - exact).max() <= 1e-5 * np.abs(exact).max()


def test_sum_of_residual_and_affine_under_relu():
    """relu(residual + ((x + bias) * scale + shift)): one joining of instructions after another in the interpreter."""
    rng = np.random.default_rng(0)
    x, residual = rng.standard_normal((2, 5, 37), np.float32)
    check(lambda x, r, a, b, c: jax.nn.relu(r + ((x + a) * b + c)), x, residual, *rng.standard_normal((3, 37), np.float32))
