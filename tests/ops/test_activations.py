"""The activations of jax.nn run in tiles whole, and as close to float64 as in XLA or within a few ulp."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, nn

from aspen_jax import aspen
from tests.tiled import run_tiled

FUNCTIONS = {
    name: getattr(nn, name)
    for name in (
        "celu", "elu", "glu", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu", "log_sigmoid", "mish", "relu", "relu6",
        "selu", "sigmoid", "silu", "soft_sign", "softplus", "sparse_plus", "sparse_sigmoid", "squareplus", "tanh",
    )
} | {"gelu": nn.gelu, "gelu by erf": lambda x: nn.gelu(x, approximate=False)}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_activation(name):
    function = FUNCTIONS[name]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 88.0, -88.0, 1e-5]
    x = np.concatenate([np.linspace(-20, 20, 2000), special]).astype(np.float32)
    (ours,) = run_tiled(function, (x,))
    theirs = np.asarray(jax.jit(function)(x))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    with jax.enable_x64(True):
        exact = np.asarray(function(x.astype(np.float64)))
    fine = np.isfinite(exact) & np.isfinite(theirs)
    assert np.isfinite(ours[fine]).all()
    error, wanted = (np.abs(y[fine] - exact[fine]) for y in (ours, theirs))
    assert (error <= np.maximum(4e-7 * np.maximum(np.abs(exact[fine]), 1.0), 2 * wanted)).all()


DERIVED = {
    "gelu": nn.gelu, "gelu by erf": lambda x: nn.gelu(x, approximate=False), "mish": nn.mish, "tanh": jnp.tanh, "erf": lax.erf
}  # fmt: skip
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 30.0, -30.0, 1e-5]


@pytest.mark.parametrize("name", DERIVED)
def test_derivative(name):
    function = DERIVED[name]

    def derivative(x):
        return jax.vjp(function, x)[1](jnp.ones_like(x))[0]

    x = np.concatenate([np.linspace(-20, 20, 2000), SPECIAL]).astype(np.float32)
    (ours,) = run_tiled(derivative, (x,))
    theirs = np.asarray(jax.jit(derivative)(x))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    with jax.enable_x64(True):
        exact = np.asarray(derivative(x.astype(np.float64)))
    fine = np.isfinite(exact) & np.isfinite(theirs)
    error, wanted = (np.abs(y[fine] - exact[fine]) for y in (ours, theirs))
    assert (error <= np.maximum(4e-7 * np.maximum(np.abs(exact[fine]), 1.0), 2 * wanted)).all()
    (narrow,) = run_tiled(derivative, (x.astype(jnp.bfloat16),))
    theirs = np.asarray(jax.jit(derivative)(x.astype(jnp.bfloat16))).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(narrow.astype(np.float32)), np.isnan(theirs))
    np.testing.assert_allclose(narrow.astype(np.float32), theirs, rtol=2e-2, atol=3e-2)


@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="this JAX evaluates polynomials by loops, or by other primitives")
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int32, np.int8])
@pytest.mark.parametrize("known", [True, False])
def test_polynomial(known, dtype):
    coefficients = np.array([2, -3, 1, 5]).astype(dtype)
    x = np.concatenate([np.linspace(-3, 3, 50), [] if np.issubdtype(dtype, np.integer) else SPECIAL]).astype(dtype)

    def function(x, coefficients):
        return jnp.polyval(coefficients, x, unroll=4)

    # What tiles hold in 16 bits they compute in 32.
    wide = np.dtype(np.float32) if dtype == jnp.bfloat16 else np.dtype(dtype)
    expected = np.asarray(jax.jit(function)(x.astype(wide), coefficients.astype(wide)))
    (ours,) = run_tiled(lambda x: function(x, coefficients), (x,)) if known else run_tiled(function, (x, coefficients))
    assert ours.dtype == dtype
    rtol = 4e-3 if dtype == jnp.bfloat16 else 1e-6
    np.testing.assert_allclose(ours.astype(np.float32), expected.astype(np.float32), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("value", [3e-39, 1e-45, -1e-45])
@pytest.mark.parametrize("name", ["tanh", "sin", "tan", "arctan", "expm1"])
def test_denormals_are_kept(name: str, value: float) -> None:
    tiny = np.full(20_000, value, np.float32)  # each function is x near zero
    np.testing.assert_array_equal(jax.jit(aspen(getattr(jnp, name)))(tiny), tiny)
