"""A value that is not finite, or huge, reaches the outputs that depend on it, whatever algorithm mixes inputs, and no others."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from aspen_jax import apu
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.ops import conv_few_outputs
from aspen_jax.ops.winograd import TILES
from aspen_jax.passes import bf16x6, run_passes, storage, winograd
from tests.rotation import examples
from tests.tiled import TINY_TILES

# Of what an output would be if all of its products had one sign; pixels may lie 2^12 apart before they are taken out.
TOLERANCE = 1e-2

VALUES = [[np.nan], [np.inf], [-np.inf], [1e38], [-1e38], [1e20], [1e10], [np.nan, np.inf, -np.inf, 1e20, -1e20]]
NUMBERS = ("NHWC", "HWIO", "NHWC")


@dataclasses.dataclass(frozen=True)
class Layer:
    """A convolution; its pass is chosen whatever it costs."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    strides: tuple[int, int] = (1, 1)
    padding: str | tuple[tuple[int, int], ...] = "SAME"
    spread: tuple[int, int] = (1, 1)
    tile: tuple[int, int] | None = None

    @property
    def takes_arguments(self) -> bool:
        """Whether weights may be unknown when tracing."""
        return self.name == "bf16x6" or (self.name == "winograd" and self.strides == (1, 1))

    def __call__(self, x, w):
        return lax.conv_general_dilated(x, w, self.strides, self.padding, self.spread, dimension_numbers=NUMBERS)

    def run(self, x, w, *, known: bool, machine: Machine) -> np.ndarray:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Machine, "are_cheaper", lambda _, ops, others: ops[-1].family.name == self.name)
            patch.setattr(conv_few_outputs, "MOST_CHANNELS", 0)
            patch.setattr(bf16x6, "_FEWEST_CHANNELS", 1)
            patch.setattr(bf16x6, "_FEWEST_COLUMNS", 1)
            if self.tile is not None:
                patch.setattr(winograd, "TILES", {window: (self.tile,) for window in TILES if self.tile in TILES[window]})
            machine = dataclasses.replace(machine, bf16_units=self.name == "bf16x6")
            function, arguments = (lambda x: self(x, w), (x,)) if known else (self, (x, w))
            jaxpr = jax.make_jaxpr(function)(*arguments)
            trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
            (part,) = trace.parts
            program = run_passes(part, machine=machine)
            assert self.name in [op.family.name for op in program.ops]
        graph = apu.build(program, 2, machine)
        graph.verify()
        values = dict(zip(trace.inputs, arguments, strict=True))
        (result,) = graph.run(*(values[value] for value in part.inputs))
        return result


LAYERS = [
    *(Layer("winograd", (2, 11, 13, 20), (*window, 20, 40), tile=tile) for window in TILES for tile in TILES[window]),
    Layer("winograd", (2, 19, 22, 3), (7, 7, 3, 40), (2, 2)),
    Layer("winograd", (1, 17, 22, 17), (3, 3, 17, 40), (2, 2)),
    Layer("winograd", (1, 17, 22, 17), (3, 3, 17, 70), (2, 2), "VALID"),
    Layer("winograd", (1, 9, 10, 18), (4, 4, 18, 33), padding=((1, 2), (2, 1)), spread=(2, 2)),
    Layer("strassen", (2, 5, 9, 34), (1, 1, 34, 128)),
    Layer("strassen", (1, 4, 30, 1100), (1, 1, 1100, 64), (1, 2)),
    Layer("bf16x6", (2, 6, 9, 40), (3, 3, 40, 40)),
    Layer("bf16x6", (2, 6, 9, 40), (1, 1, 40, 70)),
]


def agree(layer: Layer, x, w, result) -> None:
    with np.errstate(all="ignore"):
        expected = np.asarray(jax.jit(layer)(x, w))
        np.testing.assert_array_equal(np.isfinite(result), np.isfinite(expected))
        with jax.enable_x64(True):
            exact, scale = (
                np.asarray(layer(a, b))
                for a, b in ((np.float64(x), np.float64(w)), (np.abs(np.float64(x)), np.abs(np.float64(w))))
            )
        finite = np.isfinite(expected)
        if not (finite & (scale > 0)).any():
            return
        # Of a window of zeros the rounding of its neighbours is left.
        bound = TOLERANCE * scale[finite] + 1e-4 * np.median(scale[finite & (scale > 0)])
        assert (np.abs(result - exact)[finite] <= bound).all()


@examples(120)
@given(
    st.sampled_from(LAYERS),
    st.sampled_from(VALUES),
    st.sampled_from([1, 3]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([TINY_TILES, Machine()]),
    st.integers(0, 2**31),
)
def test_of_inputs(layer, values, count, known, is_square, zeros, machine, seed):
    """Pixels, some of them in an image that is mostly zeros, behind weights that are known or not."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(layer.x, np.float32), rng.standard_normal(layer.w, np.float32)
    x[rng.random(layer.x[:3]) < zeros] = 0
    # What overflows in float32 hangs on the order of sums as soon as two of these meet.
    count = 1 if 1e38 in np.abs(values) else count
    for _ in range(count):
        x[tuple(rng.integers(0, layer.x))] = rng.choice(values)
    agree(layer, x, w, layer.run(x, w, known=known or not layer.takes_arguments, machine=machine))


@examples(60)
@given(
    st.sampled_from([layer for layer in LAYERS if layer.name != "bf16x6"]),
    st.sampled_from([[np.nan], [np.inf], [-np.inf], [1e20], [1e38]]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_of_weights(layer, values, known, seed):
    """They reach their own column, and where the window's other taps alone lie inside, not even that."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(layer.x, np.float32), rng.standard_normal(layer.w, np.float32)
    *tap, channel, column = rng.integers(0, layer.w)
    w[*tap, channel, column] = rng.choice(values)
    result = layer.run(x, w, known=known or not layer.takes_arguments, machine=TINY_TILES)
    with np.errstate(all="ignore"):
        # Padding times what is not finite is XLA's to say; here other columns, and weights that are finite, are looked at.
        if not np.isfinite(w).all():
            keep = np.arange(layer.w[3]) != column
            expected = np.asarray(jax.jit(layer)(x, w))
            assert np.isfinite(result[..., keep]).all()
            assert np.abs(result - expected)[..., keep].max() <= 1e-4 * np.abs(expected[..., keep]).max()
            assert not np.isfinite(result[..., column]).all()
        else:
            agree(layer, x, w, result)


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer.name != "bf16x6"], ids=str)
def test_of_everything(layer):
    for value in (np.nan, np.inf, 1e38, 1e20):
        x, w = np.full(layer.x, value, np.float32), np.abs(np.random.default_rng(0).standard_normal(layer.w, np.float32)) / 1e4
        agree(layer, x, w, layer.run(x, w, known=True, machine=Machine()))


@pytest.mark.parametrize("value", [np.nan, 1e20])
def test_results_do_not_depend_on_where_tiles_are_cut(value):
    layer = Layer("winograd", (1, 24, 24, 20), (3, 3, 20, 40), tile=(4, 4))
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal(layer.x, np.float32), rng.standard_normal(layer.w, np.float32)
    x[0, 9, 14, 3] = value
    fine, coarse = (layer.run(x, w, known=True, machine=machine) for machine in (TINY_TILES, Machine()))
    np.testing.assert_array_equal(fine, coarse)


def test_weights_that_lie_apart_are_marked():
    """At each point of their column; else the kernel would find nothing wrong with the result."""
    w = np.random.default_rng(0).standard_normal((3, 3, 5, 40), np.float32)
    w[0, 2, 1, 7] = 1e20
    taken = []
    layer = Layer("winograd", (1, 9, 9, 5), w.shape, tile=(4, 4))
    with pytest.MonkeyPatch.context() as patch:
        stored = storage.Constants.stored

        def look(self, source, make, *key):
            taken.append(make(w))
            return stored(self, source, make, *key)

        patch.setattr(storage.Constants, "stored", look)
        layer.run(np.ones(layer.x, np.float32), w, known=True, machine=TINY_TILES)
    points = taken[0][:36]
    assert np.isnan(points[:, 0, :, 7]).all()
    assert np.isfinite(np.delete(points.transpose(1, 3, 0, 2).reshape(64, -1), 7, axis=0)).all()
    np.testing.assert_array_equal(taken[0][36:].transpose(0, 2, 1, 3).reshape(3, 3, 5, 64)[..., :40], w)
