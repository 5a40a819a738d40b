"""Ops one behind the other as one op, of whose values between only some rows exist at a time."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import apu, aspen
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.ops.stack import STACK, parts_of
from aspen_jax.passes import run_passes, stacks
from tests.changed_words import most_are_refused
from tests.tiled import TINY_TILES, run_tiled


@pytest.fixture(autouse=True)
def _small_values_too():
    with mock.patch.multiple(stacks, _SMALLEST_BETWEEN=0, _HELD=np.inf):
        yield


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)


def bottleneck(x, w, v, shift, stride=(1, 1), padding="SAME", dilation=(1, 1), activation=jax.nn.relu6):
    numbers = ("NHWC", "HWIO", "NHWC")
    y = activation(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers) + shift)
    y = lax.conv_general_dilated(
        y, v, stride, padding, rhs_dilation=dilation, dimension_numbers=numbers, feature_group_count=y.shape[3]
    )
    return activation(y * shift)


def arguments(batch, image, channels, width, window, seed=0):
    x, w = normal(batch, *image, channels, seed=seed), normal(1, 1, channels, width, seed=seed)
    return x, w, normal(*window, 1, width, seed=seed), normal(width, seed=seed)


def traced_whole(function, *args):
    return frontend.trace(jax.make_jaxpr(function)(*args))


def traced(function, *args):
    (part,) = traced_whole(function, *args).parts
    return part


def program_of(function, *args, machine=None):
    return run_passes(traced(function, *args), machine=machine)


def run_on(machine, function, args, disabled=()):
    """The only result, by tiles of a machine on whose caches stacks depend."""
    trace = traced_whole(function, *args)
    (part,) = trace.parts
    graph = apu.build(run_passes(part, disabled, machine), 2, machine)
    graph.verify()
    values = dict(zip(trace.inputs, jax.tree.leaves(args), strict=True))
    return graph.run(*(values[value] for value in part.inputs))[0]


@pytest.mark.parametrize("machine", [TINY_TILES, Machine(), Machine(tiles_per_worker=1)])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((1, (9, 8), 5, 33, (3, 3)), {}),
        ((2, (40, 30), 8, 400, (3, 3)), {"stride": (2, 2)}),  # a tile takes several strips
        ((2, (23, 21), 3, 40, (5, 5)), {"stride": (2, 1), "padding": ((2, 1), (0, 3))}),
        ((1, (40, 17), 4, 600, (5, 3)), {"activation": jax.nn.silu}),
        ((1, (16, 15), 4, 20, (3, 3)), {"dilation": (3, 2), "padding": ((-1, 2), (3, -2))}),
        ((1, (40, 33), 2, 300, (2, 2)), {"stride": (5, 4)}),
        ((1, (5, 4), 2, 7, (3, 3)), {"padding": ((9, 9), (9, 9))}),  # windows that meet nothing but padding
    ],
)
def test_pairs_are_what_they_stand_for(shape, options, machine):
    args = arguments(*shape)

    def function(*args):
        return bottleneck(*args, **options)

    part = program_of(function, *args)
    assert [op.family for op in part.ops].count(STACK) == 1, str(part)
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(run_tiled(function, args, ("stacks",))[0])
    (ours,) = run_tiled(function, args, machine=machine)
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max(initial=0) <= 1e-6 * np.abs(expected).max(initial=1e-30)
    exact = np.asarray(jax.jit(lambda *a: bottleneck(*a, **{**options, "padding": "SAME"}))(*args))
    if "padding" not in options:  # XLA's convolution on CPU reads outside of the image where it crops and pads
        assert np.abs(ours - exact).max() <= 1e-5 * np.abs(exact).max()


def test_a_value_that_others_read_is_kept():
    x, w, v, shift = arguments(1, (9, 8), 5, 32, (3, 3))

    def function(x):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        z = lax.conv_general_dilated(y, v, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=32)
        return z + jnp.max(y) + shift

    assert not any(op.family is STACK for op in program_of(function, x).ops)


def test_any_changed_word_is_refused_or_right():
    graph = aspen(bottleneck).graph(*arguments(1, (9, 8), 5, 33, (3, 3)))
    most_are_refused(graph, STACK, [normal(*graph.value(number)[0]) for number in graph.operands])


def blocks(count, window=(3, 3), strides=(1, 1), padding="SAME", kind=lax.max, start=-np.inf):
    """BrainSlug's example: pools, each with a scale, a shift and an activation."""

    def function(x, scales, shifts):
        for scale, shift in zip(scales, shifts, strict=True):
            x = lax.reduce_window(x, np.float32(start), kind, (1, *window, 1), (1, *strides, 1), padding)
            x = jax.nn.relu(x * scale + shift)
        return x

    return function, lambda shape: (normal(*shape), normal(count, shape[3], seed=1), normal(count, shape[3], seed=2))


@pytest.mark.parametrize("cache_bytes", [1 << 20, 40_000])
@pytest.mark.parametrize("machine", [TINY_TILES, Machine(), Machine(tiles_per_worker=1)])
@pytest.mark.parametrize(
    ("shape", "count", "options"),
    [
        ((1, 13, 12, 33), 5, {}),
        ((2, 9, 8, 16), 2, {"window": (2, 3)}),
        ((1, 40, 17, 20), 3, {"strides": (2, 2)}),
        ((1, 21, 19, 7), 4, {"window": (1, 5)}),
        ((3, 30, 11, 40), 6, {"kind": lax.add, "start": 0.0}),
        ((1, 24, 5, 3), 8, {"padding": "VALID", "window": (3, 1)}),
        ((1, 6, 6, 5), 2, {"padding": ((0, 0), (7, 7), (5, 5), (0, 0))}),  # rows that meet nothing but padding
    ],
)
@pytest.mark.sweep
def test_pools_in_stacks_are_equal_in_every_bit(shape, count, options, machine, cache_bytes):
    function, arguments_of = blocks(count, **options)
    args = arguments_of(shape)
    machine = dataclasses.replace(machine, cache_bytes=cache_bytes)
    part = program_of(function, *args, machine=machine)
    found = [op for op in part.ops if op.family is STACK]
    assert sum(len(parts_of(op)) for op in found) >= count - 1, str(part)
    ours = run_on(machine, function, args)
    np.testing.assert_array_equal(ours, run_on(machine, function, args, ("stacks",)))
    np.testing.assert_allclose(ours, np.asarray(jax.jit(function)(*args)), rtol=1e-5, atol=1e-5)


def test_values_between_take_no_workspace():
    function, arguments_of = blocks(8)
    args = arguments_of((1, 56, 56, 64))
    with_stacks, without = (apu.build(run_passes(traced(function, *args), disabled), 2) for disabled in ((), ("stacks",)))
    assert with_stacks.workspace_bytes <= 0.2 * without.workspace_bytes
    assert with_stacks.stats()["bytes"] < 0.45 * without.stats()["bytes"]


def test_forty_blocks_move_what_they_read_and_write():
    """BrainSlug's example: 287 MB without stacks, 6.4 MB of input and output."""
    function, arguments_of = blocks(40)
    args = arguments_of((1, 112, 112, 64))
    for cache_bytes, most in ((1 << 20, 7e6), (512 << 10, 14e6)):
        machine = Machine(cache_bytes=cache_bytes, fewest_bytes=True)
        stats = apu.build(run_passes(traced(function, *args), (), machine), 1, machine).stats()
        assert stats["bytes"] <= most


def test_pools_whose_values_the_last_cache_holds_are_left():
    function, arguments_of = blocks(4)
    args = arguments_of((1, 112, 112, 64))
    with mock.patch.multiple(stacks, _SMALLEST_BETWEEN=1 << 20, _HELD=2):
        assert not any(op.family is STACK for op in program_of(function, *args).ops)
        assert any(op.family is STACK for op in program_of(function, *args, machine=Machine(last_cache_bytes=1 << 20)).ops)


def test_nan_and_infinities_pass_as_without_a_stack():
    function, arguments_of = blocks(4)
    x, scales, shifts = arguments_of((1, 17, 18, 20))
    x[0, 3, 4, 5], x[0, 9, 9, 9], x[0, 0, 0, 0] = np.nan, np.inf, -np.inf
    (ours,) = run_tiled(function, (x, scales, shifts))
    expected = run_tiled(function, (x, scales, shifts), ("stacks",))[0]
    np.testing.assert_array_equal(ours, expected)


def largest_of_windows(x, step):
    """Maxima of 3x3 windows, "SAME", by keys whose order is that of floats: -0 below +0, and NaN above all."""
    bits = np.where(np.isnan(x), np.float32(np.nan), x).view(np.int32)
    keys = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits)
    missing = [max((-(-size // step) - 1) * step + 3 - size, 0) for size in x.shape[1:3]]
    pads = [(0, 0), *((all_ // 2, all_ - all_ // 2) for all_ in missing), (0, 0)]
    keys = np.pad(keys, pads, constant_values=np.iinfo(np.int32).min)
    found = np.lib.stride_tricks.sliding_window_view(keys, (3, 3), (1, 2))[:, ::step, ::step].max(axis=(-2, -1))
    return np.where(found < 0, found ^ np.int32(0x7FFFFFFF), found).astype(np.int32).view(np.float32)


@pytest.mark.parametrize("machine", [TINY_TILES, Machine(), Machine(tiles_per_worker=1, cache_bytes=20_000)])
@pytest.mark.parametrize(("shape", "step"), [((1, 23, 19, 21), 1), ((2, 18, 27, 40), 2), ((1, 1, 2, 9), 1), ((1, 31, 1, 16), 1)])
def test_maxima_keep_nan_and_the_sign_of_zeros(shape, step, machine):
    rng = np.random.default_rng(np.random.SeedSequence().entropy)
    special = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf], np.float32)
    x = np.where(rng.random(shape) < 0.2, normal(*shape), rng.choice(special, shape, p=[0.1, 0.7, 0.01, 0.01, 0.01, 0.17]))
    x = x.astype(np.float32)
    scale = np.ones(shape[3], np.float32)

    def function(x):
        for _ in range(3):
            x = lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, step, step, 1), "SAME") * scale
        return x

    expected = x
    for _ in range(3):
        expected = largest_of_windows(expected, step)
    for disabled in ((), ("stacks",)):
        ours = run_on(machine, function, (x,), disabled)
        np.testing.assert_array_equal(ours, expected)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(ours)[numbers], np.signbit(expected)[numbers])


def test_element_wise_work_before_a_pool_joins_its_step():
    def function(x, y):
        z = jnp.tanh(x) * y
        return lax.reduce_window(z, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    args = normal(1, 20, 22, 24), normal(1, 20, 22, 24, seed=1)
    (op,) = program_of(function, *args).ops
    assert [part.family.kernel for part in parts_of(op)] == ["block", "pool"]
    np.testing.assert_array_equal(run_tiled(function, args)[0], run_tiled(function, args, ("stacks",))[0])


@pytest.fixture
def _chains_always(monkeypatch):
    monkeypatch.setattr(stacks, "_LEAST_GAIN", np.inf)


def layers(*matrices, activation=jax.nn.relu):
    def function(x):
        for matrix in matrices:
            x = activation(x @ matrix + matrix[0])
        return x

    return function


@pytest.mark.usefixtures("_chains_always")
@pytest.mark.parametrize("machine", [TINY_TILES, Machine()])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
@pytest.mark.parametrize(
    ("rows", "widths"),
    [
        ((50,), (33, 20, 7)),
        ((1,), (8, 40, 8)),
        ((3, 37), (16, 24, 70, 5)),
        ((2, 2, 9), (5, 6, 3)),
        ((300,), (20, 64, 64, 64, 16)),
    ],
)
def test_chains_of_products_are_equal_in_every_bit(rows, widths, dtype, machine):
    matrices = [normal(k, n).astype(dtype) / dtype(k**0.5) for k, n in itertools.pairwise(widths)]
    x = normal(*rows, widths[0]).astype(dtype)
    function = layers(*matrices)
    (op,) = program_of(function, x, machine=machine).ops
    assert len(parts_of(op)) == len(matrices)
    ours, apart = (run_on(machine, function, (x,), disabled) for disabled in ((), ("stacks",)))
    if len(x) > 1:  # a tile of a row and few columns sums in another order
        np.testing.assert_array_equal(ours, apart)
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(jax.jit(function)(x), np.float64)
    tolerance = 1e-5 if dtype == np.float32 else 8 * float(jnp.finfo(dtype).eps)
    assert np.abs(ours.astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.usefixtures("_chains_always")
def test_nan_and_infinities_pass_through_a_chain():
    x = normal(40, 16)
    x[3, 4], x[20, 1], x[21, 2] = np.nan, np.inf, -np.inf
    function = layers(normal(16, 24), normal(24, 8))
    ours, apart = (run_on(Machine(), function, (x,), disabled) for disabled in ((), ("stacks",)))
    np.testing.assert_array_equal(ours, apart)
    assert np.isnan(ours[3]).all()


@pytest.mark.usefixtures("_chains_always")
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("machine", [TINY_TILES, Machine()])
def test_a_pointwise_convolution_follows_any_other(strides, machine):
    w, v = normal(3, 3, 5, 24), normal(1, 1, 24, 40)

    def function(x):
        for kernel, stride in ((w, strides), (v, 1)):
            numbers = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers))
        return x

    x = normal(2, 19, 14, 5)
    (op,) = program_of(function, x, machine=machine).ops
    assert op.family is STACK
    ours, apart = (run_on(machine, function, (x,), disabled) for disabled in ((), ("stacks",)))
    # Apart, tiny tiles have 3 pixels. On AVX2 so few are summed in another order.
    np.testing.assert_allclose(ours, apart, rtol=0, atol=1e-6 * np.abs(apart).max())
    np.testing.assert_allclose(ours, np.asarray(jax.jit(function)(x)), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("_chains_always")
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, v: (x @ w) @ v + (x @ w).sum(),  # another reader
        lambda x, w, v: (x @ w).T @ v[:6],  # rows of the second are columns of the first
        lambda x, w, v: v[:, :6] @ (x @ w)[:6],  # the second multiplies by the result of the first
        lambda x, w, v: (x @ w) @ (x @ w).T,  # both are results
    ],
)
def test_products_that_are_no_chain(function):
    assert not any(op.family is STACK for op in program_of(function, normal(6, 8), normal(8, 12), normal(12, 12)).ops)


def test_a_chain_that_arithmetic_binds_is_left():
    x, matrices = normal(2048, 512), [normal(512, 512), normal(512, 512)]
    assert not any(op.family is STACK for op in program_of(layers(*matrices), x).ops)
