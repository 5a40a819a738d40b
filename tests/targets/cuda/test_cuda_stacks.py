"""Stacks on GPUs: pools and blocks whose values between lie in shared memory. The host runs the code; NVRTC compiles it."""

from __future__ import annotations

import dataclasses
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.ops.stack import STACK, parts_of
from aspen_jax.passes import stacks
from aspen_jax.targets.cuda.families.stack import StackShape
from aspen_jax.targets.cuda.price import Gpu
from tests.ops.test_stacks import blocks
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import ops_of, random, run_on_host
from tests.targets.cuda.test_cuda_kernels import assemble

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _small_values_too():
    with mock.patch.multiple(stacks, _SMALLEST_BETWEEN=0, _HELD=np.inf):
        yield


def longest(ops) -> int:
    return max((len(parts_of(op)) for op in ops if op.family is STACK), default=0)


@pytest.mark.parametrize("kib", [16, 44, 200])
@pytest.mark.parametrize(
    ("shape", "count", "options"),
    [
        ((1, 33, 30, 40), 5, {}),
        ((2, 19, 18, 16), 2, {"window": (2, 3)}),
        ((1, 40, 37, 20), 3, {"strides": (2, 2)}),
        ((1, 24, 25, 3), 4, {"padding": "VALID", "window": (3, 1)}),
        ((2, 30, 21, 40), 3, {"kind": lax.add, "start": 0.0}),
        ((1, 6, 6, 5), 2, {"padding": ((0, 0), (7, 7), (5, 5), (0, 0))}),  # rows that meet nothing but padding
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.sweep
def test_stacks_give_the_bits_of_their_parts(dtype, shape, count, options, kib):
    function, arguments_of = blocks(count, **options)
    x, scales, shifts = (item.astype(dtype) for item in arguments_of(shape))
    gpu = Gpu(cache_bytes=kib << 10)

    ops = ops_of(function, (x, scales, shifts), gpu)
    assert longest(ops) >= 2
    for op in ops:
        if op.family is STACK:
            assert 8 * StackShape.of(op).lanes <= kib << 10
    (ours,) = run_on_host(function, (x, scales, shifts), gpu=gpu)
    (apart,) = run_on_host(function, (x, scales, shifts), gpu=dataclasses.replace(gpu, most_parts=1))
    np.testing.assert_array_equal(ours, apart)


def test_nan_infinities_and_more_inputs_pass():
    def function(x, y):
        z = lax.reduce_window(jnp.tanh(x) * y, -np.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
        return lax.reduce_window(z + y, np.inf, lax.min, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    x, y = random(0, 1, 20, 18, 12), random(1, 1, 20, 18, 12)
    x[0, 3, 4, 5], y[0, 9, 9, 9], y[0, 0, 0, 0] = np.nan, np.inf, -np.inf
    ops = ops_of(function, (x, y))
    assert [len(parts_of(op)) for op in ops if op.family is STACK] == [3]
    (ours,) = run_on_host(function, (x, y))
    (apart,) = run_on_host(function, (x, y), gpu=Gpu(most_parts=1))
    np.testing.assert_array_equal(ours, apart)
    assert np.isnan(ours).any()
    assert np.isinf(ours).any()


def test_more_shared_memory_makes_longer_stacks():
    """The paper's 16 kB, what every device gives, and what a Hopper allows."""
    function, arguments_of = blocks(40)
    shapes = [jax.ShapeDtypeStruct(item.shape, item.dtype) for item in arguments_of((1, 112, 112, 64))]
    found = [ops_of(function, shapes, Gpu(cache_bytes=kib << 10)) for kib in (16, 44, 227)]
    assert 2 <= longest(found[0]) < longest(found[1]) < longest(found[2])
    assert len(found[0]) > len(found[1]) > len(found[2])


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_stacks_compile_for_gpus_without_spills(architecture, dtype):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    function, arguments_of = blocks(8)
    shapes = [jax.ShapeDtypeStruct(item.shape, dtype) for item in arguments_of((1, 112, 112, 64))]
    ops = ops_of(function, shapes)
    assert longest(ops) >= 2
    assemble(ops, architecture)
