"""Blocks that a warp beside the warpgroups feeds: which ops have them, and what they compute, played by the host."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.cost.tiling import by_price
from aspen_jax.targets.cuda.code.image import compile_log
from aspen_jax.targets.cuda.code.source import kernels
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, considering
from aspen_jax.targets.cuda.products.streams import is_streamed, stream_block
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check, ops_of, random
from tests.tiled import TINY_TILES

GPU = Gpu(places=1, warpgroups=True)  # of so few places no depth is split
HOPPER = KernelChoices("sm_90a")

no_compiler = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _for_hopper(monkeypatch):
    monkeypatch.setenv(ARCHITECTURE_VARIABLE, "sm_90a")
    with considering(HOPPER):
        yield


def conv(x, w, strides=(1, 1), padding="SAME"):
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def product(*shape, dtype=jnp.bfloat16, columns=768):
    (op,) = ops_of(lambda x, w: x @ w, [jax.ShapeDtypeStruct(own, dtype) for own in (shape, (shape[-1], columns))], GPU)
    return op


def test_large_products_are_streamed():
    assert stream_block(product(4096, 768, columns=3072)) == (128, 256)
    # One block for each multiprocessor of the largest, two of others. Little of a block is empty.
    assert stream_block(product(4096, 768, columns=768)) is None
    assert stream_block(product(132 * 256, 64, columns=128)) == (128, 128)
    assert stream_block(product(132 * 256, 64, columns=64)) == (128, 64)
    assert stream_block(product(132 * 256 - 128, 64, columns=64)) is None
    assert stream_block(product(132 * 256, 64, columns=136)) == (128, 64)
    # A matrix counts, not a batch of them; rows of several axes are one matrix.
    assert stream_block(product(32, 132 * 8, 64, columns=64)) == (128, 64)
    assert stream_block(product(128 * 132, 64, columns=256, dtype=jnp.float32)) is None
    (op,) = ops_of(lambda x: x @ random(0, 64, 256), [jax.ShapeDtypeStruct((128 * 132, 64), jnp.float32)], GPU)
    assert op.rounded
    assert stream_block(op) == (128, 256)
    with considering(KernelChoices("sm_80")):
        assert stream_block(product(4096, 768, columns=3072)) is None


def test_a_streamed_tile_has_several_blocks():
    """So many that each multiprocessor has one tile: 384 blocks of 128 x 256 are 128 tiles of three."""
    rows, columns = by_price(product(4096, 768, columns=3072), Gpu().places, Gpu(warpgroups=True))[0]
    assert rows * columns == 128


@no_compiler
@pytest.mark.parametrize("machine", [TINY_TILES, Gpu()])
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.bfloat16, 1e-2), (jnp.float16, 2e-3)])
@pytest.mark.sweep
def test_products_and_convolutions(monkeypatch, dtype, tolerance, machine):
    """Columns across the depth and along it, batches, residuals, pixels in boxes, steps, and an NCHW result."""
    monkeypatch.setattr("aspen_jax.targets.cuda.products.streams.MULTIPROCESSORS", 1)

    def function(a, b, c, x, same, steps, pointwise, last):
        return [
            jax.nn.relu(a[0] @ b) + a[0, :, :1],
            jnp.einsum("bmk,nk->bmn", a, c),
            jax.nn.gelu(conv(x, same)),
            conv(x, steps, (1, 2)),
            conv(x, pointwise) + x,
            conv(x, last).transpose(0, 3, 1, 2),
        ]

    shapes = (
        (2, 250, 136),
        (136, 248),
        (500, 136),
        (2, 16, 16, 64),
        (3, 3, 64, 128),
        (2, 3, 64, 64),
        (1, 1, 64, 64),
        (3, 3, 64, 64),
    )
    operands = [random(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    ops = ops_of(function, operands, GPU)
    cores = re.findall(r"StreamedCore<\w+, (\d+, \d+)", cuda_host.source(ops))
    assert cores == ["128, 256", "128, 256", "128, 128", "128, 64", "128, 64", "128, 64"]
    check(function, *operands, tolerance=tolerance, machine=machine, gpu=GPU, warpgroups=True)


@no_compiler
def test_float32_by_known_weights(monkeypatch):
    monkeypatch.setattr("aspen_jax.targets.cuda.products.streams.MULTIPROCESSORS", 1)
    w, filters = random(0, 96, 120), random(1, 3, 3, 32, 64)

    def function(x, image):
        return x @ w, conv(image, filters)

    operands = random(2, 380, 96), random(3, 2, 16, 16, 32)
    assert all(map(is_streamed, ops_of(function, operands, GPU)))
    check(function, *operands, tolerance=2e-3, gpu=GPU, warpgroups=True)


@no_compiler
def test_infinities_and_nan_stay_where_they_are(monkeypatch):
    monkeypatch.setattr("aspen_jax.targets.cuda.products.streams.MULTIPROCESSORS", 1)
    x, w = (random(i, *shape).astype(jnp.bfloat16) for i, shape in enumerate(((380, 64), (64, 64))))
    x[7, 3], x[200, 0], x[379, 63] = np.nan, np.inf, -np.inf
    w[:, 5] = np.abs(w[:, 5])
    assert is_streamed(ops_of(jnp.matmul, (x, w), GPU)[0])
    check(jnp.matmul, x, w, tolerance=1e-2, gpu=GPU, warpgroups=True)


@pytest.mark.parametrize("columns", [256, 128, 64])
def test_code_of_streamed_blocks(columns):
    """Registers are those that the threads of a block can have, none is spilled, and no instruction of warpgroups waits."""
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    image, filters = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((64, 56, 56, 64), (3, 3, 64, columns)))
    (convolution,) = ops_of(lambda x, w: jax.nn.relu(conv(x, w)), (image, filters), GPU)
    ops = [product(128 * 132 * 2, 512, columns=columns), convolution]
    assert [stream_block(op) for op in ops] == [(128, columns)] * 2
    log = compile_log(kernels(ops), "sm_90a")
    assert "serialized" not in log
    for number in range(len(ops)):
        said = re.search(rf"function 'op{number}'.*?(\d+) bytes spill stores.*?Used (\d+) registers", log, re.DOTALL)
        assert said is not None, log
        assert (int(said[1]), int(said[2]) <= {256: 224, 128: 128, 64: 96}[columns]) == (0, True), log
