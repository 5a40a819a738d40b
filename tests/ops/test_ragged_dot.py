"""Products of rows in groups, as mixtures of experts use them, against sums in float64.

`test_targets.py` runs this file again for the other targets of the machine.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from aspen_jax import aspen
from aspen_jax.frontend import trace as frontend
from aspen_jax.ops.reference import evaluate
from aspen_jax.passes import run_passes
from aspen_jax.primitive.batch import Batched
from tests.rotation import examples
from tests.tiled import run_tiled

FLOATS = {np.float32: 1e-6, np.float16: 1e-3, jnp.bfloat16: 1e-2}


def masks(sizes, rows):
    """Which rows each group holds, as JAX says: by running sums of int32, which wrap."""
    ends = np.cumsum(sizes, dtype=np.int32)
    with np.errstate(over="ignore"):
        starts = ends - np.asarray(sizes, np.int32)
    at = np.arange(rows)
    return (starts[:, None] <= at) & (at < ends[:, None])


def exact(lhs, rhs, sizes):
    """In float64; no row reads anything of a group that does not hold it."""
    result = np.zeros((lhs.shape[0], rhs.shape[2]))
    for mask, matrix in zip(masks(sizes, len(lhs)), rhs, strict=True):
        result[mask] += lhs[mask].astype(np.float64) @ matrix.astype(np.float64)
    return result


def normal(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def drawn_sizes(rng, rows, groups, hostile):
    sizes = rng.multinomial(rng.integers(0, rows + 1), rng.dirichlet(np.full(groups, 0.4))).astype(np.int32)
    if hostile:
        wild = rng.choice([-rows, -1, rows, 2 * rows, 2**31 - 1, -(2**31)], groups).astype(np.int32)
        sizes = np.where(rng.random(groups) < 0.4, wild, sizes)
    return sizes


def assert_near(ours, expected, tolerance, sums=0):
    """Within `tolerance` of each result, the largest one, and the sum of the products' sizes.

    Rounding errors are proportional to that sum, which may be much larger than what the products sum to.
    """
    assert ours.shape == expected.shape
    error = np.abs(ours.astype(np.float64) - expected)
    assert (error <= tolerance * (np.abs(expected) + np.abs(expected).max(initial=1e-30) + sums)).all(), error.max()


@examples(60)
@given(
    st.sampled_from([0, 1, 5, 13, 64, 150]),
    st.sampled_from([0, 1, 3, 31, 300, 1700]),
    st.sampled_from([1, 7, 32, 45, 200]),
    st.sampled_from([1, 2, 5, 17]),
    st.sampled_from(list(FLOATS)),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_products_of_groups(m, k, n, groups, dtype, hostile, seed):
    rng = np.random.default_rng(seed)
    lhs, rhs, bias = normal(rng, m, k, dtype=dtype), normal(rng, groups, k, n, dtype=dtype), normal(rng, n, dtype=dtype)
    sizes = drawn_sizes(rng, m, groups, hostile)
    expected = exact(lhs, rhs, sizes)
    (ours,) = run_tiled(lax.ragged_dot, (lhs, rhs, sizes))
    assert ours.dtype == dtype
    assert_near(ours, expected, FLOATS[dtype], exact(np.abs(lhs), np.abs(rhs), sizes))
    # An epilogue sees all rows, those of no group too; sums stay in float32.
    wide = functools.partial(lax.ragged_dot, preferred_element_type=np.float32)
    (ours,) = run_tiled(lambda a, b, s, bias: jax.nn.relu(wide(a, b, s) + bias.astype(np.float32)), (lhs, rhs, sizes, bias))
    assert ours.dtype == np.float32
    assert_near(ours, np.maximum(expected + bias.astype(np.float64), 0), 1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_other_groups_do_not_leak(seed):
    rng = np.random.default_rng(seed)
    lhs, rhs, sizes = normal(rng, 60, 33), normal(rng, 5, 33, 40), np.array([11, 0, 20, 9, 7], np.int32)
    (clean,) = run_tiled(lax.ragged_dot, (lhs, rhs, sizes))
    spoiled = rng.choice([2, 3])
    of_group = masks(sizes, 60)[spoiled]
    wrong = rng.choice([np.nan, np.inf, -np.inf])
    other_lhs, other_rhs = lhs.copy(), rhs.copy()
    other_lhs[of_group | (np.arange(60) >= sizes.sum())] = wrong  # and rows of no group
    other_rhs[[1, spoiled]] = wrong  # and of a group without rows
    (ours,) = run_tiled(lax.ragged_dot, (other_lhs, other_rhs, sizes))
    np.testing.assert_array_equal(ours[~of_group], clean[~of_group])
    assert not np.isfinite(ours[of_group]).any()
    assert (ours[sizes.sum() :] == 0).all()


def test_hostile_sizes_are_jaxs():
    rng = np.random.default_rng(0)
    lhs, rhs = normal(rng, 10, 4), normal(rng, 4, 4, 5)
    most = 2**31 - 1
    for sizes in ([3, 3, 3, 3], [20, 0, 1, -3], [4, -2, 5, 1], [-3, 5, 4, 1], [most, most, 5, 3], [most, 3, -most + 4, most]):
        (ours,) = run_tiled(lax.ragged_dot, (lhs, rhs, np.array(sizes, np.int32)))
        np.testing.assert_allclose(ours, jax.jit(lax.ragged_dot)(lhs, rhs, np.array(sizes, np.int32)), rtol=1e-5, atol=1e-5)


def part_of(function, *arguments):
    """All of a function, as the frontend gives it."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    (part,) = trace.parts
    return part.replace(inputs=tuple(trace.inputs))


def numbers(contract, batch, ragged, groups):
    return lax.RaggedDotDimensionNumbers((contract, batch), ragged, groups)


# Dimension numbers, and the shapes of both operands and of the sizes.
GENERAL = {
    "rows last": (numbers(((0,), (2,)), ((), ()), [1], [0]), (9, 20), (3, 11, 9), (3,)),
    "groups last": (numbers(((1,), (0,)), ((), ()), [0], [2]), (20, 9), (9, 11, 3), (3,)),
    "a batch": (numbers(((2,), (3,)), ((0,), (1,)), [1], [0]), (2, 20, 9), (3, 2, 11, 9), (2, 3)),
    "sizes of the whole batch": (numbers(((2,), (2,)), ((0,), (0,)), [1], [1]), (2, 20, 9), (2, 3, 9, 11), (3,)),
    "outer dimensions": (numbers(((2,), (1,)), ((), ()), [1], [0]), (4, 20, 9), (3, 9, 11), (4, 3)),
    "two summed": (numbers(((2, 1), (1, 3)), ((), ()), [0], [0]), (20, 4, 3), (2, 3, 5, 4), (2,)),
    "two of columns": (numbers(((1,), (2,)), ((), ()), [0], [0]), (20, 9), (3, 4, 9, 5), (3,)),
    "no columns": (numbers(((1,), (1,)), ((), ()), [0], [0]), (20, 9), (3, 9), (3,)),
}


@pytest.mark.parametrize("name", GENERAL)
def test_dimensions_in_any_order(name):
    dims, left, right, of_sizes = GENERAL[name]
    rng = np.random.default_rng(0)
    sizes = np.broadcast_to(np.array([7, 6, 4][: of_sizes[-1]], np.int32), of_sizes).copy()
    sizes[..., 0] -= np.arange(sizes[..., 0].size, dtype=np.int32).reshape(sizes[..., 0].shape)
    arguments = normal(rng, *left), normal(rng, *right), sizes
    function = functools.partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=dims)
    (ours,) = run_tiled(function, arguments)
    expected = np.asarray(jax.jit(function)(*arguments), np.float64)
    assert_near(ours, expected, 1e-5)
    assert_near(evaluate(part_of(function, *arguments), *arguments)[0], expected, 1e-5)


def test_matrices_of_16_bits_are_read_where_they_are():
    rng = np.random.default_rng(0)
    arguments = normal(rng, 20, 9), normal(rng, 3, 9, 11, dtype=jnp.bfloat16), np.array([4, 0, 9], np.int32)
    function = lambda lhs, rhs, sizes: lax.ragged_dot(lhs, rhs.astype(np.float32), sizes)  # noqa: E731
    (ours,) = run_tiled(function, arguments)
    assert_near(ours, exact(*arguments), 1e-6)
    assert [op.family.name for op in run_passes(part_of(function, *arguments)).ops] == ["ragged_dot"]


def test_transformations():
    rng = np.random.default_rng(0)
    lhs, rhs, sizes = normal(rng, 2, 20, 9), normal(rng, 2, 3, 9, 11), np.array([[4, 0, 9], [3, 10, 7]], np.int32)

    def loss(function):
        return lambda lhs, rhs: (jnp.tanh(function(lhs, rhs, sizes[0])) ** 2).sum()

    for ours, theirs in zip(
        jax.grad(loss(aspen(lax.ragged_dot)), argnums=(0, 1))(lhs[0], rhs[0]),
        jax.grad(loss(lax.ragged_dot), argnums=(0, 1))(lhs[0], rhs[0]),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    mapped = jax.vmap(aspen(lax.ragged_dot))(lhs, rhs, sizes)
    np.testing.assert_allclose(mapped, jax.vmap(lax.ragged_dot)(lhs, rhs, sizes), rtol=1e-4, atol=1e-5)


def test_what_stays_with_xla_says_why():
    lhs, rhs, sizes = jnp.ones((20, 9)), jnp.ones((3, 9, 11)), jnp.array([4, 0, 9])
    gradient = aspen(jax.grad(lambda lhs, rhs: lax.ragged_dot(lhs, rhs, sizes).sum(), argnums=(0, 1)))
    reasons = [fallback.reason for fallback in gradient.explain(lhs, rhs).fallbacks]
    assert [reason for reason in reasons if "groups along a summed dimension" in reason]
    (fallback,) = aspen(lax.ragged_dot).explain(lhs, rhs, sizes.astype(np.uint8)).fallbacks
    assert "group sizes of uint8" in fallback.reason
    inner = functools.partial(lax.ragged_dot_general, ragged_dot_dimension_numbers=numbers(((2,), (1,)), ((), ()), [0], [0]))
    (fallback,) = aspen(inner).explain(jnp.ones((20, 4, 9)), rhs, sizes).fallbacks
    assert "behind that of the groups" in fallback.reason


def test_rows_are_not_cut_over_devices_as_if_each_stood_alone():
    assert Batched.of(part_of(lax.ragged_dot, np.ones((20, 9)), np.ones((4, 9, 11)), np.ones(4, np.int32))) is None
