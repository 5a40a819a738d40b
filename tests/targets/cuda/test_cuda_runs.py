"""Element-wise CUDA code by runs of adjacent elements: where it goes by runs, and that boxes may cut them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax.targets.cuda.code.image import compiled
from aspen_jax.targets.cuda.code.kernel import FAMILIES, Kernel
from aspen_jax.targets.cuda.code.source import kernels
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check, ops_of, random, run_on_host

needs_compiler = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


def elementwise(x, y, row, column, flags):
    scaled = jax.nn.relu(x * row + column) * 2
    return (
        scaled,
        jnp.where(flags, x, y),
        x[:, ::-1] + y,
        x.T.reshape(x.shape) - y,
        (x[:, 8:] + y[:, :-8]).astype(jnp.float32),  # begins at a multiple
        x[:, 3:19] * 3,  # does not
        x.astype(jnp.float32) > 0,
    )


def moves(x, y, table, i):
    return (
        jnp.concatenate([x, y[:2], x[1:]]),
        jnp.concatenate([x[:, :8], y, x[:, 16:]], 1),
        jnp.concatenate([x[:, :7], y[:, 1:]], 1),
        table[i],
        jnp.take(table, i, axis=0, mode="fill", fill_value=7),
        jnp.take(table, i, axis=1, mode="clip"),
    )


def arguments(dtype):
    x, y, row = (random(seed, 6, 24, dtype=dtype) for seed in range(3))
    flags = np.random.default_rng(4).random((6, 24)) > 0.5
    return x, y, row[0], row[:, :1], flags


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
def test_elements(dtype):
    check(elementwise, *arguments(dtype), tolerance=1e-5 if dtype == np.float32 else 2e-2)


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8])
def test_moves(dtype):
    x, y, *_ = ((10 * item).astype(dtype) for item in arguments(np.float32))
    table = (10 * random(9, 11, 16)).astype(dtype)
    check(moves, x, y, table, np.array([3, 0, 10, -1, 12, 5], np.int32))


def runs(function, *operands):
    """How many elements each op's run has; 1: none."""
    kernels = [FAMILIES[op.family.name](op) for op in ops_of(function, operands)]
    return [kernel.run for kernel in kernels if isinstance(kernel, Kernel)]


def test_runs_take_up_to_16_bytes():
    x, narrow = random(0, 5, 64), random(0, 5, 64, dtype=jnp.bfloat16)
    assert runs(jnp.exp, x) == [4]
    assert runs(jnp.exp, narrow) == [8]
    assert runs(lambda x: jnp.exp(x).astype(jnp.bfloat16), x) == [4]
    assert runs(jnp.exp, x[:, :62]) == [2]
    assert runs(jnp.exp, x[:, :63]) == [1]
    assert runs(lambda x, i: x[i], narrow, np.arange(3, dtype=np.int32))[-1:] == [8]
    assert runs(lambda x: jnp.concatenate([x, x[1:]]), x) == [4]
    assert runs(lambda x: jnp.concatenate([x[:, :6], x[:, 2:]], 1), x) == [2]


# By pairs, by runs of an odd length, by the last instruction of a program and in the middle of one.
@needs_compiler
@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
def test_floats_of_16_bits_are_rounded_to_the_nearest(dtype):
    bits = np.random.default_rng(0).integers(0, 2**32, (40, 24), np.uint32, endpoint=False)
    bits[:10] = bits[:10] & np.uint32(0xFFFF0000) | np.uint32(0x8000)  # halves of bfloat16
    bits[10:20] = bits[10:20] & np.uint32(0xFFFFE000) | np.uint32(0x1000)  # of float16
    bits[20:30, :12] = np.linspace(0x38000000, 0x47800000, 120).astype(np.uint32).reshape(10, 12)  # in float16's range
    x = bits.view(np.float32)
    x[0, :6] = np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(np.float32).max
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(dtype)

    def function(x):
        return x.astype(dtype), x[:, 1:].astype(dtype), jnp.abs(x.astype(dtype).astype(jnp.float32))

    whole, odd, middle = run_on_host(function, [x])
    for found, theirs in ((whole, expected), (odd, expected[:, 1:]), (middle, np.abs(expected.astype(np.float32)))):
        known = ~np.isnan(theirs)
        np.testing.assert_array_equal(~np.isnan(found), known)
        assert found[known].tobytes() == theirs[known].tobytes()


def test_two_floats_are_rounded_by_one_instruction():
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    x = random(0, 64, 256)
    ops = ops_of(lambda x, y: (jnp.tanh(x).astype(jnp.bfloat16), y * 2 + 1), [x, x.astype(jnp.bfloat16)])
    text = compiled(kernels(ops), "compute_80").decode()
    assert "cvt.rn.bf16x2.f32" in text
    assert "cvt.rn.bf16.f32" not in text  # of a slower unit
    # A store rounds: nothing before it does.
    assert "as_bf16_f" not in kernels(ops[:1])
