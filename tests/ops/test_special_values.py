"""NaN, infinities, zeros of both signs and denormal numbers come out of tiles as docs/reference/special_values.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import aspen
from tests.ops import special_operations, special_pairs
from tests.rotation import SWEEPS_ALL

ROOT = Path(__file__).parents[2]
N = 64
RANDOM = np.random.default_rng(0)
MASK = np.arange(N * N).reshape(N, N) % 3 > 0
NUMBERS = RANDOM.uniform(0.5, 1.5, (N, N)).astype(np.float32)
WEIGHTS = (RANDOM.standard_normal((512, 512)) / 32).astype(np.float32)


def floats(mask, dtype=jnp.float32):
    return mask.astype(dtype)


def by_channel(image, window, numbers=("NWC", "WIO", "NWC"), steps=1):
    """The convolution of each channel by its own window, in one dimension."""
    window = window[:, None] if numbers[1] == "OIW" else window[:, None, :]
    return lax.conv_general_dilated(
        image[None],
        window,
        (steps,),
        "VALID",
        dimension_numbers=numbers,
        feature_group_count=image.shape[numbers[0].index("C") - 1],
    )[0]


# What is behind the mask does not come through.
SELECTS = {
    "bool": lambda m, x: m * x,
    "bool behind": lambda m, x: x * m,
    "converted": lambda m, x: floats(m) * x,
    "twice": lambda m, x: floats(m) * (floats(m) * x),
    "of a comparison": lambda m, x: (jnp.where(m, 1.0, -1.0) > 0) * x,
    "of two": lambda m, x: (m & m) * x,
    "not": lambda m, x: jnp.logical_not(~m) * x,
    "float16": lambda m, x: m * x.astype(jnp.float16),
    "copied": lambda m, x: jnp.copy(floats(m)) * x,
    "stopped": lambda m, x: lax.stop_gradient(floats(m)) * x,
    "reshaped": lambda m, x: (floats(m).reshape(-1) * x.reshape(-1)).reshape(N, N),
    "with an axis": lambda m, x: (floats(m)[..., None] * x[..., None])[..., 0],
    "transposed twice": lambda m, x: floats(m).T.T * x,
    "times one": lambda m, x: m * 1.0 * x,
    "over one": lambda m, x: m / 1.0 * x,
    "plus zero": lambda m, x: (m + 0.0) * x,
    "to the power of one": lambda m, x: (floats(m) ** 1) * x,
    "negated with x": lambda m, x: -floats(m) * -x,
    "negated twice": lambda m, x: jnp.negative(-floats(m)) * x,
    "times a scalar": lambda m, x: (m & ~m) * x[0, 0],
    "times infinity": lambda m, x: m * jnp.inf,
    "then scaled": lambda m, x: floats(m) * x * 2.0,
    "then summed": lambda m, x: (m * x).sum(-1),
    "einsum": lambda m, x: jnp.einsum("ij,ij->i", floats(m), x),
    "einsum of columns": lambda m, x: jnp.einsum("ij,ij->j", x, floats(m)),
    "einsum of all": lambda m, x: jnp.einsum("ij,ij->", floats(m), x),
    "einsum of each": lambda m, x: jnp.einsum("ij,ij->ij", floats(m), x),
    "vdot": lambda m, x: jnp.vdot(floats(m), x),
    "dot of vectors": lambda m, x: jnp.dot(x[0], floats(m[0])),
    "convolution by one tap": lambda m, x: by_channel(floats(m).reshape(1, -1), x.reshape(1, -1)).reshape(N, N),
    "convolution by all of an image": lambda m, x: by_channel(floats(m), x),
    "correlation": lambda m, x: jnp.correlate(x[0], floats(m[0]), mode="valid"),
    "correlation of the other": lambda m, x: jnp.correlate(floats(m[0]), x[0], mode="valid"),
    "over a scalar": lambda m, x: jnp.where(m, 0.0, floats(m) / (x.sum() * 0)),
    "over a zero": lambda m, x: jnp.where(m, 0.0, m / 0.0),
    "over a column": lambda m, x: jnp.where(m, 0.0, m / (x[:, :1] * 0)),
    "over their number": lambda m, x: (m & ~m) / (m & ~m).sum(),
    "over their numbers": lambda m, x: (m & ~m) / (m & ~m).sum(1, keepdims=True),
    "rectifier's gradient": lambda m, x: (jnp.where(m, 1.0, -1.0) > 0) * x,
    "vmap": lambda m, x: jax.vmap(lambda m, x: m * x)(m, x),
    "checkpoint": lambda m, x: jax.checkpoint(lambda m, x: m * x)(m, x),
    "gradient": lambda m, x: jax.grad(lambda y: (floats(m) * y).sum())(x),
    "gradient of a root": lambda m, x: jax.grad(lambda y: jnp.sqrt(m * y).sum())(jnp.where(m, x, 1.0)),
    "gradient of a maximum": lambda m, x: jnp.where(m, 0, jax.grad(lambda y: y.max())(x)),
}

# Of a mask that is known when tracing.
SELECTS_KNOWN = {
    "one_hot": lambda x: jax.nn.one_hot(jnp.arange(N), N) * jnp.where(jnp.eye(N, dtype=bool), x, jnp.nan),
    "eye": lambda x: jnp.eye(N) * jnp.where(jnp.eye(N, dtype=bool), x, jnp.nan),
    "tri": lambda x: jnp.tri(N) * jnp.where(jnp.tri(N, dtype=bool), x, jnp.nan),
    "tri times -inf": lambda x: jnp.where(jnp.tri(N, dtype=bool), x + (~jnp.tri(N, dtype=bool)) * -jnp.inf, 0.0),
    "tri over zero": lambda x: jnp.where(jnp.tri(N, dtype=bool), x, jnp.tri(N, dtype=bool) / 0.0),
    "tri over a column": lambda x: jnp.where(jnp.tri(N, dtype=bool), x, jnp.tri(N) / (x[:, :1] * 0)),
}

# XLA multiplies here, and so do tiles: NaN comes through.
MULTIPLIES = {
    "a row": lambda m, x: floats(m)[0] * x,
    "a column": lambda m, x: floats(m)[:, :1] * x,
    "a scalar": lambda m, x: floats(m)[0, 0] * x,
    "bfloat16": lambda m, x: m * x.astype(jnp.bfloat16),
    "bfloat16, then float32": lambda m, x: floats(m, jnp.bfloat16).astype(jnp.float32) * x,
    "int32, then float32": lambda m, x: floats(m, jnp.int32).astype(jnp.float32) * x,
    "where": lambda m, x: jnp.where(m, 1.0, 0.0) * x,
    "one minus": lambda m, x: (1 - floats(~m)) * x,
    "twice two": lambda m, x: floats(m) * 2.0 * x,
    "two masks": lambda m, x: (floats(m) * floats(m)) * x,
    "transposed": lambda m, x: floats(m.T).T * x,
    "cut": lambda m, x: floats(m)[1:] * x[1:],
    "squared": lambda m, x: floats(m) ** 2 * x,
    "negated": lambda m, x: -floats(m) * x,
    "a product of matrices": lambda m, x: floats(m) @ x,
    "by a vector": lambda m, x: floats(m) @ x[0],
    "a convolution": lambda m, x: lax.conv(floats(m)[None, None], x[None, None, :3, :3], (1, 1), "VALID"),
    "a convolution by a mask": lambda m, x: lax.conv(x[None, None], floats(m)[None, None, :3, :3], (1, 1), "VALID"),
    "a convolution of channels": lambda m, x: lax.conv(floats(m)[None], x[..., None], (1,), "VALID"),
    "a convolution by all of an image, channels first": lambda m, x: by_channel(floats(m), x, ("NCW", "OIW", "NCW")),
    "a convolution by one tap in steps": lambda m, x: by_channel(floats(m), x[:1], steps=2),
    "a convolution by taps that are a mask": lambda m, x: by_channel(x, floats(m)),
}


def tiled(mode, function, *arguments) -> np.ndarray:
    """What tiles give. In the default mode they run beside products that are worth it."""

    def beside(dense, *arguments):
        return function(*arguments), jnp.tanh(dense @ WEIGHTS) @ WEIGHTS if mode == "default" else dense

    explanation = aspen(beside).explain(WEIGHTS, *arguments)
    assert explanation.parts
    assert not explanation.fallbacks
    return np.asarray(aspen(beside)(WEIGHTS, *arguments)[0])


def selects(mode, function, finite, *arguments) -> None:
    """NaN behind the mask does not come through, and what is not behind it does."""
    with jax.disable_jit():
        expected = np.asarray(function(*map(jnp.asarray, finite)))
    ours = tiled(mode, function, *arguments)
    assert not np.isnan(ours).any()
    counts = np.isfinite(expected)
    np.testing.assert_allclose(ours[counts], expected[counts], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", SELECTS)
@pytest.mark.sweep
def test_a_product_with_a_mask_selects(either_mode, name):
    behind = np.where(MASK, NUMBERS, np.nan).astype(np.float32)
    selects(either_mode, SELECTS[name], (MASK, np.where(MASK, NUMBERS, 0).astype(np.float32)), MASK, behind)


@pytest.mark.parametrize("name", SELECTS_KNOWN)
def test_a_product_with_a_mask_that_is_known_selects(either_mode, name):
    selects(either_mode, SELECTS_KNOWN[name], [NUMBERS], NUMBERS)


@pytest.mark.parametrize("name", MULTIPLIES)
@pytest.mark.sweep
def test_a_mask_that_xla_takes_for_a_number_is_one(either_mode, name):
    assert np.isnan(tiled(either_mode, MULTIPLIES[name], MASK, np.full((N, N), np.nan, np.float32)).astype(np.float32)).all()


def root(x, mask):
    """Its gradient is infinite behind the mask, until a product with the mask takes that away."""
    return jnp.sqrt(floats(mask) * jnp.tanh(jnp.abs(x) @ jnp.abs(WEIGHTS[:N, :N]))).sum()


def test_float16_keeps_float32_between_two_operations_as_bfloat16_does_in_xla(either_mode):
    """XLA may: `xla_allow_excess_precision`. On CPU it does so for bfloat16, and rounds float16 after each operation."""

    def product(h):
        return (h * h).astype(jnp.float32)

    for dtype in (jnp.bfloat16, jnp.float16):
        numbers = jnp.asarray(np.float32([[300.0, 3.3, 1e-3, 2048.0]] * N), dtype)
        exact = np.asarray(numbers, np.float32) ** 2
        np.testing.assert_array_equal(tiled(either_mode, product, numbers), exact)


@pytest.mark.parametrize("inner", [root, jax.checkpoint(root)], ids=["root", "checkpoint"])
def test_gradients_of_a_decorated_function_select(either_mode, inner):
    def loss(function):
        return jax.jit(jax.grad(lambda x, mask: function(x, mask)))

    decorated = aspen(root) if inner is root else jax.checkpoint(aspen(root))
    expected = np.asarray(loss(inner)(NUMBERS, MASK))
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(loss(decorated)(NUMBERS, MASK), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("options", [[], ["--default", "--denormals"]], ids=["forced", "default"])
def test_pairs_of_operations_are_right(options):
    """In a process of its own: XLA computes for users at another optimisation level than for the other tests."""
    content = b"".join(Path(module.__file__).read_bytes() for module in (special_pairs, special_operations))
    seed = os.environ.get("ASPEN_TEST_SEED", str(zlib.crc32(content)))
    command = [sys.executable, special_pairs.__file__, "--seed", seed, "--share", "1" if SWEEPS_ALL else "0.006", *options]
    print(*command)
    kept = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "ASPEN_DISABLE_PASSES")}
    done = subprocess.run(command, cwd=ROOT, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["in tiles"] == 1
    assert not summary["left"]
    assert not summary["wrong"]


def test_the_page_names_each_difference():
    page = (ROOT / "docs/reference/special_values.md").read_text()
    for difference in (*special_pairs.AS_XLA, *special_pairs.UNDECIDED):
        assert f"| {difference} |" in page
