"""The kernels of convolutions, depthwise and Winograd's among them, through the engine against jax.lax.

`test_targets.py` runs this file again for the other targets of the machine.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from aspen_jax import aspen
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.ops import conv_few_outputs
from aspen_jax.ops.winograd import TILES, WINOGRAD, WinogradAttrs
from aspen_jax.passes import run_passes, winograd
from tests.rotation import examples
from tests.tiled import NARROW, TINY_TILES, check, check_narrow, run_tiled
from tests.tracing import traced


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    depthwise = draw(st.booleans()) and groups > 1
    channels = 1 if depthwise else draw(st.integers(1, 20))
    groups = draw(st.integers(1, 40)) if depthwise else groups
    outputs = groups * draw(st.sampled_from([1, 2] if depthwise else [1, 3, 16, 33, 64]))
    window = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    image = draw(st.tuples(st.integers(4, 16), st.integers(4, 16)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = tuple(draw(st.integers(1, 2)) if image[i] > 2 * window[i] else 1 for i in (0, 1))
    padding = tuple((draw(st.integers(-1, 3)), draw(st.integers(-1, 3))) for _ in range(2))
    return draw(st.integers(1, 2)), image, channels * groups, window, outputs, groups, stride, dilation, padding


# None, one that begins with a factor, and one that the sums can begin with.
CONV2D_EPILOGUES = (
    lambda y, scale, shift: y,
    lambda y, scale, shift: jax.nn.relu6(y * scale + shift),
    lambda y, scale, shift: jax.nn.relu6(y + shift) * scale,
)


@examples(90)
@given(convolutions(), st.integers(0, 2**31), st.sampled_from(CONV2D_EPILOGUES), st.sampled_from([np.float32, *NARROW]))
def test_conv2d(shape, seed, epilogue, dtype):
    batch, image, channels, window, outputs, groups, stride, dilation, padding = shape
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *image, channels), np.float32)
    w = rng.standard_normal((*window, channels // groups, outputs), np.float32)

    def function(x, w, scale, shift, padding=padding):
        y = lax.conv_general_dilated(
            x, w, stride, padding, rhs_dilation=dilation, dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups, precision=lax.Precision.HIGHEST,
        )  # fmt: skip
        return epilogue(y, scale, shift)

    def padded_first(x, *rest):
        """XLA's convolution on CPU reads outside of the image where it crops one side and pads the other."""
        x = lax.pad(x, x.dtype.type(0), ((0, 0, 0), *((low, high, 0) for low, high in padding), (0, 0, 0)))
        return function(x, *rest, padding="VALID")

    arguments = (x, w, *rng.standard_normal((2, outputs), np.float32))
    if dtype is np.float32:
        check(function, *arguments, reference=padded_first)
    else:
        check_narrow(function, dtype, *arguments, reference=padded_first)


@examples(40)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(3, 17), st.integers(3, 17)),
    st.integers(17, 90),
    st.sampled_from([24, 32, 33, 48, 100, 256]),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.integers(0, 2**31),
)
def test_convolutions_with_constants(batch, image, channels, outputs, window, stride, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *image, channels), np.float32)
    w = rng.standard_normal((outputs, channels, *window), np.float32)

    def function(x, shift):
        y = lax.conv_general_dilated(
            x, w, stride, "SAME", dimension_numbers=("NHWC", "OIHW", "NHWC"), precision=lax.Precision.HIGHEST
        )
        return jax.nn.relu(y + shift)

    arguments = (x, rng.standard_normal(outputs, np.float32))
    check(function, *arguments)
    jaxpr = jax.make_jaxpr(function)(*arguments)
    (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
    missing = -outputs % 32
    expected = "conv2d_panels" if missing <= outputs else "conv2d"
    assert [op.family.name for op in run_passes(part).ops] == [expected]


@examples(60)
@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)).filter(lambda spread: max(spread) > 1),
    st.tuples(*[st.integers(-2, 4)] * 4),
    st.sampled_from([(3, 5, 1), (4, 8, 4), (33, 40, 1)]),
)
def test_convolutions_of_spread_inputs_read_no_zeros(image, window, spread, padding, channels):
    inputs, outputs, groups = channels
    pads = (padding[:2], padding[2:])
    sizes = [(n - 1) * step + 1 + sum(pair) - k + 1 for n, step, pair, k in zip(image, spread, pads, window, strict=True)]
    assume(min(sizes) > 0)
    rng = np.random.default_rng(inputs)
    x = rng.standard_normal((2, *image, inputs), np.float32)
    w = rng.standard_normal((*window, inputs // groups, outputs), np.float32)

    def function(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), pads, lhs_dilation=spread, dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
            precision=lax.Precision.HIGHEST,
        )  # fmt: skip

    def spread_first(x, w):
        edges = ((0, 0, 0), *((low, high, step - 1) for (low, high), step in zip(pads, spread, strict=True)), (0, 0, 0))
        # Behind a barrier: jaxlib 0.10.2 aborts where it swaps the operands of a convolution and then folds the padding into it.
        spread_out = lax.optimization_barrier(lax.pad(x, x.dtype.type(0), edges))
        return lax.conv_general_dilated(
            spread_out, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
            precision=lax.Precision.HIGHEST,
        )  # fmt: skip

    check(function, x, w, reference=spread_first)
    check_narrow(function, NARROW[inputs % 2], x, w, reference=spread_first)
    assert "pad" not in {op.family.name for op in aspen(function).graph(x, w).program().ops}


@examples(40)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 40)),
    st.tuples(st.integers(1, 5), st.integers(3, 9)),
    st.integers(1, 8),
    st.tuples(*[st.integers(-2, 4)] * 4),
    st.integers(1, 2),
    st.integers(1, 2),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_convolutions_to_few_channels_are_sums_of_their_columns(image, window, outputs, padding, stride, dilation, known, seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((2, *image, 19), np.float32), rng.standard_normal((*window, 19, outputs), np.float32)
    pads = (padding[:2], padding[2:])
    assume(min(image[0] + sum(pads[0]) - window[0], image[1] + sum(pads[1]) - (window[1] - 1) * dilation - 1) >= 0)

    def function(x, w=w):
        edges = ((0, 0, 0), *((low, high, 0) for low, high in pads), (0, 0, 0))
        y = lax.conv_general_dilated(
            lax.pad(x, x.dtype.type(0), edges), w, (stride, 1), "VALID", rhs_dilation=(1, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"), precision=lax.Precision.HIGHEST,
        )  # fmt: skip
        return jax.nn.relu(y + 0.25)

    arguments = (x,) if known else (x, w)
    check(function, *arguments)
    if not any(padding):
        ops = aspen(function).graph(*arguments).program().ops
        assert [op.output.shape[3] for op in ops if op.family.name.startswith("conv2d")] == [outputs * window[1]]


@pytest.mark.parametrize(("steps", "padding"), [((2, 2), "SAME"), ((2, 3), "VALID"), ((4, 1), ((3, 5), (0, 0)))])
@pytest.mark.parametrize("constant", [True, False])
def test_windows_as_large_as_the_steps_are_one_convolution(steps, padding, constant):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 5, 6, 7), np.float32), rng.standard_normal((*steps, 7, 9), np.float32)

    def function(x, w=w):
        return jax.nn.relu(lax.conv_transpose(x, w, steps, padding, precision=lax.Precision.HIGHEST) + 0.5)

    arguments = (x,) if constant else (x, w)
    check(function, *arguments)
    names = [op.family.name for op in aspen(function).graph(*arguments).program().ops]
    assert sum(name.startswith("conv2d") for name in names) == 1
    assert "concatenate" not in names


def test_the_gradient_of_strides_is_a_convolution_of_a_spread_input():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 9, 8, 5), np.float32), rng.standard_normal((3, 3, 5, 7), np.float32)

    def function(x, w):
        y = lax.conv_general_dilated(
            x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), precision=lax.Precision.HIGHEST
        )
        return (y**2).sum()

    check(jax.grad(function), x, w)


@pytest.mark.parametrize("window", [3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "outputs"), [(33, 33), (70, 70), (32, 64)])
def test_depthwise_windows_that_slide(window, stride, channels, outputs):
    rng = np.random.default_rng((window, stride, channels))
    for width, padding in [(7, (1, 1)), (13, (0, 0)), (14, (3, 2)), (26, (9, 11)), (4, (2, 3))]:
        x = rng.standard_normal((2, 6, width, channels), np.float32)
        w = rng.standard_normal((window, window, 1, outputs), np.float32)

        def function(x, w, padding=padding):
            return lax.conv_general_dilated(
                x, w, (stride, stride), ((2, 3), padding), dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=channels, precision=lax.Precision.HIGHEST,
            )  # fmt: skip

        check(function, x, w)


EPILOGUES = {
    "all that registers can do": lambda y, s, r: jnp.clip((y - s) * r + s, -0.5, 0.7),
    "residual": lambda y, s, r: jax.nn.relu(y + s + r),
    "a constant first": lambda y, s, r: jax.nn.relu(y + 0.5) * s + r,
    "residual first": lambda y, s, r: jnp.minimum(r + y, 2.0) * 0.25,
    "a vector for each line": lambda y, s, r: jax.nn.relu(y + r[:, :, :1]),
    "bounds, the upper first": lambda y, s, r: jnp.maximum(jnp.minimum(y, 0.7), -0.5) * s,
    "bounds again": lambda y, s, r: jnp.clip(jax.nn.relu6(jnp.clip(y + s, -0.5, 0.7)), 0.1, r),
    "a rest": lambda y, s, r: jax.nn.silu(y + s) * r,
    "nothing in registers": lambda y, s, r: s - y,
    "bounds that vary": lambda y, s, r: jnp.maximum(jnp.minimum(y * s, r), s),
    "twice": lambda y, s, r: (y + s) * (y + s) + r,
    "many steps": lambda y, s, r: ((((y + s) * r - s) * s + r) * s - r) * s + r + 1.0,
    "no number": lambda y, s, r: jnp.minimum(jax.nn.relu(y + jnp.where(s > 1, jnp.nan, s)), 6.0),
}


@pytest.mark.parametrize("groups", [1, 40])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_of_convolutions(name, groups):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 7, 13, 40), np.float32), rng.standard_normal((3, 3, 40 // groups, 40), np.float32) / 10
    shift, residual = rng.standard_normal(40, np.float32), rng.standard_normal((2, 7, 13, 40), np.float32)

    def function(x, w, shift, residual):
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
            precision=lax.Precision.HIGHEST,
        )  # fmt: skip
        return EPILOGUES[name](y, shift, residual)

    arguments = (x, w, shift, residual)
    expected = np.asarray(jax.jit(function)(*arguments))
    for machine in (TINY_TILES, Machine()):
        (ours,) = run_tiled(function, arguments, machine=machine)
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)


@examples(40)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(3, 21), st.integers(3, 21)),
    st.integers(1, 40),
    st.sampled_from([1, 16, 31, 32, 33, 70]),
    st.tuples(*[st.integers(-1, 3)] * 4),
    st.integers(0, 2**31),
    st.booleans(),
    st.sampled_from([(window, tile) for window in TILES for tile in TILES[window]]),
)
def test_winograd(batch, image, channels, outputs, padding, seed, known, patch):
    """Chosen whatever it costs: against float64, closer than what the default precision allows."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, *image, channels), np.float32)
    window, tile = patch
    w = rng.standard_normal((*window, channels, outputs), np.float32)
    shift = rng.standard_normal(outputs, np.float32)
    top, bottom, left, right = padding

    def function(x, w, shift):
        y = lax.conv_general_dilated(x, w, (1, 1), ((top, bottom), (left, right)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(y * 0.5 + shift)

    arguments = (x, shift) if known else (x, w, shift)
    called = (lambda x, shift: function(x, w, shift)) if known else function
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Machine, "are_cheaper", lambda *_: True)
        monkeypatch.setattr(conv_few_outputs, "MOST_CHANNELS", 0)
        monkeypatch.setattr(winograd, "TILES", {window: (tile,)})
        (result,) = run_tiled(called, arguments)
        if result.size > 0:
            jaxpr = jax.make_jaxpr(called)(*arguments)
            (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
            kinds = {op.family.name for op in run_passes(part).ops}
            assert kinds == ({"winograd"} if known else {"winograd", "winograd_weights"})
    with jax.enable_x64(True):
        exact = np.asarray(function(*(np.asarray(item, np.float64) for item in (x, w, shift))))
    assert result.shape == exact.shape
    assert np.abs(result - exact).max(initial=0) <= 3e-5 * np.abs(exact).max(initial=1e-30)


@examples(40)
@given(
    st.integers(1, 2),
    st.tuples(st.integers(5, 40), st.integers(5, 40)),
    st.sampled_from([1, 3, 5, 16, 20]),
    st.sampled_from([1, 32, 33, 70]),
    st.tuples(*[st.integers(-2, 5)] * 4),
    st.sampled_from(
        [
            ((7, 7), (2, 2)),
            ((8, 8), (2, 2)),
            ((5, 5), (2, 2)),
            ((3, 3), (2, 2)),
            ((4, 4), (2, 2)),
            ((2, 5), (1, 4)),
            ((4, 5), (3, 4)),
            ((11, 11), (4, 4)),
            ((7, 4), (2, 1)),
            ((1, 9), (2, 3)),
            ((2, 9), (2, 3)),
            ((9, 13), (3, 4)),
        ]
    ),
    st.sampled_from(["NHWC", "NCHW"]),
    st.integers(0, 2**31),
)
def test_winograd_of_phases(batch, image, channels, outputs, padding, shape, layout, seed):
    """Convolutions of other strides, whose windows on the phases are 2x2, 3x3 or 4x4."""
    rng = np.random.default_rng(seed)
    window, strides = shape
    dimensions = dict(zip("NHWC", (batch, *image, channels), strict=True))
    x = rng.standard_normal([dimensions[axis] for axis in layout], np.float32)
    w = rng.standard_normal((*window, channels, outputs), np.float32)
    top, bottom, left, right = padding

    def function(x, w):
        numbers = (layout, "HWIO", "NHWC")
        return jax.nn.relu(lax.conv_general_dilated(x, w, strides, ((top, bottom), (left, right)), dimension_numbers=numbers))

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Machine, "are_cheaper", lambda *_: True)
        monkeypatch.setattr(conv_few_outputs, "MOST_CHANNELS", 0)
        (result,) = run_tiled(lambda x: function(x, w), (x,))
        if result.size > 0:
            jaxpr = jax.make_jaxpr(lambda x: function(x, w))(x)
            (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
            ops = [op for op in run_passes(part).ops if op.family.name == "winograd"]
            squares = tuple(
                -(-(taps + -low % stride) // stride) for taps, low, stride in zip(window, padding[::2], strides, strict=True)
            )
            assert [op.attrs.phases for op in ops] == ([strides] if squares in TILES else [])
    with jax.enable_x64(True):
        exact = np.asarray(function(np.asarray(x, np.float64), np.asarray(w, np.float64)))
    assert result.shape == exact.shape
    assert np.abs(result - exact).max(initial=0) <= 3e-5 * np.abs(exact).max(initial=1e-30)


@pytest.mark.parametrize(
    ("window", "tile", "phases", "begin", "end"),
    [
        ((2, 2), (4, 4), (2, 2), (2, 0), (2, 2)),
        ((2, 2), (4, 4), (2, 2), (0, -1), (2, 2)),
        ((2, 2), (4, 4), (2, 2), (0, 0), (2, 0)),
        ((2, 2), (4, 4), (2, 2), (0, 0), (3, 2)),
        ((2, 2), (4, 4), (0, 2), (0, 0), (1, 2)),
        ((1, 3), (1, 4), (2, 2), (1, 0), (1, 2)),  # down, the only point is both the first and the last
    ],
)
def test_winograd_refuses_phases_that_there_are_not_or_that_leave_a_point_without_weights(window, tile, phases, begin, end):
    points = math.prod(taps + outputs - 1 for taps, outputs in zip(window, tile, strict=True)) + math.prod(window)
    x, u = ((1, 9, 9, 5), np.dtype(np.float32)), ((points, 2, 5 * math.prod(phases), 32), np.dtype(np.float32))
    whole = WinogradAttrs((0,) * 4, 40, window, tile, phases, (0, 0), phases)
    if min(phases) > 0:
        WINOGRAD.infer(whole, (x, u))
    with pytest.raises(ValueError, match=r"phases -?\d and \d of \d leave a point without weights"):
        WINOGRAD.infer(dataclasses.replace(whole, begin=begin, end=end), (x, u))


@pytest.mark.parametrize("dtype", NARROW)
def test_convolution_of_16_bits_gives_float32_where_that_is_preferred(dtype):
    rng = np.random.default_rng(0)
    x, w = (
        rng.standard_normal((1, 9, 11, 8), np.float32).astype(dtype),
        rng.standard_normal((3, 3, 8, 20), np.float32).astype(dtype),
    )

    def function(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=numbers, preferred_element_type=np.float32, precision=lax.Precision.HIGHEST
        )

    (ours,) = run_tiled(function, (x, w))
    exact = np.asarray(jax.jit(function)(x.astype(np.float32), w.astype(np.float32)))
    assert ours.dtype == np.float32
    assert np.abs(ours - exact).max() <= 1e-5 * np.abs(exact).max()


@examples(60)
@given(
    st.tuples(*[st.integers(1, 6)] * 3),
    st.tuples(*[st.integers(1, 4)] * 3),
    st.tuples(*[st.integers(1, 2)] * 3),
    st.tuples(*[st.integers(1, 2)] * 3),
    st.tuples(*[st.tuples(st.integers(-1, 3), st.integers(-1, 3))] * 3),
    st.integers(1, 2),
    st.sampled_from([(3, 5, 1), (4, 8, 4), (6, 6, 6), (33, 40, 1)]),
)
def test_convolutions_of_volumes(volume, window, strides, dilation, padding, spread, channels):
    inputs, outputs, groups = channels
    spans = [(k - 1) * step + 1 for k, step in zip(window, dilation, strict=True)]
    padded = [(n - 1) * spread + 1 + sum(pair) for n, pair in zip(volume, padding, strict=True)]
    assume(all(size >= span for size, span in zip(padded, spans, strict=True)))
    rng = np.random.default_rng(inputs)
    x = rng.standard_normal((2, *volume, inputs), np.float32)
    w = rng.standard_normal((*window, inputs // groups, outputs), np.float32)
    numbers = ("NDHWC", "DHWIO", "NDHWC")

    def function(x, w):
        y = lax.conv_general_dilated(
            x, w, strides, padding, (spread,) * 3, dilation, numbers, feature_group_count=groups, precision=lax.Precision.HIGHEST
        )
        return jax.nn.relu(y + 1)

    def of_padded(x, w):
        edges = ((0, 0, 0), *((low, high, spread - 1) for low, high in padding), (0, 0, 0))
        x = lax.optimization_barrier(lax.pad(x, x.dtype.type(0), edges))  # what XLA folds into a convolution, it may abort at
        y = lax.conv_general_dilated(
            x, w, strides, "VALID", None, dilation, numbers, feature_group_count=groups, precision=lax.Precision.HIGHEST
        )
        return jax.nn.relu(y + 1)

    check(function, x, w, reference=of_padded)


@pytest.mark.parametrize("layout", [("NCDHW", "OIDHW", "NCDHW"), ("NDHWC", "DHWIO", "CNWDH")])
def test_convolutions_of_volumes_in_any_layout(layout):
    rng = np.random.default_rng(0)
    sizes = {"N": 2, "C": 4, "D": 5, "H": 6, "W": 7}
    x = rng.standard_normal([sizes[axis] for axis in layout[0]], np.float32)
    w = rng.standard_normal([{"O": 6, "I": 2, "D": 3, "H": 2, "W": 3}[axis] for axis in layout[1]], np.float32)

    def function(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 2, 1), "SAME", dimension_numbers=layout, feature_group_count=2, precision=lax.Precision.HIGHEST
        )

    check(function, x, w)


def test_empty_convolutions_of_volumes():
    w = jnp.ones((3, 1, 1, 2, 4))
    for shape in ((0, 5, 2, 2, 2), (1, 2, 3, 3, 2), (1, 5, 0, 2, 2)):
        check(
            lambda x, w: lax.conv_general_dilated(x, w, (1, 1, 1), "VALID", dimension_numbers=("NDHWC", "DHWIO", "NDHWC")),
            jnp.ones(shape), w,
        )  # fmt: skip


@pytest.mark.parametrize("window", [(0,), (0, 3), (3, 0), (0, 3, 3), (3, 3, 0)])
def test_convolutions_by_a_window_of_no_taps_stay_with_xla(window):
    x, w = np.ones((1, *[5] * len(window), 2), np.float32), np.ones((*window, 2, 4), np.float32)
    letters = "DHW"[3 - len(window) :]
    numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")

    def function(x, w):
        return lax.conv_general_dilated(x, w, (1,) * len(window), "VALID", dimension_numbers=numbers)

    jaxpr = jax.make_jaxpr(function)(x, w)
    (fallback,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).fallbacks
    assert "no taps" in fallback.reason
    with pytest.raises(ValueError, match="window"):
        jax.jit(aspen(function))(x, w)


def test_gradients_of_convolutions_of_volumes():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 6, 6, 3), np.float32), rng.standard_normal((3, 3, 3, 3, 8), np.float32)

    def loss(x, w):
        y = lax.conv_general_dilated(
            x, w, (1, 2, 2), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"), precision=lax.Precision.HIGHEST
        )
        return jnp.sum(jnp.sin(y))

    check(jax.grad(loss, (0, 1)), x, w)


VOLUMES = ("NDHWC", "DHWIO", "NDHWC")


@pytest.mark.parametrize("window", [(3, 3, 3), (2, 1, 3), (1, 3, 3)])
@pytest.mark.parametrize("groups", [2, 3])
def test_convolutions_of_volumes_in_batch_groups(window, groups):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((6, 4, 6, 5, 8), np.float32), rng.standard_normal((*window, 8, 12), np.float32)

    def function(x, w, groups=groups):
        return lax.conv_general_dilated(
            x, w, (1, 2, 1), "SAME", rhs_dilation=(2, 1, 1), dimension_numbers=VOLUMES, batch_group_count=groups,
            precision=lax.Precision.HIGHEST,
        )  # fmt: skip

    def one_by_one(x, w):
        each = zip(jnp.split(x, groups), jnp.split(w, groups, axis=-1), strict=True)
        return jnp.concatenate([function(*item, groups=1) for item in each], axis=-1)

    check(function, x, w, reference=one_by_one)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    ("window", "strides", "spread", "groups"),
    [((3, 3, 3), (1, 1, 1), 1, 1), ((2, 3, 2), (2, 1, 2), 1, 2), ((3, 2, 2), (1, 1, 1), 2, 1), ((3, 3, 3), (1, 2, 2), 1, 6)],
)
def test_convolutions_of_volumes_of_16_bits(dtype, window, strides, spread, groups):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, 6, 7, 6), np.float32)
    w = rng.standard_normal((*window, 6 // groups, 18), np.float32)

    def function(x, w):
        y = lax.conv_general_dilated(
            x, w, strides, ((1, 1), (0, 2), (1, 0)), (spread,) * 3, dimension_numbers=VOLUMES, feature_group_count=groups,
            precision=lax.Precision.HIGHEST,
        )  # fmt: skip
        return jax.nn.relu(y + 1) if spread == 1 else y  # the phases of a spread input are stored before they are added to

    check_narrow(function, dtype, x, w)


@pytest.mark.parametrize(
    ("window", "strides", "channels", "family"),
    [
        ((3, 3, 3), (1, 1, 1), (32, 64), "winograd"),
        ((3, 7, 7), (1, 2, 2), (3, 64), "winograd"),
        ((3, 1, 1), (1, 1, 1), (64, 64), "conv2d_panels"),
        ((2, 3, 3), (2, 3, 3), (16, 24), "conv2d_panels"),
    ],
)
def test_convolutions_of_volumes_in_the_default_precision(window, strides, channels, family):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 6, 32, 32, channels[0]), np.float32)
    w = rng.standard_normal((*window, *channels), np.float32)

    def function(x, w=w):
        return jax.nn.relu(lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=VOLUMES))

    found = run_passes(traced(function, x)[0]).ops
    assert found[-1].family.name == family
    # Beside it there are the planes and the zero around them: nothing is left to do to the weights.
    assert {op.family.name for op in found[:-1]} <= {"block", "pad", "concatenate"}
    assert all(op.output.shape == () for op in found if op.family.name == "block")
    check(function, x, tolerance=3e-5)


@pytest.mark.parametrize(("outputs", "dilation"), [(1, 1), (3, 1), (8, 2)])
def test_convolutions_of_volumes_to_few_channels(outputs, dilation):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 4, 9, 12, 8), np.float32), rng.standard_normal((3, 3, 5, 8, outputs), np.float32)

    def function(x, w):
        return jax.nn.sigmoid(
            lax.conv_general_dilated(
                x, w, (1, 2, 1), ((1, 1), (1, 0), (3, 2)), rhs_dilation=(1, 1, dilation), dimension_numbers=VOLUMES,
                precision=lax.Precision.HIGHEST,
            )
        )  # fmt: skip

    (found,) = [op for op in traced(function, x, w)[0].ops if op.family.name == "conv2d"]
    assert found.inputs[1].shape == (3, 1, 24, 5 * outputs)  # the channels of three planes are enough
    check(function, x, w)
