"""On GPUs the last convolution of an NCHW network stores NCHW itself, so no launch transposes (passes/last_op.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import _engine, apu
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.transposed import TRANSPOSED, part_of
from aspen_jax.targets.cuda.code.kernel import kernel_of
from aspen_jax.targets.cuda.price import Gpu
from tests.content import generator
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check, exactly, ops_of, prepared, run_on_host, trace_of
from tests.targets.cuda.test_cuda_kernels import assemble

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")

RNG = generator(__name__)
NCHW = ("NCHW", "OIHW", "NCHW")
FEWEST_TILES = 264  # of a launch (cuda/launch_graph.h)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (RNG.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]) or 1)).astype(dtype)


def conv(x, w, strides=(1, 1), groups=1):
    return lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=NCHW, feature_group_count=groups)


def doubled(x):
    return x.repeat(2, 2).repeat(2, 3)


def unet(x, *weights):
    """Down twice and up again, with what lies beside joined: segments an image in NCHW."""
    w = iter(weights)
    first = jax.nn.relu(conv(x, next(w)))
    second = jax.nn.relu(conv(first, next(w), (2, 2)))
    low = jax.nn.relu(conv(second, next(w), (2, 2)))
    up = jax.nn.relu(conv(jnp.concatenate([doubled(low), second], 1), next(w)))
    up = jax.nn.relu(conv(jnp.concatenate([doubled(up), first], 1), next(w)))
    return conv(up, next(w))


def of_unet(width: int, extent: int, outputs: int, dtype: Any = np.float32) -> list[np.ndarray]:
    channels = ((3, width), (width, width), (width, width), (2 * width, width), (2 * width, width), (width, outputs))
    image = RNG.standard_normal((1, 3, extent, extent), np.float32).astype(dtype)
    return [image, *(normal(outs, ins, 3, 3, dtype=dtype) for ins, outs in channels)]


def transposed(ops):
    return [op for op in ops if op.family is TRANSPOSED]


def launches(function, arguments, gpu, disabled=()) -> int:
    (part,) = trace_of(function, arguments).parts
    graph = apu.build(prepared(part, gpu, disabled), 264, gpu)
    return max(_engine.cuda_schedule(graph.to_bytes(), 1, FEWEST_TILES)[0]) + 1


@pytest.mark.parametrize("outputs", [21, 5], ids=["by the convolution", "by the sum of its rows"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_an_image_to_image_network_has_a_launch_less(dtype, outputs):
    arguments, gpu = of_unet(32, 128, outputs, dtype), Gpu(clusters=True)
    assert launches(unet, arguments, gpu) == launches(unet, arguments, gpu, ("last_op",)) - 1
    last = ops_of(unet, arguments, gpu)[-1]
    assert last.output.shape == (1, outputs, 128, 128)
    if outputs == 5 and dtype == np.float32:
        # A convolution to few channels is one to more, of which neighbours are added up (ops/conv_few_outputs.py).
        assert last.family is BLOCK
        assert last.name != "output"
    else:
        assert last.family is TRANSPOSED
        assert part_of(last).output.shape == (1, 128, 128, outputs)


# By rows that are gathered or come in boxes, as a product of pixels, with an epilogue, by groups.
CASES: dict[str, Any] = {
    "3x3": lambda x, w: conv(x, w),
    "1x1": lambda x, w: conv(x, w[:, :, :1, :1]),
    "strided, with an epilogue": lambda x, w: jax.nn.relu(conv(x, w, (2, 1)) * 2 + w[:, 0, 0, 0][:, None, None]) - 1,
    "groups": lambda x, w: conv(x, w[:, : x.shape[1] // 2], groups=2),
}
# Dtype, whether float32 is asked for, by how much of the largest output a convolution may be off, and channels in and out.
PRECISIONS = [
    (np.float32, True, 1e-5, 24, 10),
    (np.float32, False, 4e-3, 32, 40),
    (jnp.bfloat16, False, 2e-2, 64, 40),
    (np.float16, False, 4e-3, 64, 10),
]


@pytest.mark.parametrize(("dtype", "exact", "tolerance", "ins", "outs"), PRECISIONS)
@pytest.mark.sweep
def test_results_are_those_of_float64(dtype, exact, tolerance, ins, outs):
    x, w = RNG.standard_normal((2, 7, 9, ins), np.float32).astype(dtype), normal(outs, ins, 3, 3, dtype=dtype)

    def function(x, w):
        return [case(x.transpose(0, 3, 1, 2), w) for case in CASES.values()]

    wanted = exactly(function) if exact else function
    assert len(transposed(ops_of(wanted, (x, w), Gpu(places=1)))) == len(CASES)
    found = run_on_host(wanted, (x, w), gpu=Gpu(places=1), warpgroups=True)
    with jax.enable_x64(True):
        expected = function(jnp.asarray(x, jnp.float64), jnp.asarray(w, jnp.float64))
        for ours, theirs in zip(found, map(np.asarray, expected), strict=True):
            assert ours.dtype == np.dtype(dtype)
            assert np.abs(ours.astype(np.float64) - theirs).max() <= tolerance * np.abs(theirs).max()


def test_slices_of_a_cluster_and_nan():
    x, w = RNG.standard_normal((1, 64, 6, 5), np.float32), normal(33, 64, 3, 3)
    x[0, 5, 3, 2] = np.nan
    gpu = Gpu(clusters=True, places=16)
    (op,) = transposed(ops_of(exactly(conv), (x, w), gpu))
    assert op.slices > 1
    (ours,) = run_on_host(exactly(conv), (x, w), gpu=gpu)
    assert np.isnan(ours[0, :, 2:5, 1:4]).all()
    assert np.isnan(ours).sum() == 33 * 9
    check(exactly(conv), np.nan_to_num(x), w, gpu=gpu)


def test_an_element_wise_op_stores_nchw_too():
    def function(x, w):
        y = conv(x, w)
        return jnp.tanh(y) + y[:, ::-1]  # no epilogue, since it reads other elements too

    x, w = RNG.standard_normal((2, 8, 6, 7), np.float32), normal(5, 8, 3, 3)
    last = ops_of(exactly(function), (x, w), Gpu(places=1))[-1]
    assert (last.family, last.output.shape) == (BLOCK, (2, 5, 6, 7))
    assert last.name != "output"
    check(exactly(function), x, w, gpu=Gpu(places=1))


def test_what_multiplies_no_blocks_is_copied():
    x, w = RNG.standard_normal((1, 24, 9, 8), np.float32), normal(24, 1, 3, 3)
    ops = ops_of(lambda x, w: conv(x, w, groups=24), (x, w), Gpu(places=1))
    assert not transposed(ops)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_they_compile_for_gpus_without_spills(architecture, dtype):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((1, 64, 56, 56), (64, 64, 3, 3))]
    gpu = Gpu(places=1)
    ops = [op for name in ("3x3", "1x1") for op in transposed(ops_of(CASES[name], shapes, gpu))]
    assert len(ops) == 2
    assert all(kernel_of(op).around for op in ops)
    assemble(ops, architecture)
