"""The same call gives bitwise the same result, whatever order its tiles ran in: what moves would be a race."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import aspen_jax
from aspen_jax import aspen


def network(x, weights):
    """Convolutions with residuals, so that buffers are reused while neighbours still read them."""
    for index, (w, scale) in enumerate(weights):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.nn.relu(y * scale + 0.1)
        x = x + y if index % 2 else y
        if index == 3:
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    return jax.nn.softmax(x.mean((1, 2)))


@pytest.fixture
def restored_workers():
    before = aspen_jax.num_workers()
    yield
    aspen_jax.set_num_workers(before)


@pytest.mark.parametrize("workers", [2, 5])
def test_500_calls_from_4_threads_are_bitwise_equal(workers, restored_workers):
    aspen_jax.set_num_workers(workers)
    rng = np.random.default_rng(0)
    weights = [
        ((rng.standard_normal((3, 3, 32, 32)) / 17).astype(np.float32), rng.uniform(0.5, 1, 32).astype(np.float32))
        for _ in range(8)
    ]
    weights = jax.tree.map(jnp.asarray, weights)
    x = jnp.asarray(rng.standard_normal((1, 40, 36, 32), np.float32))
    compiled = jax.jit(aspen(network, strict=True)).lower(x, weights).compile()
    first = np.asarray(compiled(x, weights))
    np.testing.assert_allclose(first, jax.jit(network)(x, weights), rtol=1e-4, atol=1e-6)
    with ThreadPoolExecutor(4) as threads:
        for result in threads.map(lambda _: np.asarray(compiled(x, weights)), range(500)):
            np.testing.assert_array_equal(result.view(np.int32), first.view(np.int32))
