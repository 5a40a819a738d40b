"""A convolution and the depthwise one behind it as one op, of whose value between only some rows exist at a time."""

from __future__ import annotations

from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

from aspen_jax import aspen
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.ops.conv_pair import CONV2D_PAIR
from aspen_jax.passes import conv_pairs, run_passes
from tests.changed_words import most_are_refused
from tests.tiled import TINY_TILES, run_tiled


@pytest.fixture(autouse=True)
def _small_values_too():
    with mock.patch.object(conv_pairs, "_SMALLEST_BETWEEN", 0):
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


def program_of(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args)
    (part,) = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)).parts
    return run_passes(part)


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
    assert [op.family for op in part.ops].count(CONV2D_PAIR) == 1, str(part)
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(run_tiled(function, args, ("conv_pairs",))[0])
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

    assert not any(op.family is CONV2D_PAIR for op in program_of(function, x).ops)


def test_any_changed_word_is_refused_or_right():
    graph = aspen(bottleneck).graph(*arguments(1, (9, 8), 5, 33, (3, 3)))
    most_are_refused(graph, CONV2D_PAIR, [normal(*graph.value(number)[0]) for number in graph.operands])
