"""Convolutions of images of 3 channels on a GPU: their lines of taps are read in whole vectors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.products.conv_tile import ConvTileShape
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check, ops_of, random, run_on_host
from tests.targets.cuda.test_cuda_kernels import assemble

needs_compiler = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")

GPU = Gpu(places=1)
BF16: Any = jnp.bfloat16


def conv(x, w, strides=(2, 2), padding: Any = "SAME", layout="NHWC"):
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=(layout, "HWIO", "NHWC"))


def first(function, *arguments):
    """What runs before the convolution, its attributes' padding, and how its taps are read: width, channels, length, vector."""
    ops = ops_of(function, arguments, GPU)
    (op,) = (op for op in ops if op.family.name == "conv2d")
    shape = ConvTileShape.of(op)
    assert shape is not None
    before = [item.family.name for item in ops[: ops.index(op)]]
    return before, op.attrs.padding, (shape.window.kernel_width, shape.channels, shape.tap, shape.input_vector)


def image(*shape, dtype: Any = BF16):
    return random(0, *shape, dtype=dtype)


def test_an_image_gets_a_fourth_channel_where_lines_are_read_in_whole_vectors_then():
    w = {size: random(size, size, size, 3, 16, dtype=BF16) for size in (2, 3, 7, 16)}
    seven = ["pad"], (2, 3, 0, 0), (1, 28, 32, 8)
    assert first(lambda x: conv(x, w[7]), image(2, 30, 30, 3)) == seven
    assert first(lambda x: conv(x, w[7], layout="NCHW"), image(2, 3, 30, 30)) == seven
    assert first(lambda x: conv(x, w[3], padding="VALID"), image(2, 30, 31, 3)) == (["pad"], (0, 0, 0, 0), (1, 12, 16, 8))
    # Patches are whole vectors as they lie.
    assert first(lambda x: conv(x, w[16], (16, 16), "VALID"), image(3, 64, 64, 3)) == ([], (0, 0, 0, 0), (1, 48, 48, 8))
    # A step of one pixel is no whole vector; nor is that of float32 asked for.
    assert first(lambda x: conv(x, w[3], (1, 1)), image(2, 30, 30, 3)) == ([], (1, 1, 1, 1), (3, 3, 3, 1))
    full = first(lambda x: conv(x, w[3].astype(np.float32)), image(2, 30, 30, 3, dtype=np.float32))
    assert full[0] == []


@needs_compiler
@pytest.mark.parametrize("warpgroups", [False, True])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.sweep
def test_the_first_layer(layout, warpgroups):
    def function(x, seven, three, even, patches, bias):
        outs = [
            conv(x, seven, layout=layout),
            conv(x, three, padding="VALID", layout=layout),
            conv(x, even, (1, 2), ((0, 0), (-2, 1)), layout),
            conv(x, patches, (8, 8), "VALID", layout),
        ]
        return [jax.nn.relu(outs[0] + bias), *outs[1:]]

    shapes = (7, 7, 3, 72), (3, 3, 3, 16), (2, 5, 3, 8), (8, 8, 3, 64), (72,)
    weights = [random(i, *shape, dtype=BF16) for i, shape in enumerate(shapes, 1)]
    x = image(2, 24, 40, 3) if layout == "NHWC" else image(2, 3, 24, 40)
    check(function, x, *weights, tolerance=1e-2, gpu=GPU, warpgroups=warpgroups)


@needs_compiler
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_pixel_reaches_only_outputs_whose_window_has_it(value):
    w = random(1, 3, 3, 3, 8, dtype=BF16)
    x = image(1, 16, 16, 3)
    x[0, 5, 6, 1] = value
    (found,) = run_on_host(lambda x: conv(x, w, padding="VALID"), [x], gpu=GPU, warpgroups=True)
    expected = np.asarray(conv(x, w, padding="VALID"))
    np.testing.assert_array_equal(np.isfinite(found.astype(np.float32)), np.isfinite(expected.astype(np.float32)))
    assert np.isfinite(found.astype(np.float32)).any()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_it_compiles_without_spills(architecture):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    w = random(1, 7, 7, 3, 64, dtype=BF16)
    ops = ops_of(lambda x: jax.nn.relu(conv(x, w)), [jax.ShapeDtypeStruct((32, 224, 224, 3), jnp.bfloat16)], GPU)
    assemble(ops, architecture)
