"""Products of float32 by warpgroups: which weights are rounded beforehand, and that the numbers stay those of TF32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.ops.tf32 import rounded
from aspen_jax.targets.cuda.code.image import compiled
from aspen_jax.targets.cuda.code.source import kernels
from aspen_jax.targets.cuda.price import Gpu
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import exactly, ops_of, random, run_on_host
from tests.targets.cuda.test_cuda_kernels import assemble

needs_compiler = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")

WARPGROUPS = Gpu(places=1, warpgroups=True)  # of so few places no depth is split
CLUSTERS = Gpu(places=200, warpgroups=True, clusters=True)


def conv(x, w, strides=(1, 1), padding="SAME", dilation=(1, 1)):
    return lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def test_rounding_is_to_the_nearest_and_halves_go_away_from_zero():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 100_000, np.uint32, endpoint=False)
    bits[:1000] = bits[:1000] & ~np.uint32(0x1FFF) | np.uint32(0x1000)  # halves
    numbers = bits.view(np.float32)
    found = rounded(numbers)
    assert not np.any(found.view(np.uint32) & 0x1FFF)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(numbers))
    finite = np.isfinite(numbers) & (np.abs(numbers) > 1e-37)
    fraction, exponent = np.frexp(numbers[finite].astype(np.float64))
    away = np.sign(fraction) * np.floor(np.abs(fraction) * 2**11 + 0.5)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found[finite], np.ldexp(away, exponent - 11).astype(np.float32))
    ends = np.array([np.inf, -np.inf, 0.0, -0.0, np.finfo(np.float32).max], np.float32)
    np.testing.assert_array_equal(rounded(ends), np.array([np.inf, -np.inf, 0.0, -0.0, np.inf], np.float32))
    quiet = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)  # of which cutting off would leave an infinity
    assert np.isnan(rounded(quiet)).all()


# By what is known, in which order, and what else reads it.
def test_weights_are_rounded_that_nobody_needs_in_full():
    w, image = random(0, 64, 80), random(1, 3, 3, 32, 40)

    def flags(function, *arguments, gpu=WARPGROUPS):
        return [op.rounded for op in ops_of(function, arguments, gpu) if op.family.name in ("matmul", "conv2d")]

    x, pixels = random(2, 200, 64), random(3, 2, 9, 9, 32)
    assert flags(lambda x: x @ w, x) == [True]
    assert flags(lambda x: x @ w.T, random(4, 200, 80)) == [True]
    assert flags(lambda x: jnp.einsum("kn,mk->mn", w, x), x) == [True]
    assert flags(lambda x: jnp.einsum("mk,kn->nm", x, w), x) == [False]  # columns are the argument's
    assert flags(lambda x: conv(x, image), pixels) == [True]
    assert flags(lambda x: conv(x, image), pixels, gpu=Gpu(places=1)) == [False]  # no warpgroups
    assert flags(exactly(lambda x: x @ w), x) == [False]
    assert flags(lambda x, w: x @ w, x, w) == [False]  # an argument
    assert flags(lambda x: x @ w, x[:32]) == [False]  # few rows
    assert flags(lambda x: x @ w[:62], x[:, :62]) == [False]  # no whole vectors
    assert flags(lambda x: (x @ w, w * x[0, 0]), x) == [False]  # read in full
    assert flags(lambda x: (x @ w, x[:8] @ w), x) == [False, False]  # few rows are multiplied in float32
    twice = ops_of(lambda x, y: (x @ w, y @ w.T), [x, random(4, 200, 80)], WARPGROUPS)
    assert [op.rounded for op in twice] == [True, True]
    # Columns lie along the depth, and hold nothing beyond 10 bits.
    (op,) = ops_of(lambda x: conv(x, image), [pixels], WARPGROUPS)
    assert op.inputs[1].shape == image.shape
    assert op.inputs[1].view.strides() == (96, 32, 1, 288)


def products(x, deep, w, turned, wide, heads):
    return [
        jax.nn.relu(x @ w) + 1,
        jnp.tanh(x @ turned.T) + x[..., :73],
        deep @ wide,
        jnp.einsum("kn,bmk->bmn", w, x),
        jnp.einsum("bmhk,hkn->bmhn", x.reshape(*x.shape[:2], 2, -1), heads),
    ]


def products_exactly(x, deep, w, turned, wide, heads):
    x, deep = np.float64(rounded(x)), np.float64(rounded(deep))
    return [
        np.maximum(x @ w, 0) + 1,
        np.tanh(x @ turned.T),
        deep @ wide,
        np.einsum("kn,bmk->bmn", w, x),
        np.einsum("bmhk,hkn->bmhn", x.reshape(*x.shape[:2], 2, -1), heads),
    ]


# By odd columns, columns that lie either way, batches whose matrices differ, results turned around; blocks of every size; slices
# of the depth in a cluster.
@needs_compiler
@pytest.mark.parametrize(
    ("wanted", "block", "gpu"), [(1_000, "64, 64", WARPGROUPS), (4, "64, 128", WARPGROUPS), (1, "128, 128", CLUSTERS)]
)
@pytest.mark.sweep
def test_products_are_those_of_rounded_inputs(monkeypatch, wanted, block, gpu):
    monkeypatch.setattr("aspen_jax.targets.cuda.products.blocks.MULTIPROCESSORS", wanted)
    x, deep = random(0, 2, 70, 136), random(1, 250, 528)
    weights = random(2, 136, 72), random(3, 73, 136), random(4, 528, 128), random(5, 2, 68, 72)
    function = lambda x, deep: products(x, deep, *weights)  # noqa: E731
    ops = [op for op in ops_of(function, (x, deep), gpu) if op.family.name == "matmul"]
    assert all(op.rounded for op in ops)
    source = cuda_host.source(ops)
    assert f"BlockCore<RoundedTf32, {block}, 4, " in source
    assert source.count("MappedBuffers<") == len(ops)
    assert any(op.slices > 1 for op in ops) == gpu.clusters
    found = run_on_host(function, (x, deep), gpu=gpu, warpgroups=True)
    expected = products_exactly(x, deep, *(np.float64(rounded(item)) for item in weights))
    expected[1] = expected[1] + x[..., :73]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6 * np.abs(theirs).max(), rtol=2e-6)


# Boxes of pixels, channels that do not fill a chunk, steps, dilation, padding, pointwise; copies by threads where boxes do not
# pay; slices.
@needs_compiler
@pytest.mark.parametrize("gpu", [WARPGROUPS, CLUSTERS])
@pytest.mark.sweep
def test_convolutions_are_those_of_rounded_inputs(gpu):
    x = random(0, 3, 9, 13, 64)
    kernels_of = [
        random(i, *shape) / 8 for i, shape in enumerate(((3, 3, 64, 36), (3, 2, 60, 41), (1, 1, 64, 72), (3, 3, 36, 24)), 1)
    ]
    window = {"strides": (2, 1), "padding": ((1, 2), (0, 3)), "dilation": (1, 2)}

    def function(x, same, strided, pointwise, shallow):
        outs = conv(x, same), conv(x[..., :60], strided, **window), conv(x, pointwise), conv(x[..., :36], shallow)
        return [jax.nn.relu(outs[0]), *outs[1:]]

    ours = lambda x: function(x, *kernels_of)  # noqa: E731
    ops = [op for op in ops_of(ours, [x], gpu) if op.family.name in ("conv2d", "matmul")]
    assert all(op.rounded for op in ops)
    source = cuda_host.source(ops)
    assert "ConvInBoxes<" in source
    assert "ConvTile<" in source
    assert "ProductTile<" in source
    with jax.default_matmul_precision("highest"):
        expected = function(*map(jnp.asarray, (rounded(x), *map(rounded, kernels_of))))
    for found, theirs in zip(run_on_host(ours, [x], gpu=gpu, warpgroups=True), expected, strict=True):
        np.testing.assert_allclose(found, theirs, atol=2e-6 * float(jnp.abs(theirs).max()), rtol=2e-6)


@needs_compiler
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.float32(3.4e38)])
def test_what_is_not_finite_reaches_what_depends_on_it(value):
    x, w = random(0, 70, 64), random(1, 64, 72)
    x[3, 5], w[7, 11] = value, value
    (found,) = run_on_host(lambda x: x @ w, [x], gpu=WARPGROUPS, warpgroups=True)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (rounded(x).astype(np.float64) @ rounded(w).astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=1e-4, atol=1e-4)


# In blocks of every size, by tensor maps and by copies of threads, whole and in slices.
@pytest.mark.parametrize("wanted", [1_000_000, 50, 1])
@pytest.mark.sweep
def test_they_compile_without_spills(monkeypatch, wanted):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    monkeypatch.setattr("aspen_jax.targets.cuda.products.blocks.MULTIPROCESSORS", wanted)
    w, square, shallow = random(0, 512, 512), random(1, 3, 3, 128, 128), random(2, 3, 3, 36, 64)

    def function(a, x):
        image = jax.nn.relu(conv(x, square, (2, 2))), jnp.tanh(conv(x, square[1:2, 1:2])), conv(x[..., :36], shallow)
        return jax.nn.gelu(a @ w), image

    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((2, 512, 512), (2, 28, 28, 128))]
    ops = ops_of(function, shapes, WARPGROUPS)
    ops += [op for op in ops_of(function, shapes, CLUSTERS) if op.slices > 1]
    assert any(op.slices > 1 for op in ops)
    multiply = [op for op in ops if op.rounded]
    assemble(multiply, "sm_90a")
    virtual = compiled(kernels(multiply), "compute_90a").decode()
    for shape in ("m64n64k8", "m64n128k8"):
        if shape in virtual:
            assert f"wgmma.mma_async.sync.aligned.{shape}.f32.tf32.tf32" in virtual
    assert "wgmma.mma_async" in virtual
    assert "mma.sync.aligned.m16n8k8" not in virtual
    assemble([op for op in multiply if op.slices == 1], "sm_80")
