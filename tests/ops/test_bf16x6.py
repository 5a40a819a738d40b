"""Float32 by matrix units for bfloat16: against float64, regions, infinities and NaNs, what it is kept from, files that lie.

On machines without such units the same op multiplies by vectors: all of these tests run there too.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from aspen_jax import _engine, apu
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Operand, Program, Value
from aspen_jax.ops.bf16x6 import BF16X6, BF16X6_WEIGHTS, Bf16x6Attrs, from_parts, parts_shape, to_parts
from aspen_jax.ops.builder import Builder
from aspen_jax.passes import bf16x6, run_passes
from tests.changed_words import most_are_refused
from tests.reached import regions_hold_what_is_reached
from tests.rotation import examples
from tests.tiled import TINY_TILES

# Of the largest output; a middle part that is left out would cost 2^-9, a low one 2^-17.
TOLERANCE = 3e-6

UNITS = Machine(bf16_units=True)
TINY_UNITS = dataclasses.replace(TINY_TILES, bf16_units=True)


def traced(function, *arguments) -> Program:
    jaxpr = jax.make_jaxpr(function)(*arguments)
    (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
    return part


def kinds(function, *arguments, machine=UNITS) -> list[str]:
    return [op.family.name for op in run_passes(traced(function, *arguments), machine=machine).ops]


def run(function, *arguments, machine=UNITS) -> np.ndarray:
    """The function's output by a tile graph, whatever the cost model says of these units."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    (part,) = trace.parts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "are_cheaper", lambda self, ops, others: ops[-1].family is BF16X6)
        patch.setattr(bf16x6, "_FEWEST_CHANNELS", 1)
        patch.setattr(bf16x6, "_FEWEST_COLUMNS", 1)
        program = run_passes(part, machine=machine)
    assert "bf16x6" in [op.family.name for op in program.ops]
    graph = apu.build(program, 2, machine)
    graph.verify()
    values = dict(zip(trace.inputs, arguments, strict=True))
    (result,) = graph.run(*(values[value] for value in part.inputs))
    return result


def normal(*shape):
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def in_float64(function, *arguments):
    with jax.enable_x64(True):
        return np.asarray(function(*(np.asarray(item, np.float64) for item in arguments)))


def is_close(result, exact):
    assert result.shape == exact.shape
    assert result.dtype == np.float32
    return np.abs(result - exact).max(initial=0) <= TOLERANCE * np.abs(exact).max(initial=1)


def finished(y, epilogue, bias, residual):
    if epilogue == "nothing":
        return y
    if epilogue == "square":
        return y * y
    y = y + bias
    if epilogue == "gelu":
        return jax.nn.gelu(y, approximate=False)
    return jax.nn.relu(y + residual) if epilogue == "bias, residual, relu" else y


EPILOGUES = st.sampled_from(["nothing", "bias", "bias, residual, relu", "gelu", "square"])
MACHINES = st.sampled_from([TINY_UNITS, UNITS])


@examples(40)
@given(
    st.sampled_from([(), (1,), (3,), (2, 1), (2, 3)]),
    st.integers(1, 70),
    st.sampled_from([2, 6, 32, 62, 130, 700]),
    st.sampled_from([1, 16, 31, 64, 90]),
    EPILOGUES,
    MACHINES,
    st.booleans(),
    st.integers(0, 2**31),
)
def test_products_against_float64(lead, rows, inner, columns, epilogue, machine, is_constant, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*lead, rows, inner), np.float32)
    w = rng.standard_normal((inner, columns), np.float32) / np.float32(np.sqrt(inner))
    bias = rng.standard_normal(columns, np.float32)
    residual = rng.standard_normal((*lead, rows, columns), np.float32)

    def function(x, w, bias, residual):
        return finished(x @ w, epilogue, bias, residual)

    if is_constant:
        result = run(lambda x: function(x, w, bias, residual), x, machine=machine)
    else:
        result = run(lambda x, w: function(x, w, bias, residual), x, w, machine=machine)
    assert is_close(result, in_float64(function, x, w, bias, residual))


def convolved(x, w, strides=(1, 1), padding: Any = "SAME", dilation=(1, 1), precision=None):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=numbers, precision=precision)


@examples(60)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(1, 20), st.integers(1, 40)),
    st.sampled_from([(1, 1), (3, 3), (1, 3), (2, 2), (5, 1)]),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.tuples(*[st.integers(-1, 3)] * 4),
    st.sampled_from([1, 3, 32, 40, 70]),
    st.sampled_from([1, 20, 32, 70]),
    EPILOGUES,
    MACHINES,
    st.booleans(),
    st.integers(0, 2**31),
)
def test_convolutions_against_float64(
    batch, image, window, strides, dilation, padding, inner, columns, epilogue, machine, is_constant, seed
):
    sides = zip(image, (padding[:2], padding[2:]), strict=True)
    assume(all(size + min(before, 0) + min(after, 0) > 0 for size, (before, after) in sides))
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *image, inner), np.float32)
    w = rng.standard_normal((*window, inner, columns), np.float32) / np.float32(np.sqrt(inner * math.prod(window)))
    bias = rng.standard_normal(columns, np.float32)

    def plain(x, w):
        return convolved(x, w, strides, (padding[:2], padding[2:]), dilation)

    shape = jax.eval_shape(plain, x, w).shape
    assume(0 not in shape)
    residual = rng.standard_normal(shape, np.float32)

    def function(x, w, bias, residual):
        return finished(plain(x, w), epilogue, bias, residual)

    if is_constant:
        result = run(lambda x: function(x, w, bias, residual), x, machine=machine)
    else:
        result = run(lambda x, w: function(x, w, bias, residual), x, w, machine=machine)
    assert is_close(result, in_float64(function, x, w, bias, residual))


@pytest.mark.parametrize(
    ("rows", "inner", "columns"),
    [(128, 768, 768), (197, 768, 2304), (130, 3072, 768), (700, 1200, 128)],
)
def test_error_of_networks_sizes(rows, inner, columns):
    """The last one does not fit the band that is split at a time."""
    x, w = normal(1, rows, inner), normal(inner, columns)
    assert kinds(lambda x: x @ w, x) == ["bf16x6"]
    exact = x.astype(np.float64) @ w
    assert np.abs(run(lambda x: x @ w, x) - exact).max() <= 4e-6 * np.abs(exact).max()


@pytest.mark.parametrize("shape", [(1, 3, 400, 256), (1, 90, 90, 64), (2, 5, 5000, 3)])
def test_bands_of_large_images(shape):
    """Lines, or parts of lines, that are split at a time."""
    x, w = normal(*shape), normal(3, 3, shape[3], 40)
    assert is_close(run(lambda x: convolved(x, w), x), in_float64(convolved, x, w))


def test_results_do_not_depend_on_where_tiles_are_cut():
    x, w = normal(2, 15, 17, 100), normal(3, 3, 100, 70)
    fine, coarse = (run(lambda x: convolved(x, w), x, machine=machine) for machine in (TINY_UNITS, UNITS))
    np.testing.assert_array_equal(fine, coarse)


def test_a_nan_stays_in_its_row():
    x, w = normal(77, 256), normal(256, 192)
    changed = x.copy()
    changed[5, 7] = np.nan
    changed[9] = np.frombuffer(b"\xff\xff\xff\x7f", np.float32)  # a NaN that rounding would make a zero
    before, after = (run(lambda x: x @ w, item) for item in (x, changed))
    assert np.isnan(after[[5, 9]]).all()
    np.testing.assert_array_equal(np.delete(after, [5, 9], 0), np.delete(before, [5, 9], 0))


@pytest.mark.parametrize("is_constant", [True, False])
def test_infinities_and_the_largest_numbers_are_as_in_float32(is_constant):
    x, w = np.ones((4, 40), np.float32), np.full((40, 33), 0.25, np.float32)
    x[0, 3], x[1, 4], x[2, 5], x[3, 6] = np.inf, -np.inf, np.finfo(np.float32).max, -np.finfo(np.float32).max
    w[:, 1], w[:, 2], w[7, 3] = 0, -0.5, np.inf
    with np.errstate(all="ignore"):
        exact = x @ w
    result = run(lambda x: x @ w, x) if is_constant else run(lambda x, w: x @ w, x, w)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
    np.testing.assert_array_equal(np.isinf(result), np.isinf(exact))
    np.testing.assert_allclose(result, exact, rtol=1e-5)


def test_weights_are_read_in_any_order():
    x, w = normal(1, 128, 12, 64), normal(768, 12, 64)
    assert kinds(lambda x: jnp.einsum("bthd,ehd->bte", x, w), x) == ["bf16x6"]
    exact = np.einsum("bthd,ehd->bte", x.astype(np.float64), w)
    for result in (
        run(lambda x: jnp.einsum("bthd,ehd->bte", x, w), x),
        run(lambda x, w: jnp.einsum("bthd,ehd->bte", x, w), x, w),
    ):
        assert np.abs(result - exact).max() <= 4e-6 * np.abs(exact).max()


def test_weights_that_are_given_are_parted_once():
    x, w = normal(2, 128, 768), normal(768, 768)
    found = kinds(lambda x, w: [x[0] @ w, x[1] @ w], x, w)
    assert sorted(found) == ["bf16x6", "bf16x6", "bf16x6_weights"]


def test_channels_are_scaled_as_they_are_read():
    """Squeeze and excite."""
    x, w, v = normal(2, 28, 28, 130), normal(1, 1, 130, 128), normal(130, 130)

    def function(x, w, v):
        scale = jax.nn.sigmoid(x.mean((1, 2)) @ v)
        return convolved(x * scale[:, None, None], w)

    ops = run_passes(traced(lambda x: function(x, w, v), x), machine=UNITS).ops
    assert [op.attrs.scaled for op in ops if op.family is BF16X6] == [True]
    assert is_close(run(lambda x: function(x, w, v), x), in_float64(function, x, w, v))


def test_a_scale_of_a_product_stays_an_op():
    x, w, scale = normal(2, 128, 256), normal(256, 256), normal(256)
    assert is_close(run(lambda x: (x * scale) @ w, x), in_float64(lambda x, w, s: (x * s) @ w, x, w, scale))


W = normal(768, 768)
V = normal(3, 3, 256, 256)
FEW = normal(768, 40)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: jnp.matmul(x, W, precision="highest"), [normal(1, 128, 768)]),
        (lambda x: jnp.matmul(x, W, precision=lax.Precision.HIGH), [normal(1, 128, 768)]),
        (lambda x: convolved(x, V, precision="highest"), [normal(1, 14, 14, 256)]),
        (lambda x: convolved(x, jnp.asarray(V, jnp.bfloat16)), [normal(1, 14, 14, 256).astype(jnp.bfloat16)]),
        (lambda x: x @ W, [normal(768)]),
        (lambda x: x @ FEW, [normal(1, 128, 768)]),
        (lambda x, y: x @ (y * y), [normal(128, 768), W]),
        (lambda x, y: x @ y, [normal(4, 128, 64), normal(4, 64, 128)]),
    ],
    ids=[
        "highest",
        "high",
        "convolution highest",
        "bfloat16",
        "vector",
        "few columns",
        "what an op computes",
        "batches of matrices",
    ],
)
def test_kept_away_from(function, arguments):
    assert "bf16x6" not in kinds(function, *arguments)


def test_kept_away_from_machines_without_such_units():
    assert "bf16x6" not in kinds(lambda x: x @ W, normal(1, 128, 768), machine=Machine())
    assert Machine.unmeasured().bf16_units == (_engine.cpu_target() == "amx")


def test_default_precision_of_jax_forbids_it_too():
    with jax.default_matmul_precision("highest"):
        assert "bf16x6" not in kinds(lambda x: x @ W, normal(1, 128, 768))


def test_parts_are_those_of_any_weights():
    w = normal(2, 3, 40, 50)
    parts = to_parts(w, np)
    assert parts.shape == parts_shape((2, 3), 40, 50)
    assert parts.dtype == jnp.bfloat16
    np.testing.assert_allclose(from_parts(jnp.asarray(parts), (2, 3), 40, 50), w, rtol=2**-24)
    # The pairs of channels of a step, of the second half of the columns: as the units want a right operand.
    first = parts[1, 7, 0, 1, 2].astype(np.float32).reshape(16, 2)
    np.testing.assert_allclose(first[:2], w[1, 0, 36:38, 48:].T, rtol=2**-8)
    np.testing.assert_array_equal(first[2:], 0)


def program_of(attrs: Bf16x6Attrs, x: tuple[int, ...]) -> Program:
    """A program of both ops on unknown weights."""
    build = Builder()
    image = Operand.whole(Value(x, np.dtype(np.float32)))
    weights = Operand.whole(Value((*attrs.window, x[-1], attrs.columns), np.dtype(np.float32)))
    scale = [Operand.whole(Value((x[0], 1, 1, x[3]), np.dtype(np.float32)))] if attrs.scaled else []
    spread = [Operand(item.value, item.view.broadcast_in_dim(x, (0, 1, 2, 3))) for item in scale]
    parts = build.op(BF16X6_WEIGHTS, None, [weights])
    out = build.op(BF16X6, attrs, [image, parts, *spread])
    return Program((image.value, weights.value, *(item.value for item in scale)), (), tuple(build.ops), (out,))


CASES = [
    program_of(Bf16x6Attrs((3, 2), 40, (2, 1), (1, 1, 0, 1), (1, 2)), (2, 6, 7, 5)),
    program_of(Bf16x6Attrs((1, 1), 33, scaled=True), (2, 3, 4, 5)),
    program_of(Bf16x6Attrs((1, 1), 40), (2, 5, 35)),
    program_of(Bf16x6Attrs((1, 1), 40), (5, 3)),
]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sweep
def test_regions_hold_all_that_is_read(seed):
    small = program_of(Bf16x6Attrs((2, 1), 33, (2, 1), (1, 0, 0, 1)), (1, 4, 3, 2))
    assert all(regions_hold_what_is_reached(op, seed) for op in (*small.ops, CASES[1].ops[1]))


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("family", [BF16X6, BF16X6_WEIGHTS])
def test_any_box_of_either_kernel(case, family):
    """Boxes that no grid of ours would cut."""
    program = CASES[case]
    arrays = [normal(*value.shape) for value in program.inputs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(family), "grain", lambda self, op: (1,) * len(op.output.shape))
        graph = apu.build(program, 2, TINY_TILES)
    graph.verify()
    (result,) = graph.run(*arrays)
    op = program.ops[1]
    scale = [np.broadcast_to(item, arrays[0].shape) for item in arrays[2:]]
    exact = np.asarray(op.family.reference(op.attrs, arrays[0], to_parts(arrays[1], np), *scale))
    assert np.abs(result - exact).max() <= TOLERANCE * np.abs(exact).max()


def test_references_are_the_convolution():
    program = CASES[0]
    x, w = (normal(*value.shape) for value in program.inputs)
    parts = BF16X6_WEIGHTS.reference(None, jnp.asarray(w))
    np.testing.assert_array_equal(np.asarray(parts), to_parts(w, np))
    result = BF16X6.reference(program.ops[1].attrs, jnp.asarray(x), parts)
    exact = in_float64(lambda x, w: convolved(x, w, (2, 1), ((1, 1), (0, 1)), (1, 2)), x, w)
    np.testing.assert_allclose(result, exact, atol=1e-3)


@pytest.mark.parametrize(("family", "case"), [(BF16X6_WEIGHTS, 0), *((BF16X6, case) for case in range(len(CASES)))])
def test_any_changed_word_is_refused_or_right(family, case):
    program = CASES[case]
    graph = apu.build(program, 2, TINY_TILES)
    most_are_refused(graph, family, [normal(*value.shape) for value in program.inputs])
