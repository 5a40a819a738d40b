"""Chains of products on GPUs: one kernel, whose values between stay in registers or shared memory. Nothing here ran on a GPU."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.ops.stack import STACK, parts_of
from aspen_jax.passes import stacks
from aspen_jax.targets.cuda.families.chain import ChainPlan
from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.products.chain_block import ChainBlock
from aspen_jax.targets.cuda.products.chain_rules import MOST_BETWEEN, RULES, why_not_allowed
from aspen_jax.targets.cuda.products.cores import FmaCore, MmaCore
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import exactly, ops_of, run_on_host
from tests.targets.cuda.test_cuda_kernels import assemble

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


@pytest.fixture
def always(monkeypatch):
    """Chains are made wherever they may be."""
    monkeypatch.setattr(stacks, "_LEAST_GAIN", math.inf)


@pytest.fixture
def rng():
    seed = np.random.SeedSequence().entropy
    print("seed", seed)  # pytest shows it where a test fails
    return np.random.default_rng(seed)


def shapes(*extents, dtype=jnp.float32):
    return [jax.ShapeDtypeStruct(extent, dtype) for extent in extents]


def conv(x, w, strides=(1, 1), padding="SAME", groups=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=numbers, feature_group_count=groups)


def mlp(x, *weights):
    for w in weights:
        x = jax.nn.relu(x @ w)
    return x


def chains_of(function, arguments, gpu=Gpu()):  # noqa: B008 - immutable
    return [op for op in ops_of(function, arguments, gpu) if op.family is STACK]


def plan_of(op) -> ChainPlan:
    plan = ChainPlan.of(parts_of(op), exact=op.exact)
    assert isinstance(plan, ChainPlan), plan
    return plan


def conv64(x, w, strides=(1, 1)):
    """A convolution with SAME padding, in float64."""
    pads = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(x.shape[1:3], strides, w.shape[:2], strict=True)]
    x = np.pad(x, ((0, 0), *((pad // 2, pad - pad // 2) for pad in pads), (0, 0)))
    extents = [(n - k) // s + 1 for n, s, k in zip(x.shape[1:3], strides, w.shape[:2], strict=True)]
    ends = [(n - 1) * s + 1 for n, s in zip(extents, strides, strict=True)]
    taps = np.ndindex(*w.shape[:2])
    return np.add.reduce([x[:, i : i + ends[0] : strides[0], j : j + ends[1] : strides[1]] @ w[i, j] for i, j in taps])


def relu64(x):
    return np.maximum(x, 0)


# Dtype, whether float32 is asked for, and by how much of the largest output a chain may be off: what is between is rounded.
PRECISIONS = [(jnp.float32, True, 1e-5), (jnp.float32, False, 4e-3), (jnp.bfloat16, False, 3e-2), (jnp.float16, False, 4e-3)]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("dtype", "exact", "tolerance"), PRECISIONS)
@pytest.mark.sweep
def test_chains_agree_with_float64(rng, dtype, exact, tolerance):
    def function(x, wide, image, ws, us, taps, points, bias):
        two = jax.nn.relu(jax.nn.relu(x @ ws[0] + bias[:33]) @ ws[1])
        three = jax.nn.relu(jnp.tanh(x @ ws[3]) @ ws[1] * 2) @ ws[2].T  # weights along the depth
        broad = jax.nn.relu(jax.nn.relu(wide @ us[0]) @ us[1] + bias)
        pixels = jax.nn.relu(conv(jax.nn.relu(conv(image, taps, (2, 1)) + bias[: points[0].shape[2]]), points[0]))
        more = conv(conv(jax.nn.relu(conv(image, points[2])), points[0]), points[1]) - 1
        return two, three, broad, pixels, more

    def expected(x, wide, image, ws, us, taps, points, bias):
        two = relu64(relu64(x @ ws[0] + bias[:33]) @ ws[1])
        three = relu64(np.tanh(x @ ws[3]) @ ws[1] * 2) @ ws[2].T
        broad = relu64(relu64(wide @ us[0]) @ us[1] + bias)
        pixels = relu64(conv64(relu64(conv64(image, taps, (2, 1)) + bias[: points[0].shape[2]]), points[0]))
        more = conv64(conv64(relu64(conv64(image, points[2])), points[0]), points[1]) - 1
        return two, three, broad, pixels, more

    # Odd channels of 16 bits are padded by a pass.
    last, first, middle = (17, 12, 20) if dtype == jnp.float32 else (16, 8, 24)
    extents = (
        (3, 47, 24),
        (77, 40),
        (2, 13, 9, first),
        [(24, 33), (33, 48), (21, 48), (24, 33)],
        [(40, 130), (130, 136)],
        (3, 3, first, middle),
        [(1, 1, middle, 40), (1, 1, 40, last), (1, 1, first, middle)],
        (136,),
    )

    def drawn(shape):
        return (rng.standard_normal(shape) / math.sqrt(shape[-2:][0])).astype(dtype)

    arguments: tuple[Any, ...] = tuple(list(map(drawn, item)) if isinstance(item, list) else drawn(item) for item in extents)
    ours = exactly(function) if exact else function
    found = chains_of(ours, arguments)
    assert [len(parts_of(op)) for op in found] == [2, 3, 2, 2, 3]
    theirs = expected(*jax.tree.map(lambda item: item.astype(np.float64), arguments))
    for own, other in zip(run_on_host(ours, arguments), theirs, strict=True):
        assert own.shape == other.shape
        assert own.dtype == dtype
        assert np.abs(own.astype(np.float64) - other).max() <= tolerance * np.abs(other).max()


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_what_is_not_finite_stays_in_its_row(rng, dtype):
    """A block has 32 columns or more: those that no product has would be log(0) here, and their product with zeros NaN."""

    def function(x, u, a, b, c):
        return jnp.log(jnp.abs(x @ a)) @ u, jax.nn.relu(x @ b) @ u, jax.nn.gelu(jnp.exp(jnp.tanh(x @ c)), approximate=False) @ u

    x, u, *ws = (rng.standard_normal(shape).astype(dtype) for shape in ((70, 9), (5, 7), (9, 5), (9, 5), (9, 5)))
    x[3, 4], x[65, 0], x[12, 8] = np.nan, np.inf, -np.inf
    arguments = x, u, *ws
    ops = ops_of(function, arguments)
    assert [plan_of(op).block.in_registers for op in ops] == [True, True, False]
    for ours, theirs in zip(run_on_host(function, arguments), jax.jit(function)(*arguments), strict=True):
        ours, theirs = ours.astype(np.float64), np.asarray(theirs, np.float64)
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        assert np.isfinite(np.delete(ours, [3, 12, 65], axis=0)).all()
        assert not np.isfinite(ours[3]).any()
    check_shapes(ops)


def check_shapes(ops):
    """Threads and shared memory are what Python says, in code that has been compiled already."""
    library = ctypes.CDLL(str(cuda_host.compiled(cuda_host.source(ops))))
    for number, op in enumerate(ops):
        threads, shared_bytes, *_ = (ctypes.c_int32 * 4).in_dll(library, f"op{number}_shape")
        block = plan_of(op).block
        assert (threads, shared_bytes) == (block.threads, block.shared_bytes)


REFUSED = {
    "it is no product": lambda x, w: conv(x, w[:, :, :4], groups=2) @ w[0, 0],
    "it has no elements": lambda x, w: (x @ w[0, 0, :, :0]) @ w[0, 0, :0],
    "one dtype": lambda x, w: lax.dot_general(x, w[0, 0].astype(jnp.float16), (((3,), (0,)), ((), ()))) @ w[0, 0],
    "not multiplied by one matrix": lambda x, w: jnp.einsum("nhwc,nhcd->nhwd", x @ w[0, 0], x[:, :, :8]),
    "it reads other rows": lambda x, w: conv(conv(x, w[:1, :1]), w),
    "no block owns all columns": lambda x, w: (x @ w.reshape(8, 72).repeat(4, axis=1)) @ w.reshape(72, 8).repeat(4, axis=0),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_chain_is_refused_with_a_reason(reason):
    (rule,) = (rule for rule in RULES if reason in rule.reason)
    ops = [
        op
        for op in ops_of(REFUSED[reason], shapes((2, 8, 8, 8), (3, 3, 8, 8)), Gpu(places=1))
        if op.family.name in ("matmul", "conv2d")
    ]
    assert len(ops) == 2
    assert rule.reason in str(why_not_allowed(ops))


def test_every_rule_refuses_something():
    assert len(REFUSED) == len(RULES)
    assert MOST_BETWEEN == 256


def block_of(function, *operands, dtype=jnp.bfloat16) -> ChainBlock:
    (op,) = chains_of(function, shapes(*operands, dtype=dtype))
    return plan_of(op).block


@pytest.mark.usefixtures("always")
def test_blocks_are_as_near_and_as_large_as_they_can_be():
    small, large = block_of(mlp, (500, 64), (64, 64), (64, 200)), block_of(mlp, (50_000, 64), (64, 64), (64, 200))
    assert small.cores == (MmaCore("Bf16", 64, 64, 16, 64, False), MmaCore("Bf16", 64, 64, 16, 64, False))
    assert large.cores == (MmaCore("Bf16", 128, 64, 16, 64, False), MmaCore("Bf16", 128, 64, 16, 64, False))
    assert small.in_registers
    assert large.in_registers
    # Too wide for registers; then too long a program for them.
    wide = block_of(mlp, (5_000, 64), (64, 200), (200, 64))
    assert not wide.in_registers
    assert wide.cores == (MmaCore("Bf16", 32, 256, 32, 32, False), MmaCore("Bf16", 32, 64, 16, 16, False))
    long = block_of(lambda x, w: jax.nn.gelu(x @ w, approximate=False) @ w, (5_000, 64), (64, 64))
    assert not long.in_registers
    # Float32 along the depth could not change places.
    assert block_of(mlp, (5_000, 64), (64, 64), (64, 64), dtype=jnp.float32).in_registers
    assert not block_of(lambda x, w: jax.nn.relu(x @ w) @ w.T, (5_000, 64), (64, 64), dtype=jnp.float32).in_registers
    exact = block_of(exactly(mlp), (5_000, 64), (64, 40), (40, 64), dtype=jnp.float32)
    assert exact.cores == (FmaCore(32, 64, False), FmaCore(32, 64, False))


@pytest.mark.parametrize(
    ("widths", "rows", "is_chain"),
    [
        ((96, 32, 96), 100_000, True),  # bound by memory
        ((256, 64, 16), 16_384, True),
        ((1024, 256, 1024), 100_000, False),  # bound by arithmetic, which warpgroups do faster
        ((64, 64, 64), 4, False),  # of a block most rows would be nothing
    ],
)
def test_a_chain_is_made_where_it_pays(widths, rows, is_chain):
    operands = shapes((rows, widths[0]), *itertools.pairwise(widths), dtype=jnp.bfloat16)
    assert bool(chains_of(mlp, operands)) == is_chain


def conflicts(addresses, nbytes: int) -> int:
    """Times that a warp's access of so many bytes a lane takes beyond the fewest: each of 32 banks serves 4 bytes at once."""
    phase = 128 // nbytes  # lanes that are served together
    extra = 0
    for first in range(0, len(addresses), phase):
        words = {(address + offset) // 4 for address in addresses[first : first + phase] for offset in range(0, nbytes, 4)}
        extra += int(np.bincount([word % 32 for word in words]).max()) - 1
    return extra


# Of a read of the rows between, and of a store of them, by dtype and columns.
CONFLICTS = {
    ("bfloat16", 32): (0, 4),
    ("bfloat16", 64): (0, 0),
    ("bfloat16", 96): (0, 1),
    ("bfloat16", 128): (0, 0),
    ("bfloat16", 200): (0, 0),
    ("float32", 32): (0, 0),
    ("float32", 96): (0, 0),
    ("float32", 200): (0, 0),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("dtype", "columns"), CONFLICTS)
def test_what_is_between_has_no_conflicts_of_banks(dtype, columns):
    """The distance of rows is C++'s: the bytes of shared memory, which another test holds to Python's, are made of it."""

    def function(x, w, u):
        return jax.nn.gelu(jnp.tanh(x @ w), approximate=False) @ u

    block = block_of(function, (5_000, 64), (64, columns), (columns, 64), dtype=jnp.dtype(dtype))
    assert not block.in_registers
    vector, own = 16 // block.itemsize, block.cores[0].columns
    stride = (block.width + vector) * block.itemsize
    squares = [line % 16 * stride + line // 16 * 16 for line in range(32)]
    across = own // vector
    stores = [thread // across * stride + thread % across * 16 for thread in range(32)]
    assert (conflicts(squares, 16), conflicts(stores, 16)) == CONFLICTS[dtype, columns]
    # As a check of the count: without the 16 bytes between rows every row of a square would meet in a bank.
    assert conflicts([line % 16 * (stride - 16) + line // 16 * 16 for line in range(32)], 16) >= 4


# What is compiled for GPUs, and the registers of a thread by NVRTC 13.5. They may become fewer.
COMPILED = {
    "in registers": (mlp, ((16384, 256), (256, 64), (64, 16))),
    "in shared memory": (mlp, ((32768, 576), (576, 128), (128, 64))),
    "three": (mlp, ((16384, 64), (64, 48), (48, 64), (64, 96))),
    "convolutions": (lambda x, w, u: conv(jax.nn.relu(conv(x, w)), u), ((32, 56, 56, 48), (3, 3, 48, 48), (1, 1, 48, 48))),
}
REGISTERS = {
    ("bfloat16", "sm_80"): (133, 96, 116, 100),
    ("bfloat16", "sm_90a"): (133, 96, 125, 100),  # the last: 96 before products of float32 by warpgroups came
    ("float32", "sm_80"): (119, 93, 112, 100),
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("dtype", "architecture"), REGISTERS)
@pytest.mark.sweep
def test_chains_compile_for_gpus_without_spills(dtype, architecture):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    ops = [op for function, extents in COMPILED.values() for op in chains_of(function, shapes(*extents, dtype=jnp.dtype(dtype)))]
    assert [plan_of(op).block.in_registers for op in ops] == [True, False, True, True]
    log = assemble(ops, architecture)
    found = {
        int(number): int(count) for number, count in re.findall(r"function 'op(\d+)'.*?Used (\d+) registers", log, re.DOTALL)
    }
    most = dict(enumerate(REGISTERS[dtype, architecture]))
    assert found.keys() == most.keys()
    assert all(found[number] <= most[number] for number in found), (found, most)
