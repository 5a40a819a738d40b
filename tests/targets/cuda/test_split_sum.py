"""Sums whose slices a cluster of thread blocks adds up in one launch: the same bits as by two launches."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import apu
from aspen_jax.targets.cuda.passes.split_depth import cut_depth
from aspen_jax.targets.cuda.price import MOST_SLICES, Gpu
from benchmarks.in_float64 import in_float64
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import exactly, ops_of, prepared, random, trace_of
from tests.targets.cuda.test_cuda_kernels import assemble
from tests.tiled import TINY_TILES

NHWC = ("NHWC", "HWIO", "NHWC")

# Arithmetic is dear, and nothing else: as many slices as there may be.
EAGER = Gpu(
    flops_per_ns=1e-3,
    bytes_per_ns=1e6,
    tile_ns=0.0,
    launch_ns=1e15,
    shortest_tile_ns=1.0,
    places=1 << 20,
    fewest_chunks=1,
    add_ns=0.0,
    clusters=True,
)
IN_TWO = dataclasses.replace(EAGER, clusters=False)


def conv(x, w, strides=(1, 1)):
    return lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=NHWC)


def dense(x, w, b):
    return jax.nn.gelu(x @ w + b)


def batched(x, w):
    return jnp.einsum("bmk,bnk->bmn", x, w) * 2


def convolved(x, w, b):
    return jax.nn.relu(conv(x, w, (2, 1)) + b)


def pixels(x, w, b):
    return jax.nn.silu(conv(x, w) + b)


def few(x, w, b):
    return jnp.tanh(jnp.einsum("bk,bkn->bn", x, w) + b)


CASES = {
    "few rows": (dense, (3, 640), (640, 72), (72,)),
    "one row of each matrix": (few, (3, 256), (3, 256, 80), (80,)),
    "product": (dense, (65, 512), (512, 70), (70,)),
    "product of whole vectors": (dense, (128, 768), (768, 192), (192,)),
    "products, along the depth": (batched, (3, 50, 256), (3, 72, 256)),
    "convolution": (convolved, (2, 9, 8, 24), (3, 2, 24, 72), (72,)),
    "convolution in boxes": (convolved, (1, 10, 12, 64), (3, 3, 64, 64), (64,)),
    "pixels": (pixels, (1, 7, 9, 256), (1, 1, 256, 136), (136,)),
}


def arguments_of(name, dtype):
    _, *shapes = CASES[name]
    return [random(seed, *shape, dtype=dtype) for seed, shape in enumerate(shapes)]


def programs(name, dtype, exact):
    """The function's program with its slices added up in one launch, and in two; its inputs, and what it is in float64."""
    function, arguments = CASES[name][0], arguments_of(name, dtype)
    trace = trace_of(exactly(function) if exact else function, arguments)
    (part,) = trace.parts
    one = prepared(part, EAGER)
    cut = [cut_depth(op.replace(slices=1), op.slices, IN_TWO) if op.slices > 1 else (op,) for op in one.ops]
    two = one.replace(ops=tuple(op for ops in cut for op in ops or ()))
    values = dict(zip(trace.inputs, arguments, strict=True))
    expected = in_float64(function, *(item.astype(np.float32) for item in arguments))
    return one, two, [values[value] for value in part.inputs], expected


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("dtype", "exact", "warpgroups", "tolerance"),
    [(np.float32, True, False, 1e-5), (jnp.bfloat16, False, True, 1e-2)],
)
@pytest.mark.sweep
def test_one_launch_gives_the_bits_of_two(name, dtype, exact, warpgroups, tolerance):
    one, two, inputs, expected = programs(name, dtype, exact)
    (op,) = (op for op in one.ops if op.slices > 1)
    assert op.slices <= MOST_SLICES
    assert len(two.ops) == len(one.ops) + 1
    results = [
        cuda_host.run(program, apu.build(program, 2, TINY_TILES), *inputs, warpgroups=warpgroups)[0] for program in (one, two)
    ]
    assert results[0].tobytes() == results[1].tobytes()
    assert np.abs(results[0].astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize(("name", "dtype"), [*((name, jnp.bfloat16) for name in CASES), ("convolution", np.float32)])
def test_clusters_compile_without_spills(name, dtype):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    one, *_ = programs(name, dtype, False)
    assert any(op.slices > 1 for op in one.ops)
    assemble(one.ops, "sm_90a")


def test_a_slice_has_four_chunks_and_a_cluster_eight_blocks():
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((128, 4096), (4096, 1024))]
    (op,) = ops_of(jnp.matmul, shapes, Gpu(clusters=True))
    assert op.slices == MOST_SLICES
    short = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((128, 512), (512, 128))]
    (op,) = ops_of(jnp.matmul, short, dataclasses.replace(EAGER, fewest_chunks=4))
    assert op.slices == 2
    (op,) = ops_of(jnp.matmul, [jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)] * 2, Gpu(clusters=True))
    assert op.slices == 1, "it has tiles enough"


def test_without_clusters_sums_are_ops_of_their_own():
    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((128, 4096), (4096, 128))]
    ops = ops_of(jnp.matmul, shapes, Gpu())
    assert [op.family.name for op in ops] == ["matmul", "reduce"]
    assert all(op.slices == 1 for op in ops)
