"""Attention in CUDA code under masks that are known beforehand: what they leave out is not computed, and that changes nothing."""

from __future__ import annotations

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import apu
from aspen_jax.ir.program import Operand, Program
from aspen_jax.ops.attention import ATTENTION
from aspen_jax.targets.cuda.code.image import compile_log, compiled
from aspen_jax.targets.cuda.code.source import kernels
from tests.ops.test_attention import MASKS, masked
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check, exactly, ops_of, random

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


def attention_of(function, *arguments):
    (op,) = (op for op in ops_of(function, arguments) if op.family is ATTENTION)
    return op


@pytest.mark.parametrize(
    ("dtype", "exact", "tolerance"), [(np.float32, True, 1e-5), (np.float32, False, 2e-3), (jnp.bfloat16, False, 1e-2)]
)
@pytest.mark.parametrize("how", ["added", "infinite"])
@pytest.mark.sweep
def test_causal_masks(how, dtype, exact, tolerance):
    function = functools.partial(masked, MASKS["causal"], how)
    function = exactly(function) if exact else function
    arguments = [random(i, 1, 150, 2, 8, dtype=dtype) for i in range(3)]
    assert attention_of(function, *arguments).attrs.reach == 1
    check(function, *arguments, tolerance=tolerance)


@pytest.mark.parametrize("operand", range(3))
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
@pytest.mark.parametrize("how", ["added", "infinite"])
@pytest.mark.parametrize(("held", "tolerance"), [(False, 1e-5), (True, 2e-3)])
def test_what_is_masked_still_spoils_what_it_would(operand, value, how, held, tolerance):
    function = functools.partial(masked, MASKS["causal"], how)
    function = function if held else exactly(function)
    arrays = [random(i, 1, 150, 2, 8) for i in range(3)]
    arrays[operand][0, 140, 1, 3] = value
    assert ("HeldCore" in cuda_host.source(ops_of(function, arrays))) == held
    check(function, *arrays, tolerance=tolerance)


# More queries than 32, whose weights stay in registers: odd numbers of queries, keys and columns, values along the keys, a bias,
# a row that is masked as a whole, a program behind the second product; and columns for which there are too few registers.
@pytest.mark.parametrize(("queries", "keys", "depth", "columns"), [(33, 7, 64, 24), (97, 200, 40, 64), (70, 65, 128, 130)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.bfloat16, 1e-2), (jnp.float16, 2e-3), (np.float32, 2e-3)])
@pytest.mark.sweep
def test_weights_in_registers(queries, keys, depth, columns, dtype, tolerance):
    def weights(q, k, bias, v):
        scores = jnp.einsum("qhd,khd->hqk", q, k, preferred_element_type=jnp.float32) + bias
        return jax.nn.softmax(scores, axis=-1).astype(v.dtype)

    def function(q, k, bias, v, other, along, add):
        own = jnp.einsum("hqk,khc->qhc", weights(q, k, bias, v), v)
        return own, jnp.einsum("hqk,hck->qhc", weights(other, k, bias, v), along) * 2 + add

    values = (keys, 2, columns), (queries, 2, depth), (2, columns, keys), (columns,)
    shapes = (queries, 2, depth), (keys, 2, depth), (2, queries, keys), *values
    q, k, bias, v, other, *others = (random(i, *shape, dtype=dtype) for i, shape in enumerate(shapes))
    bias = bias.astype(np.float32)
    bias[1, 5] = -np.inf
    bias[0, :, 3] = -np.inf
    arguments = q * dtype(depth**-0.5), k, bias, v, other * dtype(depth**-0.5), *others
    source = cuda_host.source(ops_of(function, arguments))
    # More than 64 columns do not stay in registers. Of float32 values along the keys cannot change places there.
    held = 0 if columns > 64 else 1 if dtype == np.float32 else 2
    assert source.count("HeldCore") == 2 * held
    check(function, *arguments, tolerance=tolerance)


# A step of 64 keys: 4 instructions of warpgroups for each 64 of the depth, and 4 for the values. A box is copied for each 64 of
# the depth and each 64 columns, before the first step and behind each.
@pytest.mark.parametrize(("depth", "wgmma", "boxes", "most"), [(64, 8, 4, 168), (128, 12, 8, 220), (72, 12, 8, 255)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_code_for_warpgroups(depth, wgmma, boxes, most, dtype):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")

    def attend(q, k, v, mask):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1).astype(dtype), v)

    shape = jax.ShapeDtypeStruct((2, 128, 3, depth), dtype)
    source = kernels([attention_of(attend, *[shape] * 3, jax.ShapeDtypeStruct((2, 1, 1, 128), np.bool_))])
    log, code = compile_log(source, "sm_90a"), compiled(source, "compute_90a").decode()
    assert "0 bytes stack frame, 0 bytes spill stores" in log
    assert "warning" not in log.lower()
    assert int(re.findall(r"Used (\d+) registers", log)[0]) <= most
    assert (code.count("wgmma.mma_async"), code.count("cp.async.bulk")) == (wgmma, boxes)


def test_keys_beyond_the_reach_are_not_computed():
    """An op without a mask that says it has one shows where keys end: at the first 64 after the last that may count."""

    def attend(q, k, v):
        return jnp.einsum("qk,kh->qh", jax.nn.softmax(jnp.einsum("qh,kh->qk", q, k), axis=-1), v)

    q, k, v = (random(i, 150, 8) for i in range(3))
    op = attention_of(exactly(attend), q, k, v)
    assert op.attrs.reach == 150
    op = op.replace(attrs=dataclasses.replace(op.attrs, reach=1, exponent=24))
    values = tuple(item.value for item in op.inputs)
    program = Program(values, (), (op,), (Operand.whole(op.output),))
    (ours,) = cuda_host.run(program, apu.build(program, 1, apu.Machine(shortest_tile_ns=1e9)), q, k, v)
    for rows, keys in ((slice(0, 64), 64), (slice(64, 128), 128), (slice(128, 150), 150)):
        np.testing.assert_allclose(ours[rows], attend(q[rows], k[:keys], v[:keys]), rtol=1e-4, atol=1e-5)
    k[149] *= 1e20
    (ours,) = cuda_host.run(program, apu.build(program, 1, apu.Machine(shortest_tile_ns=1e9)), q, k, v)
    np.testing.assert_allclose(ours, attend(q, k, v), rtol=1e-4, atol=1e-5)


# What suits warpgroups: 16-bit elements, read in whole vectors, 64 deep. Keys that do not fill a block, values along the keys,
# more columns than 64, a bias that masks a row as a whole; and other operands, which warps multiply all the same.
@pytest.mark.parametrize(
    ("queries", "keys", "depth", "columns", "suits"),
    [
        (70, 136, 64, 64, True),
        (64, 72, 136, 200, True),
        (65, 56, 72, 24, True),
        (70, 136, 56, 64, False),
        (40, 65, 64, 65, False),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.bfloat16, 1e-2), (jnp.float16, 2e-3)])
@pytest.mark.sweep
def test_attention_by_warpgroups(queries, keys, depth, columns, suits, dtype, tolerance):
    def weights(q, k, bias):
        scores = jnp.einsum("qhd,khd->hqk", q, k, preferred_element_type=jnp.float32) + bias
        return jax.nn.softmax(scores, axis=-1).astype(dtype)

    def function(q, other, k, bias, v, along):
        own = jnp.einsum("hqk,khc->qhc", weights(q, k, bias), v)
        return own, jnp.einsum("hqk,hck->qhc", weights(other, k, bias), along)

    shapes = *[(queries, 2, depth)] * 2, (keys, 2, depth), (2, queries, keys), (keys, 2, columns), (2, columns, keys)
    q, other, k, bias, v, along = (random(i, *shape, dtype=dtype) for i, shape in enumerate(shapes))
    bias = bias.astype(np.float32)
    bias[1, 5] = -np.inf
    bias[0, :, 3] = -np.inf
    arguments = q * dtype(depth**-0.5), other * dtype(depth**-0.5), k, bias, v, along
    source = cuda_host.source(ops_of(function, arguments))
    assert (source.count("HeldGroupCore"), source.count("MappedBuffers")) == (4 * suits, 2 * suits)
    check(function, *arguments, tolerance=tolerance, warpgroups=True)


def test_threads_copy_for_warpgroups_what_has_too_many_axes_for_a_map():
    def attend(q, k, v):
        scores = jnp.einsum("aqbcdh,akbcdh->abcdqk", q, k, preferred_element_type=jnp.float32)
        return jnp.einsum("abcdqk,kbacdh->aqbcdh", jax.nn.softmax(scores, axis=-1).astype(v.dtype), v)

    shapes = (2, 40, 3, 2, 2, 64), (2, 72, 3, 2, 2, 64), (72, 3, 2, 2, 2, 64)
    q, k, v = (random(i, *shape, dtype=jnp.bfloat16) for i, shape in enumerate(shapes))
    source = cuda_host.source(ops_of(attend, (q * jnp.bfloat16(0.125), k, v)))
    assert "HeldGroupCore" in source
    assert "MappedBuffers" not in source
    check(attend, q * jnp.bfloat16(0.125), k, v, tolerance=1e-2, warpgroups=True)


@pytest.mark.parametrize("operand", range(3))
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
@pytest.mark.sweep
def test_what_is_masked_still_spoils_what_it_would_by_warpgroups(operand, value):
    function = functools.partial(masked, MASKS["causal"], "added")
    arrays = [random(i, 1, 150, 2, 64, dtype=jnp.bfloat16) for i in range(3)]
    arrays[operand][0, 140, 1, 3] = value
    assert attention_of(function, *arrays).attrs.reach == 1
    assert "HeldGroupCore" in cuda_host.source(ops_of(function, arrays))
    check(function, *arrays, tolerance=2e-2, warpgroups=True)
