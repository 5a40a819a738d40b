"""The last convolution of an NCHW network writes what its caller wants (passes/last_op.py)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import apu, aspen
from aspen_jax.cost.machine import Machine
from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Program
from aspen_jax.ops.transposed import TRANSPOSED
from aspen_jax.passes import last_op, run_passes
from tests.changed_words import most_are_refused
from tests.content import generator
from tests.tiled import TINY_TILES, check, run_tiled

RNG = generator(__name__)
SIZED = Machine(tile_ns=0.0, shortest_tile_ns=1.0, tiles_per_worker=3)


@pytest.fixture(autouse=True)
def _whatever_the_size(monkeypatch):
    monkeypatch.setattr(last_op, "_SMALLEST_RESULT", 0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32) * np.float32(0.3)


def convolved(x, w, strides=(1, 1), groups=1):
    numbers = ("NCHW", "OIHW", "NCHW")
    return lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=numbers, feature_group_count=groups)


def network(x, w, v, bias, strides=(1, 1), groups=1):
    """Two layers of an NCHW network."""
    return jax.nn.relu(convolved(jnp.tanh(convolved(x, w)), v, strides, groups) + bias[:, None, None])


def program_of(function, *arguments) -> Program:
    (part,) = frontend.trace(jax.make_jaxpr(function)(*arguments)).parts
    return run_passes(part)


def copies(program: Program) -> int:
    """Ops that only move the result."""
    return sum(op.name == "output" for op in program.ops)


CASES: dict[str, Any] = {
    "1x1": ((2, 3, 9, 14), (16, 3, 3, 3), (21, 16, 1, 1), {}),
    "3x3, by Winograd": ((1, 3, 30, 26), (32, 3, 3, 3), (40, 32, 3, 3), {}),
    "strided": ((2, 3, 17, 12), (8, 3, 3, 3), (5, 8, 3, 3), {"strides": (2, 2)}),
    "depthwise": ((1, 3, 11, 20), (24, 3, 1, 1), (24, 1, 3, 3), {"groups": 24}),
    "one channel": ((3, 2, 8, 8), (4, 2, 3, 3), (1, 4, 3, 3), {}),
    "one pixel": ((5, 2, 1, 1), (4, 2, 1, 1), (9, 4, 1, 1), {}),
    "long rows": ((1, 2, 3, 5000), (4, 2, 1, 1), (32, 4, 1, 1), {}),
}


@pytest.mark.parametrize("known", [False, True], ids=["arguments", "constants"])
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_xla(case, known):
    *shapes, options = CASES[case]
    x, w, v = (normal(*shape) for shape in shapes)
    bias = normal(v.shape[0])

    def function(x, *weights):
        return network(x, *(weights or (w, v, bias)), **options)

    arguments = (x,) if known else (x, w, v, bias)
    if min(v.shape[0], shapes[0][3]) > 1:  # else NCHW is NHWC
        program = program_of(function, *arguments)
        assert copies(program) == 0
        assert sum(op.family is TRANSPOSED for op in program.ops) == 1
    check(function, *arguments, machine=RNG.choice([TINY_TILES, SIZED]), tolerance=1e-4)


def test_the_result_is_that_of_a_copy():
    x, w, v = normal(1, 3, 20, 19), normal(24, 3, 3, 3), normal(17, 24, 3, 3)
    arguments = x, w, v, normal(17)
    (ours,) = run_tiled(network, arguments, machine=SIZED)
    (apart,) = run_tiled(network, arguments, ("last_op",), machine=SIZED)
    np.testing.assert_allclose(ours, apart, rtol=1e-6, atol=1e-6 * np.abs(apart).max())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_narrow_results(dtype):
    arguments = [normal(*shape).astype(dtype) for shape in ((1, 3, 12, 10), (16, 3, 3, 3), (21, 16, 1, 1), (21,))]
    (ours,) = run_tiled(network, arguments)
    (apart,) = run_tiled(network, arguments, ("last_op",))
    assert ours.dtype == dtype
    # Tiles of few pixels are summed in another order, so that the last bit may differ.
    largest = float(np.abs(apart).max())
    difference = np.abs(ours.astype(np.float32) - apart.astype(np.float32)).max()
    assert difference <= 2 * float(jnp.finfo(dtype).eps) * largest


def test_a_result_that_others_read_is_copied():
    def function(*arguments):
        y = network(*arguments)
        return y, y.sum()

    arguments = normal(1, 3, 12, 10), normal(16, 3, 3, 3), normal(21, 16, 1, 1), normal(21)
    program = program_of(function, *arguments)
    assert not any(op.family is TRANSPOSED for op in program.ops)
    check(function, *arguments)


def test_nan_reaches_its_own_pixels_alone():
    arguments = normal(1, 3, 12, 10), normal(16, 3, 3, 3), normal(21, 16, 1, 1), normal(21)
    arguments[0][0, 1, 4, 5] = np.nan
    (ours,), (apart,) = (run_tiled(network, arguments, disabled) for disabled in ((), ("last_op",)))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(apart))
    assert np.isnan(ours).any()
    assert not np.isnan(ours).all()


def test_fewer_bytes_move():
    arguments = normal(1, 3, 64, 64), normal(64, 3, 3, 3), normal(64, 64, 3, 3), normal(64)
    (part,) = frontend.trace(jax.make_jaxpr(network)(*arguments)).parts
    ours, apart = (apu.build(run_passes(part, disabled), 2) for disabled in ((), ("last_op",)))
    assert ours.num_ops == apart.num_ops - 1
    assert ours.stats()["bytes"] < apart.stats()["bytes"]
    assert ours.workspace_bytes < apart.workspace_bytes


def test_any_changed_word_is_refused_or_right(tmp_path):
    arguments = normal(1, 3, 12, 10), normal(16, 3, 3, 3), normal(21, 16, 1, 1), normal(21)
    graph = aspen(network, strict=True).graph(*arguments)
    graph.save(tmp_path / "graph.aspen")
    again = graph.load(tmp_path / "graph.aspen")
    again.verify()
    for one, other in zip(graph.run(*arguments), again.run(*arguments), strict=True):
        assert one.tobytes() == other.tobytes()
    assert dataclasses.replace(graph) == graph
    most_are_refused(graph, TRANSPOSED, arguments)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_an_outer_product_is_written_as_the_caller_wants_it(dtype):
    """JAX asks for the gradient of a weight transposed."""
    x, w = normal(1, 65).astype(dtype), normal(65, 48).astype(dtype)

    def gradient(x, w):
        return jax.grad(lambda w: jnp.tanh(x @ w).astype(np.float32).sum())(w)

    (ours,), (apart,) = (run_tiled(gradient, [x, w], disabled, machine=SIZED) for disabled in ((), ("last_op",)))
    np.testing.assert_array_equal(ours, apart)
    (part,) = frontend.trace(jax.make_jaxpr(gradient)(x, w)).parts
    with_it, without = (run_passes(part, disabled).ops for disabled in ((), ("last_op",)))
    assert len(with_it) == len(without) - 1
