"""Row programs: what becomes one op, against jax and float64, on the CPU target in use (`test_targets.py` runs the others)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from aspen_jax import aspen
from aspen_jax.cost.machine import Machine
from aspen_jax.ops.row_program import ROW
from aspen_jax.passes import run_passes
from tests.passes.test_passes import kinds, traced
from tests.rotation import examples
from tests.tiled import check, run_tiled


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def layer_norm(x, axes=-1, scale=1.0, shift=0.0):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * lax.rsqrt(jnp.var(x, axes, keepdims=True) + 1e-5) * scale + shift


def group_norm(x, groups, scale, shift):
    y = x.reshape(*x.shape[:-1], groups, -1)
    mean = y.mean((1, 2, 4), keepdims=True)
    variance = jnp.square(y).mean((1, 2, 4), keepdims=True) - jnp.square(mean)
    return ((y - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * scale + shift


def cross_entropy(x, labels):
    return -(jax.nn.one_hot(labels, x.shape[-1]) * jax.nn.log_softmax(x)).sum(-1)


def guarded_softmax(x, mask):
    """A row of which nothing is left is zeros."""
    x = jnp.where(mask, x, -jnp.inf)
    top = lax.stop_gradient(jnp.max(x, -1, keepdims=True))
    e = jnp.where(mask, jnp.exp(x - jnp.where(jnp.isfinite(top), top, 0.0)), 0.0)
    return jnp.where(mask.any(-1, keepdims=True), e / jnp.maximum(e.sum(-1, keepdims=True), 1e-20), 0.0)


LABELS = np.arange(16, dtype=np.int32) * 3
MASK = np.tril(np.ones((16, 20), bool), -1)
ONE_OP: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "softmax": (jax.nn.softmax, (normal(24, 128),)),
    "softmax of ten classes": (jax.nn.softmax, (normal(50, 10),)),
    "softmax over the first axis": (lambda x: jax.nn.softmax(x, 0), (normal(24, 128),)),
    "softmax over a middle axis": (lambda x: jax.nn.softmax(x, 1), (normal(3, 20, 37),)),
    "softmax over two axes": (lambda x: jax.nn.softmax(x, (1, 3)), (normal(3, 5, 16, 7),)),
    "softmax of a transposed array": (lambda x: jax.nn.softmax(x.T).T, (normal(30, 40),)),
    "softmax of half of the columns": (lambda x: jax.nn.softmax(x[:, ::2]), (normal(30, 40),)),
    "softmax of a vocabulary": (jax.nn.softmax, (normal(8, 50257),)),
    "log softmax": (jax.nn.log_softmax, (normal(24, 10),)),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, -1), (normal(24, 100),)),
    "masked softmax": (lambda x, m: jax.nn.softmax(x, where=m), (normal(2, 3, 16, 20), MASK | np.eye(16, 20, dtype=bool))),
    "guarded softmax": (guarded_softmax, (normal(2, 3, 16, 20), np.broadcast_to(MASK, (2, 3, 16, 20)))),
    "layer norm": (lambda x, s, b: layer_norm(x, -1, s, b), (normal(3, 8, 96), normal(96), normal(96))),
    "layer norm of long rows": (lambda x, s, b: layer_norm(x, -1, s, b), (normal(9, 5000), normal(5000), normal(5000))),
    "instance norm": (lambda x: layer_norm(x, (1, 2)), (normal(2, 7, 9, 40),)),
    "group norm": (lambda x, s, b: group_norm(x, 4, s, b), (normal(2, 5, 6, 32), normal(32), normal(32))),
    "rms norm": (lambda x, s: x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * s, (normal(16, 300), normal(300))),
    "standardize": (jax.nn.standardize, (normal(16, 77),)),
    "l2 normalisation": (lambda x: x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-6), (normal(33, 70),)),
    "cross entropy": (cross_entropy, (normal(16, 50), LABELS)),
    "distance to the mean": (lambda x: jnp.abs(x - x.mean(-1, keepdims=True)).max(-1), (normal(16, 50),)),
    "integers": (lambda x: (x - x.min(-1, keepdims=True)) // x.max(-1, keepdims=True), ((normal(16, 33) * 50).astype(np.int32),)),
    "distances from the largest": (lambda x: jnp.square(x - x.max(-1, keepdims=True)).sum(-1), (normal(16, 50),)),
    "squares of integers": (lambda x: ((x - x.max(-1, keepdims=True)) ** 2).sum(-1), ((normal(16, 33) * 50).astype(np.int32),)),
    "largest square": (lambda x: jnp.square(x - x.mean(-1, keepdims=True)).max(-1), (normal(16, 50),)),
    "squares of a sum": (lambda x, y: (x + y) / jnp.square(x + y).sum(-1, keepdims=True), (normal(9, 7), normal(9, 7))),
    "group norm of narrow groups": (lambda x: group_norm(x, 4, 1.0, 0.0), (normal(2, 9, 11, 4 * 10),)),
    "group norm of wider groups": (lambda x: group_norm(x, 3, 1.0, 0.0), (normal(1, 12, 13, 3 * 37),)),
    "a residual beside it": (lambda x, y: layer_norm(x + y) * 2.0 + y, (normal(16, 48), normal(16, 48, seed=1))),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_OP)
def test_what_reads_a_row_more_than_once_is_one_op(name):
    function, arguments = ONE_OP[name]
    program, _ = traced(function, *arguments)
    assert kinds(run_passes(program)) == ["rows"]
    check(function, *arguments, tolerance=3e-6)
    check(function, *arguments, tolerance=3e-6, disabled=("rows",))
    for ours, apart in zip(*(run_tiled(function, arguments, off) for off in ((), ("rows",))), strict=True):
        np.testing.assert_allclose(ours, apart, rtol=1e-5, atol=3e-6 * max(1.0, float(np.abs(apart).max())))


def test_other_uses_of_a_value_and_other_axes_stay_apart():
    def moments_too(x):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5), mean

    program, _ = traced(moments_too, normal(16, 33))
    assert kinds(run_passes(program)) == ["reduce", "rows"]
    check(moments_too, normal(16, 33))

    def two_ways(x):
        return jax.nn.softmax(jax.nn.softmax(x, 0), 1)

    program, _ = traced(two_ways, normal(24, 33))
    assert kinds(run_passes(program)) == ["rows", "rows"]
    check(two_ways, normal(24, 33))


def test_a_bias_of_a_product_stays_its_epilogue():
    def function(x, w, b):
        return layer_norm(x @ w + b)

    arguments = (normal(16, 24), normal(24, 40), normal(40))
    program, _ = traced(function, *arguments)
    assert kinds(run_passes(program)) == ["matmul", "rows"]
    check(function, *arguments)


def test_a_reduction_alone_stays_one():
    program, _ = traced(lambda x: jnp.log(jnp.mean(x, -1)), np.ones((16, 33), np.float32))
    assert kinds(run_passes(program)) == ["reduce"]


def test_what_costs_little_is_not_kept():
    program, _ = traced(layer_norm, normal(16, 33))
    (op,) = run_passes(program).ops
    assert [stage.kind == ROW for stage in op.attrs.rows.stages].count(True) == 1
    program, _ = traced(jax.nn.softmax, normal(16, 33))
    (op,) = run_passes(program).ops
    assert [stage.kind == ROW for stage in op.attrs.rows.stages].count(True) == 2


@examples(60)
@given(st.data(), st.integers(0, 2**31))
def test_any_rows_of_any_shape_against_float64(data, seed):
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.sampled_from([1, 2, 3, 5, 8, 16, 17, 33, 70])) for _ in range(rank))
    axes = tuple(sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    order = tuple(data.draw(st.permutations(range(rank))))
    x = normal(*shape, seed=seed) * np.float32(data.draw(st.sampled_from([0.01, 1.0, 30.0])))
    scale = normal(
        *(1 if axis in axes and data.draw(st.booleans()) else extent for axis, extent in enumerate(shape)), seed=seed + 1
    )

    def function(x, scale):
        y = x.transpose(order).transpose(np.argsort(order))
        return jax.nn.softmax(y * scale, axes), layer_norm(y, axes, scale), jax.nn.logsumexp(y, axes)

    x64, s64 = x.astype(np.float64), scale.astype(np.float64)
    e = np.exp(x64 * s64 - (x64 * s64).max(axes, keepdims=True))
    exact = (
        e / e.sum(axes, keepdims=True),
        (x64 - x64.mean(axes, keepdims=True)) / np.sqrt(x64.var(axes, keepdims=True) + 1e-5) * s64,
        np.log(np.exp(x64 - x64.max(axes, keepdims=True)).sum(axes)) + x64.max(axes),
    )
    results = run_tiled(function, (x, scale))
    theirs = jax.jit(function)(x, scale)
    for ours, wanted, xla in zip(results, exact, theirs, strict=True):
        # Differences of large numbers lose digits: no more of them than XLA loses.
        error = float(np.abs(ours - wanted).max())
        assert error <= 2 * float(np.abs(xla - wanted).max()) + 3e-6 * max(1e-3, float(np.abs(wanted).max()))


@pytest.mark.parametrize("name", ["softmax", "log softmax", "logsumexp", "layer norm", "l2 normalisation", "masked softmax"])
@pytest.mark.parametrize("across", [False, True])
def test_special_values_are_those_of_jax(name, across):
    function, (x, *rest) = ONE_OP[name]
    x = x.copy()
    rows = x.reshape(-1, x.shape[-1])
    rows[0] = -np.inf
    rows[1, 3] = np.nan
    rows[2, 0] = np.inf
    rows[3] = 1e30
    rows[4] *= 1e-30
    rows[5, 1] = -np.inf
    rows[6] *= 100
    if across:
        x, plain = np.ascontiguousarray(x.swapaxes(0, -1)), function
        function = lambda x, *rest: plain(x.swapaxes(0, -1), *rest)  # noqa: E731
    (ours,) = run_tiled(function, (x, *rest))
    theirs = np.asarray(jax.jit(function)(x, *rest))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(ours[~finite], theirs[~finite])
    np.testing.assert_allclose(ours[finite], theirs[finite], rtol=2e-5, atol=1e-6)


def test_long_sums_are_accurate():
    x = np.random.default_rng(0).random((4, 300_000), np.float32) + 1.0
    (ours,) = run_tiled(lambda x: x / x.sum(-1, keepdims=True), (x[:, :16000],), machine=Machine())
    np.testing.assert_allclose(ours.astype(np.float64).sum(-1), 1.0, rtol=1e-6)
    for y, axis in ((x[:, :60000], 1), (np.ascontiguousarray(x[:, :16000].T), 0)):
        y = np.concatenate([y] * 2, 1 - axis)
        (ours,) = run_tiled(lambda x, axis=axis: jnp.abs(x).sum(axis) + x.max(axis), (y,), machine=Machine())
        exact = y.astype(np.float64).sum(axis) + y.max(axis)
        np.testing.assert_allclose(ours, exact, rtol=3e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_are_computed_in_float32(dtype):
    x = jnp.asarray(normal(16, 130), dtype)
    for function in (jax.nn.softmax, layer_norm, lambda x: jax.nn.softmax(x.astype(jnp.float32)).astype(x.dtype)):
        program, _ = traced(function, np.asarray(x))
        assert kinds(run_passes(program)) == ["rows"]
        (ours,) = run_tiled(function, (np.asarray(x),))
        exact = np.asarray(function(x.astype(jnp.float32)))
        assert ours.dtype == x.dtype
        np.testing.assert_allclose(ours.astype(np.float32), exact, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (7, 1), (1, 7)])
def test_empty_and_single_rows(shape):
    check(lambda x: (layer_norm(x), x.sum(-1), x - x.sum(-1, keepdims=True)), normal(*shape))
    if shape[1]:
        check(lambda x: (jax.nn.softmax(x), jax.nn.logsumexp(x, -1)), normal(*shape))


def kernels_of(function: Callable[..., Any], *arguments: Any) -> list[str]:
    decorated = aspen(function, strict=True)
    explanation = decorated.explain(*arguments)
    np.testing.assert_allclose(decorated(*arguments), jax.jit(function)(*arguments), rtol=2e-5, atol=2e-5)
    return [op.kernel for part in explanation.parts for op in part.ops]


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.LayerNormalization,
        keras.layers.RMSNormalization,
        lambda: keras.layers.GroupNormalization(8),
        keras.layers.UnitNormalization,
        keras.layers.Softmax,
    ],
)
def test_layers_of_keras_are_one_row_program(layer):
    layer, x = layer(), jnp.asarray(normal(2, 6, 6, 32))
    layer.build(x.shape)
    variables = [variable.value for variable in layer.trainable_variables]
    assert kernels_of(lambda variables, x: layer.stateless_call(variables, [], x)[0], variables, x) == ["rows"]


@pytest.mark.parametrize("kind", [nnx.LayerNorm, nnx.RMSNorm, lambda n, rngs: nnx.GroupNorm(n, 8, rngs=rngs)])
def test_layers_of_flax_are_one_row_program(kind):
    definition, state = nnx.split(kind(32, rngs=nnx.Rngs(0)))
    assert kernels_of(lambda state, x: nnx.merge(definition, state)(x), state, jnp.asarray(normal(2, 6, 6, 32))) == ["rows"]


def test_layers_of_equinox_are_one_row_program():
    for layer in (eqx.nn.LayerNorm(32), eqx.nn.RMSNorm(32)):
        parameters, static = eqx.partition(layer, eqx.is_array)
        function = lambda parameters, x, static=static: jax.vmap(eqx.combine(parameters, static))(x)  # noqa: E731
        assert kernels_of(function, parameters, jnp.asarray(normal(20, 32))) == ["rows"]


def test_a_reader_of_rows_that_also_reads_across_them_stays_apart():
    """Found by a random program: it was the last op of a row program, in which no view could say what it read."""
    x, a, b = normal(2, 8, 2), normal(2, 2, 8, seed=1), normal(2, 2, 8, seed=2)

    def function(x, a, b):
        y = jnp.tanh(x)
        return y.transpose(0, 2, 1) * jnp.square(y).mean((1, 2))[:, None, None] + a * b

    check(function, x, a, b)
