"""The activations of jax.nn run in tiles whole, and as close to float64 as in XLA or within a few ulp."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import nn

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
