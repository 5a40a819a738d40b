"""The kernels of products through the engine against jax.lax.

`test_targets.py` runs this file again for the other targets of the machine.
"""

from __future__ import annotations

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.ops.block import BLOCK
from aspen_jax.passes import run_passes
from tests.rotation import examples
from tests.tiled import NARROW, check, check_narrow, run_tiled


@examples(50)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 5, 13, 14, 29, 64]),
    st.sampled_from([1, 3, 16, 31, 100, 300, 1700]),
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
    check_narrow(function, NARROW[seed % 2], a, b, residual)


@examples(50)
@given(
    st.sampled_from([1, 2, 5, 13, 14, 29, 64]),
    st.sampled_from([1, 3, 31, 100, 300, 3300]),
    st.sampled_from([(32,), (57,), (200,), (12, 7), (3, 40), (2, 5, 32)]),
    st.sampled_from(["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "mjk,jkn->mn", "mjk,kjn->mn", "mjk,jnk->mn"]),
    st.integers(0, 2**31),
)
def test_products_with_constants(m, k, columns, order, seed):
    rng = np.random.default_rng(seed)
    letters = "xyz"[: len(columns)]
    sizes = {"m": m, "k": k, "j": 3} | dict(zip(letters, columns, strict=True))
    order = order.replace("n", letters)
    left, right = order.split("->")[0].split(",")
    a, b = (rng.standard_normal([sizes[letter] for letter in own], np.float32) for own in (left, right))
    residual = rng.standard_normal((m, *columns), np.float32)

    def function(a, residual):
        return jnp.einsum(order, a, b, precision=lax.Precision.HIGHEST) + residual

    check(function, a, residual)
    jaxpr = jax.make_jaxpr(function)(a, residual)
    (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
    depth = math.prod(sizes[letter] for letter in set(left) & set(right))
    assert [op.family.name for op in run_passes(part).ops] == ["matmul_panels" if depth > 1 else "block"]


@pytest.mark.parametrize("m", [1, 4, 40])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_mixed_dtypes(m, transposed):
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, 300), np.float32), rng.standard_normal((530, 300) if transposed else (300, 530), np.float32)
    for dtypes in itertools.product((*NARROW, np.float32), repeat=3):
        left, right = a.astype(dtypes[0]), b.astype(dtypes[1])
        numbers = (((1,), (int(transposed),)), ((), ()))
        product = functools.partial(lax.dot_general, dimension_numbers=numbers, preferred_element_type=dtypes[2])
        (ours,) = run_tiled(product, (left, right))
        wide = right.astype(np.float64)
        exact = left.astype(np.float64) @ (wide.T if transposed else wide)
        assert ours.dtype == dtypes[2]
        bound = float(jnp.finfo(dtypes[2]).eps) * np.abs(exact) + 1e-5 * np.abs(exact).max()
        assert (np.abs(ours.astype(np.float64) - exact) <= bound).all()


# Of attention and its gradients, of dense layers on many dimensions, of matrices and vectors; letters out of order on purpose.
PRODUCTS = (
    "btnh,bsnh->bnts", "bnts,bsnh->btnh", "btkgh,bskh->bkgts", "bkgts,bskh->btkgh", "btd,dnh->btnh", "btnh,nhd->btd",
    "btf,btd->fd", "ij,j->i", "j,ij->i", "j,ji->i", "ij,kj->ki", "ij,ij->j", "ij,ij->", "i,j->ij", "i,i->", "ij,k->kij",
    "bijk,bkl->lbij", "aibj,cjaid->bcd",
)  # fmt: skip


@examples(80)
@given(st.sampled_from(PRODUCTS), st.data(), st.integers(0, 2**31))
def test_products_of_any_dimensions(equation, data, seed):
    rng = np.random.default_rng(seed)
    left, rest = equation.split(",")
    right, out = rest.split("->")
    sizes = {letter: data.draw(st.sampled_from([1, 2, 3, 7, 17, 36])) for letter in sorted(set(left + right))}
    while np.prod([float(size) for size in sizes.values()]) > 3e6:
        sizes[max(sizes, key=sizes.__getitem__)] = 2
    a, b = (rng.standard_normal([sizes[letter] for letter in letters], np.float32) for letters in (left, right))
    bias = rng.standard_normal([sizes[letter] for letter in out[-2:]], np.float32)

    def function(a, b, bias):
        product = jnp.einsum(equation, a, b, precision=lax.Precision.HIGHEST)
        return product, jnp.maximum(jnp.einsum(equation, a[::-1], b, precision=lax.Precision.HIGHEST), 0) + bias

    check(function, a, b, bias, tolerance=2e-5)


def copies(function, *arguments) -> int:
    """Block ops that are left when all passes have run."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
    return sum(op.family is BLOCK for op in run_passes(part).ops)


def test_the_products_of_attention_copy_nothing():
    x = np.zeros((2, 9, 3, 4), np.float32)
    w = np.zeros((3, 4, 5), np.float32)

    def attention(q, k, v, w):
        scores = jnp.einsum("btnh,bsnh->bnts", q, k)
        values = jnp.einsum("bnts,bsnh->btnh", scores, v)
        return values.reshape(2, 9, 12) @ w.reshape(12, 5)

    def grouped(q, k, v):
        q = q.reshape(2, 9, 3, 2, 2)
        return jnp.einsum("bkgts,bskh->btkgh", jnp.einsum("btkgh,bskh->bkgts", q, k[..., :2]), v)

    assert copies(attention, x, x, x, w) == 0
    assert copies(grouped, x, x, x) == 0
    assert copies(lambda x, y: (x.reshape(18, 12) @ y.reshape(18, 12).T).T, x, x) == 0


def test_large_matrix_vector_product_is_accurate():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 25088), np.float32), rng.standard_normal((25088, 40), np.float32)
    (result,) = run_tiled(lambda x, w: x @ w, (x, w), machine=Machine())
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(result - exact).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize("dtype", [np.float32, *NARROW])
@pytest.mark.parametrize("k", [1, 7, 8, 25])
@pytest.mark.sweep
def test_few_rows_by_a_matrix_of_any_width(k, dtype):
    rng = np.random.default_rng(k)
    for m, n in itertools.product((1, 2, 3, 6), (33, 48, 70, 300)):
        a, b, c = (rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
        if dtype == np.float32:
            check(lambda a, b, c: jnp.matmul(a, b, precision=lax.Precision.HIGHEST) - c, a, b, c, machine=Machine())
        else:
            check_narrow(lambda a, b, c: jnp.matmul(a, b, precision=lax.Precision.HIGHEST) - c, dtype, a, b, c, machine=Machine())


@pytest.mark.parametrize("taps", [(1, 1), (2, 3)])
def test_convolutions_of_few_pixels_by_weights_that_are_no_constants(taps):
    rng = np.random.default_rng(0)
    for channels, n in itertools.product((1, 5, 16), (33, 70, 200)):
        x = rng.standard_normal((1, 1 + taps[0], 1 + taps[1], channels), np.float32)
        w, bias = rng.standard_normal((*taps, channels, n), np.float32), rng.standard_normal(n, np.float32)
        residual = rng.standard_normal((1, 2, 2, n), np.float32)

        def function(x, w, bias, residual):
            y = lax.conv_general_dilated(
                x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision=lax.Precision.HIGHEST
            )
            return jax.nn.relu(y + bias) * residual

        check(function, x, w, bias, residual, machine=Machine())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("order", ["bmk,bkn->bmn", "mk,nk->mn", "km,kn->mn", "bkm,bnk->bmn", "mk,nrk->mnr", "mk,k->m"])
def test_a_depth_of_one_is_no_sum(dtype, order):
    """Zeros keep their signs; infinities and NaN are where XLA has them."""
    rng = np.random.default_rng(0)
    sizes = {"b": 3, "m": 5, "k": 1, "n": 33, "r": 2}
    left, right, _ = order.replace("->", ",").split(",")
    x, y = (rng.standard_normal([sizes[label] for label in labels], np.float32) for labels in (left, right))
    for array in (x, y):
        flat = array.reshape(-1)
        flat[: min(3, flat.size)] = [-0.0, np.inf, np.nan][: min(3, flat.size)]
    x, y = x.astype(dtype), y.astype(dtype)
    preferred = np.float32 if dtype == "bfloat16" else None
    function = functools.partial(jnp.einsum, order, preferred_element_type=preferred)
    (ours,) = run_tiled(function, [x, y])
    theirs = np.asarray(jax.jit(function)(x, y))
    np.testing.assert_array_equal(np.asarray(ours, np.float32), theirs.astype(np.float32))
    zeros = theirs == 0
    assert zeros.any()
    np.testing.assert_array_equal(np.signbit(np.asarray(ours, np.float32))[zeros], np.signbit(theirs.astype(np.float32))[zeros])


def test_an_outer_product_joins_what_follows():
    """A step of gradient descent with a batch of one reads and writes the weights once."""
    x, dy, w = (np.random.default_rng(1).standard_normal(shape, np.float32) for shape in [(1, 64), (1, 48), (64, 48)])
    program = run_passes(frontend.trace(jax.make_jaxpr(lambda x, dy, w: w - 0.1 * (x.T @ dy))(x, dy, w)).parts[0])
    assert [op.family for op in program.ops] == [BLOCK]
