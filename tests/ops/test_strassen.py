"""1x1 convolutions by Strassen's algorithm: against float64, its regions, what it is kept away from, and graph files that lie."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from aspen_jax import apu
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Operand, Program, Value
from aspen_jax.ops.builder import Builder
from aspen_jax.ops.strassen import STRASSEN, STRASSEN_ROWS, StrassenAttrs, StrassenRowsAttrs, right_factors, right_shape
from aspen_jax.passes import run_passes
from tests.changed_words import most_are_refused
from tests.reached import regions_hold_what_is_reached
from tests.rotation import examples
from tests.tiled import TINY_TILES, run_tiled

# Far from the rounding of the direct way (about 3e-7), and as far from what the default precision allows.
TOLERANCE = 1e-5


def traced(function, *arguments) -> Program:
    jaxpr = jax.make_jaxpr(function)(*arguments)
    (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
    return part


def kinds(function, *arguments) -> list[str]:
    return [op.family.name for op in run_passes(traced(function, *arguments)).ops]


def normal(*shape):
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def pointwise(x, w, strides=(1, 1), precision=None):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, strides, "VALID", dimension_numbers=numbers, precision=precision)


@examples(25)
@given(
    st.sampled_from([(1, 2), (2, 3)]),
    st.integers(1, 70),
    st.sampled_from([2, 6, 34, 62, 130, 1100]),
    st.sampled_from([61, 64, 127, 128, 190, 192, 250]),
    st.sampled_from(["nothing", "bias", "bias and residual", "gelu", "square"]),
    st.sampled_from([TINY_TILES, Machine()]),
    st.integers(0, 2**31),
)
def test_against_float64(lead, rows, inner, columns, epilogue, machine, seed):
    """Chosen whatever it costs."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*lead, rows, inner), np.float32)
    w = rng.standard_normal((1, 1, inner, columns), np.float32) / np.float32(np.sqrt(inner))
    bias = rng.standard_normal(columns, np.float32)
    residual = rng.standard_normal((*lead, rows, columns), np.float32)

    def function(x, residual, w, bias):
        y = pointwise(x, w)
        if epilogue == "nothing":
            return y
        if epilogue == "square":
            return y * y
        y = y + bias
        if epilogue == "gelu":
            return jax.nn.gelu(y, approximate=False)
        return y + residual if epilogue == "bias and residual" else y

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "are_cheaper", lambda *_: True)
        (result,) = run_tiled(lambda x, residual: function(x, residual, w, bias), (x, residual), machine=machine)
        (op,) = [op for op in run_passes(traced(lambda x, r: function(x, r, w, bias), x, residual)).ops if op.family is STRASSEN]
        assert op.program is not None or epilogue == "nothing", "the epilogue stays fused"
    with jax.enable_x64(True):
        exact = np.asarray(function(*(np.asarray(item, np.float64) for item in (x, residual, w, bias))))
    assert result.shape == exact.shape
    assert np.abs(result - exact).max() <= TOLERANCE * max(1.0, np.abs(exact).max())


@pytest.mark.parametrize(("lines", "inner", "columns"), [(14, 768, 768), (14, 3072, 768), (28, 512, 1024)])
def test_error_of_networks_sizes(lines, inner, columns):
    x, w = normal(1, lines, lines, inner), normal(1, 1, inner, columns)
    (result,) = run_tiled(lambda x: pointwise(x, w), (x,), machine=Machine())
    assert kinds(lambda x: pointwise(x, w), x) == ["strassen_rows", "strassen"]
    exact = x.astype(np.float64) @ w[0, 0]
    assert np.abs(result - exact).max() <= 3e-6 * np.abs(exact).max()


def test_results_do_not_depend_on_where_tiles_are_cut():
    x, w = normal(1, 3, 77, 256), normal(1, 1, 256, 192)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "are_cheaper", lambda *_: True)
        assert "strassen" in kinds(lambda x: pointwise(x, w), x)
        fine, coarse = (run_tiled(lambda x: pointwise(x, w), (x,), machine=machine)[0] for machine in (TINY_TILES, Machine()))
    np.testing.assert_array_equal(fine, coarse)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
@pytest.mark.parametrize("lead", [(128,), (2, 128), (2, 3, 128)])
def test_rows_of_products_never_mix(lead, value):
    """They are examples or tokens: each gives the same bits whatever the others are."""
    x, w = normal(*lead, 768), normal(768, 768)
    changed = x.copy()
    changed.reshape(-1, 768)[5, 7] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "are_cheaper", lambda *_: True)  # whatever passes there are
        before, after = (run_tiled(lambda x: x @ w, (item,), machine=Machine())[0].reshape(-1, 768) for item in (x, changed))
        assert not {"strassen", "strassen_rows"} & set(kinds(lambda x: x @ w, x))
    assert np.argwhere((before != after).any(axis=1)).tolist() == [[5]]
    assert not (np.abs(after[5]) < 1e15).any()


def test_convolutions_of_the_same_pixels_share_their_left_factors():
    x, w = normal(1, 14, 14, 768), [normal(1, 1, 768, 768 + 64 * k) for k in range(3)]
    assert sorted(kinds(lambda x: [pointwise(x, item) for item in w], x)) == ["strassen"] * 3 + ["strassen_rows"]


def test_weights_are_read_in_any_order():
    x, w = normal(1, 14, 14, 768), normal(512, 768, 1, 1)

    def function(x):
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC"))

    assert kinds(function, x) == ["strassen_rows", "strassen"]
    (result,) = run_tiled(function, (x,), machine=Machine())
    exact = x.astype(np.float64) @ w[:, :, 0, 0].T
    assert np.abs(result - exact).max() <= 3e-6 * np.abs(exact).max()


@examples(25)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(2, 30), st.integers(1, 40)),
    st.sampled_from([2, 34, 130]),
    st.sampled_from([61, 64, 128, 190]),
    st.sampled_from([(1, 1), (2, 2), (1, 3)]),
    st.booleans(),
    st.sampled_from([TINY_TILES, Machine()]),
    st.integers(0, 2**31),
)
def test_pointwise_convolutions_against_float64(batch, image, inner, columns, strides, finished, machine, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *image, inner), np.float32)
    w = rng.standard_normal((1, 1, inner, columns), np.float32) / np.float32(np.sqrt(inner))
    bias = rng.standard_normal(columns, np.float32)
    residual = rng.standard_normal(jax.eval_shape(lambda x: pointwise(x, w, strides), x).shape, np.float32)

    def function(x, residual, w, bias):
        y = pointwise(x, w, strides)
        return jax.nn.relu(y + bias + residual) if finished else y

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "are_cheaper", lambda *_: True)
        (result,) = run_tiled(lambda x, residual: function(x, residual, w, bias), (x, residual), machine=machine)
        assert "strassen" in kinds(lambda x, residual: function(x, residual, w, bias), x, residual)
    with jax.enable_x64(True):
        exact = np.asarray(function(*(np.asarray(item, np.float64) for item in (x, residual, w, bias))))
    assert result.shape == exact.shape
    assert np.abs(result - exact).max() <= TOLERANCE * max(1.0, np.abs(exact).max())


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
def test_pixels_mix_with_their_neighbours_only(value):
    """The neighbour changes in its last digits, as it is multiplied directly then."""
    x, w = normal(2, 14, 14, 1024), normal(1, 1, 1024, 512)
    changed = x.copy()
    changed[0, 3, 5] = value
    before, after = (run_tiled(lambda x: pointwise(x, w), (item,), machine=Machine())[0] for item in (x, changed))
    assert kinds(lambda x: pointwise(x, w), x) == ["strassen_rows", "strassen"]
    differs = (before != after).any(axis=3)
    assert np.argwhere(differs).tolist() == [[0, 3, 4], [0, 3, 5]]
    exact = x.astype(np.float64) @ w[0, 0]
    assert np.abs(before - exact).max() <= 3e-6 * np.abs(exact).max()
    assert np.abs(after[0, 3, 4] - exact[0, 3, 4]).max() <= 3e-6 * np.abs(exact).max()


W = normal(768, 768)
V = normal(1, 1, 1024, 512)
IMAGE = normal(1, 14, 14, 1024)


def sequence(x, w):
    return lax.conv_general_dilated(x, w, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: pointwise(x, V, precision="highest"), [IMAGE]),
        (lambda x: pointwise(x, V, precision=lax.Precision.HIGH), [IMAGE]),
        (lambda x: pointwise(x, V), [normal(1, 7, 7, 1024)]),
        (lambda x: pointwise(x, V[:, :, :1023]), [normal(1, 14, 14, 1023)]),
        (lambda x: pointwise(x, V[..., :40]), [IMAGE]),
        (lambda x: pointwise(x, V[:, :, :16]), [normal(1, 14, 14, 16)]),
        (lambda x: pointwise(x, V.astype(jnp.bfloat16)), [IMAGE.astype(jnp.bfloat16)]),
        (pointwise, [IMAGE, V]),
        (lambda x: sequence(x, V[0]), [normal(2, 196, 1024)]),
        (lambda x: pointwise(x, V), [normal(2, 1, 196, 1024)]),
        (lambda x: x @ W, [normal(768)]),
        (lambda x: x @ W, [normal(1, 2, 768)]),
        (lambda x: x @ W, [normal(128, 768)]),
        (lambda x: x @ W, [normal(1, 128, 768)]),
        (lambda x: x @ W, [normal(4, 512, 768)]),
        (lambda x: x @ W, [normal(14, 14, 14, 768)]),
        (lambda x: jnp.einsum("bthd,ehd->bte", x, W.reshape(768, 12, 64)), [normal(1, 128, 12, 64)]),
    ],
    ids=[
        "highest",
        "high",
        "lines of odd length",
        "odd inner",
        "few columns",
        "short",
        "bfloat16",
        "unknown weights",
        "sequence",
        "one line",
        "vector",
        "product of few rows",
        "product of a matrix",
        "product of rank 3",
        "product of a batch",
        "product of rank 4",
        "product of heads",
    ],
)
def test_kept_away_from(function, arguments):
    assert not {"strassen", "strassen_rows"} & set(kinds(function, *arguments))


def test_default_precision_of_jax_forbids_it_too():
    assert "strassen" in kinds(lambda x: pointwise(x, V), IMAGE)
    with jax.default_matmul_precision("highest"):
        assert "strassen" not in kinds(lambda x: pointwise(x, V), IMAGE)


def product(lead, rows, inner, columns):
    """A program of both ops on unknown factors of the weights."""
    build = Builder()
    x = Operand.whole(Value((*lead, rows, inner), np.dtype(np.float32)))
    w = Operand.whole(Value(right_shape(inner, columns), np.dtype(np.float32)))
    left = build.op(STRASSEN_ROWS, StrassenRowsAttrs(3), [x])
    out = build.op(STRASSEN, StrassenAttrs(rows, columns), [left, w])
    return Program((x.value, w.value), (), tuple(build.ops), (out,))


@pytest.mark.parametrize("seed", range(6))
def test_regions_hold_all_that_is_read(seed):
    assert all(regions_hold_what_is_reached(op, seed) for op in product((2,), 5, 4, 70).ops)


@pytest.mark.parametrize("seed", range(10))
def test_any_box_of_either_kernel(seed):
    """Boxes that no grid of ours would cut: odd rows, some of the factors, parts of a pair of panels."""
    rng = np.random.default_rng(seed)
    program = product((2,), int(rng.integers(1, 40)), 12, int(rng.integers(1, 200)))
    a, b = normal(*program.inputs[0].shape), normal(12, program.ops[1].output.shape[-1])
    with pytest.MonkeyPatch.context() as patch:
        for family in (STRASSEN, STRASSEN_ROWS):
            patch.setattr(type(family), "grain", lambda self, op: (1,) * len(op.output.shape))
        graph = apu.build(program, 2, TINY_TILES)
    graph.verify()
    (result,) = graph.run(a, right_factors(b))
    exact = a.astype(np.float64) @ b
    assert np.abs(result - exact).max() <= TOLERANCE * np.abs(exact).max()


def test_references_are_the_product():
    a, b = normal(2, 7, 10), normal(10, 130)
    left = STRASSEN_ROWS.reference(StrassenRowsAttrs(3), jnp.asarray(a))
    result = STRASSEN.reference(StrassenAttrs(7, 130), left, jnp.asarray(right_factors(b)))
    np.testing.assert_allclose(result, a.astype(np.float64) @ b, atol=1e-5)


@pytest.mark.parametrize("family", [STRASSEN_ROWS, STRASSEN])
def test_any_changed_word_is_refused_or_right(family):
    program = product((2,), 9, 12, 130)
    graph = apu.build(program, 2, TINY_TILES)
    most_are_refused(graph, family, [normal(*value.shape) for value in program.inputs])
