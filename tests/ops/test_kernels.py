"""Kernels of pooling, reduction, movement and element-wise programs, and random functions of all kinds, against jax.lax.

Random shapes and parameters, in many tiles, on the CPU target in use; `test_targets.py` runs this file again for the others.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from aspen_jax.passes import OPTIONAL
from tests.random_functions import random_function
from tests.rotation import examples
from tests.tiled import NARROW, check, check_narrow, run_tiled


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sweep
def test_random_functions(seed):
    function, arguments = random_function(2000 + seed)
    check(function, *arguments, tolerance=5e-5)


@pytest.mark.parametrize("seed", range(6))
def test_random_functions_without_passes(seed):
    function, arguments = random_function(3000 + seed)
    check(function, *arguments, tolerance=5e-5, disabled=OPTIONAL)


@examples(40)
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
        y = lax.reduce_window(x, x.dtype.type(kind[0]), kind[1], window, strides, padding, base, dilation)
        return jnp.clip(y, -5.0, 5.0)  # an empty window is infinite

    check(function, x)
    check_narrow(function, data.draw(st.sampled_from(NARROW)), x)


@examples(40)
@given(st.data(), st.integers(0, 2**31))
def test_reduce(data, seed):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 40)) for _ in range(rank))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    kind = data.draw(st.sampled_from([jnp.sum, jnp.max, jnp.min]))
    x = np.random.default_rng(seed).standard_normal(shape, np.float32)
    # Where all terms of a sum cancel, rounding is large beside what is left: so they are around 1.
    check(lambda x: kind(x, axes), x + 1 if kind is jnp.sum else x)
    check(lambda x: (kind((x * 10).astype(jnp.int32), axes), (x > 1).any(axes), (x > -1).all(axes)), x)
    check_narrow(lambda x: (kind(x, axes), x.mean(axes), kind(x, axes) * 2), data.draw(st.sampled_from(NARROW)), x)


@examples(40)
@given(st.data(), st.integers(0, 2**31))
def test_movement(data, seed):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 12)) for _ in range(rank))
    axis = data.draw(st.integers(0, rank - 1))
    config = tuple(
        (data.draw(st.integers(-1, 2)), data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))) for _ in range(rank)
    )
    order = tuple(data.draw(st.permutations(range(rank))))
    dtype = data.draw(st.sampled_from([np.float32, np.int32, np.uint8, *NARROW, np.bool_]))
    x = (np.random.default_rng(seed).standard_normal(shape) * 3).astype(dtype)

    def function(x, value):
        y = lax.pad(x, value, config)
        y = jnp.concatenate([y, y[::-1], lax.slice_in_dim(y, 0, min(2, y.shape[axis]), axis=axis)], axis) if min(y.shape) else y
        return y.transpose(order), x[::2].T.reshape(-1)

    check(function, x, np.array(1, dtype))


@examples(25)
@given(st.data(), st.integers(0, 2**31))
def test_concatenations_with_an_epilogue(data, seed):
    """In registers where the program is a chain of float32, by the block program where it is not."""
    rank = data.draw(st.integers(1, 4))
    axis = data.draw(st.integers(0, rank - 1))
    shape = [data.draw(st.integers(1, 7)) for _ in range(rank)]
    extents = data.draw(st.lists(st.integers(1, 70), min_size=2, max_size=5))
    dtype, is_chain = data.draw(st.sampled_from([np.float32, np.int32])), data.draw(st.booleans())
    rng = np.random.default_rng(seed)
    pieces = [(rng.standard_normal((*shape[:axis], extent, *shape[axis + 1 :])) * 9).astype(dtype) for extent in extents]
    whole = (*shape[:axis], sum(extents), *shape[axis + 1 :])
    mean, scale = rng.standard_normal(whole[-1:]).astype(dtype), rng.standard_normal(whole).astype(dtype)

    def function(mean, scale, *pieces):
        # Nested, as where each layer adds to what is there.
        inner = jnp.concatenate(pieces[:-1], axis)
        y = (jnp.concatenate([inner, pieces[-1]], axis) - mean) * scale
        return jnp.maximum(y, 0) if is_chain else y * y - scale, jnp.sum(jnp.abs(inner))  # of one sign: nothing cancels

    check(function, mean, scale, *pieces)


@pytest.mark.parametrize("dtype", NARROW)
def test_conversions_round_inside_a_fused_program(dtype):
    x = np.random.default_rng(0).standard_normal((7, 45), np.float32)
    for function in (lambda x: x.astype(dtype).astype(np.float32) - x, lambda x: lax.reduce_precision(x, 8, 7) - x):
        check(function, x, tolerance=0.0)
    constant = np.float32(1 / 3)
    (ours,) = run_tiled(lambda x: (x.astype(dtype) * constant.astype(dtype)).astype(np.float32), (np.ones(3, np.float32),))
    np.testing.assert_array_equal(ours, np.float32(constant.astype(dtype)))


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.sweep
def test_random_functions_of_16_bits(dtype, seed):
    function, arguments = random_function(4000 + seed)
    narrow = [item.astype(dtype) for item in arguments]
    exact = jax.jit(function)(*(item.astype(np.float32) for item in narrow))
    theirs = jax.jit(function)(*narrow)
    for one, other, wanted in zip(run_tiled(function, narrow), theirs, exact, strict=True):
        assert one.dtype == dtype
        wanted = np.asarray(wanted)
        error, their_error = (np.abs(np.asarray(item, np.float32) - wanted).max() for item in (one, other))
        assert error <= max(1.5 * their_error, 2 * float(jnp.finfo(dtype).eps) * np.abs(wanted).max())


_BINARY = (
    lax.add, lax.sub, lax.mul, lax.div, lax.rem, lax.max, lax.min, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor,
    lax.shift_left, lax.shift_right_logical, lax.shift_right_arithmetic, lax.lt, lax.le, lax.gt, lax.ge, lax.eq, lax.ne,
)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32])
def test_integers_wrap_and_compare_as_in_jax(dtype):
    limits, rng = np.iinfo(dtype), np.random.default_rng(0)
    a, b = rng.integers(limits.min, limits.max, (2, 3000), dtype, endpoint=True)
    b[::3] = rng.integers(0, 9, 1000)
    a[5::13], b[5::26] = limits.min, dtype(0) - dtype(limits.min < 0)

    def function(a, b):
        two = [op(a, b) for op in _BINARY]
        one = [
            -a,
            ~a,
            lax.sign(a),
            a**3,
            lax.clamp(dtype(3), a, dtype(99)),
            jnp.where(a > b, a, b + dtype(1)),
            lax.integer_pow(a, 2) // dtype(3),
        ]
        signed = [lax.abs(a)] if limits.min < 0 else []
        return [*two, *one, *signed]

    with np.errstate(over="ignore"):
        check(function, a, b)
    targets = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.float32, *NARROW, np.bool_)
    expected = [np.asarray(item) for item in jax.jit(lambda a: [(a + dtype(1)).astype(to) for to in targets])(a)]
    for ours, theirs in zip(run_tiled(lambda a: [(a + dtype(1)).astype(to) for to in targets], (a,)), expected, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    special = [np.nan, np.inf, -np.inf, 0.9, -0.9, 2.0**31, 2.0**32, -(2.0**31), limits.max, limits.min]
    floats = np.concatenate([rng.standard_normal(500) * limits.max, special]).astype(np.float32)
    for source in (np.float32, *NARROW):
        with np.errstate(all="ignore"):
            check(lambda x: x.astype(dtype), floats.astype(source))


def test_sum_of_residual_and_affine_under_relu():
    """relu(residual + ((x + bias) * scale + shift)): one joining of instructions after another in the interpreter."""
    rng = np.random.default_rng(0)
    x, residual = rng.standard_normal((2, 5, 37), np.float32)
    check(lambda x, r, a, b, c: jax.nn.relu(r + ((x + a) * b + c)), x, residual, *rng.standard_normal((3, 37), np.float32))
