"""Weights closed over, marked and prepared: stored once in the order in which they are read, and still what they were."""

import gc
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import InputError, aspen
from aspen_jax.api import weights as prepared_weights
from aspen_jax.api.weights import PreparedArray
from aspen_jax.lowering.compile import Options, compile_jaxpr


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def dense(params, x):
    """As torch and equinox hold weights: [out, in]."""
    for w in params["layers"]:
        x = jnp.tanh(x @ w.T)
    return x * params["scale"]


def convolution(w, x):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))


def grouped(w, x):
    return lax.conv_general_dilated(
        x, w, (2, 1), "VALID", dimension_numbers=("NHWC", "OIHW", "NHWC"), feature_group_count=x.shape[3]
    )


def several_dimensions(w, x):
    return jnp.einsum("bi,hdi->bhd", x, w)


def heads(w, x):
    """As Keras and Flax hold the weights of attention: [in, heads, size]."""
    return jnp.einsum("bi,ihd->bhd", x, w)


PARAMS = {"layers": [normal(0, 7, 5), normal(1, 6, 7)], "scale": normal(2, 6)}
CASES = {
    "dense": (dense, PARAMS, normal(3, 4, 5)),
    "convolution": (convolution, normal(4, 8, 6, 3, 3), normal(5, 2, 6, 9, 7)),
    "depthwise": (grouped, normal(6, 6, 1, 3, 3), normal(7, 2, 9, 7, 6)),
    "panels": (dense, {"layers": [normal(10, 64, 5), normal(11, 90, 64)], "scale": normal(12, 90)}, normal(3, 4, 5)),
    "panels_of_heads": (heads, normal(13, 6, 3, 32), normal(14, 4, 6)),
    "several_dimensions": (several_dimensions, normal(8, 3, 4, 5), normal(9, 2, 5)),
}
cases = pytest.mark.parametrize(("fun", "weights", "x"), CASES.values(), ids=CASES)


def count_prepared(tree):
    return sum(isinstance(leaf, PreparedArray) for leaf in jax.tree.leaves(tree, is_leaf=prepared_weights.is_prepared))


def assert_close(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * float(np.max(np.abs(theirs), initial=1e-3)))


@cases
def test_all_three_ways_give_the_same(fun, weights, x):
    want = jax.jit(fun)(weights, x)
    marked = aspen(fun, weights=0)
    assert_close(aspen(fun)(weights, x), want)
    assert_close(aspen(lambda x: fun(weights, x))(x), want)
    for _ in range(2):
        assert_close(marked(weights, x), want)
    ready = marked.prepare(weights, jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert count_prepared(ready) == (2 if fun is dense else 1)
    for call in (marked, jax.jit(marked), aspen(fun), jax.jit(aspen(fun, strict=True))):
        assert_close(call(ready, x), want)
    with jax.disable_jit():
        assert_close(marked(ready, x), want)


@cases
def test_prepared_weights_are_read_as_they_are_stored(fun, weights, x):
    """No copy and no stride: the operand of each product and convolution ends in a dense dimension."""
    ready = aspen(fun, weights=0).prepare(weights, x)

    def program(fun, *args):
        (part,) = compile_jaxpr(jax.make_jaxpr(fun)(*args), Options()).parts
        return part.program

    restored = program(lambda weights, x: fun(prepared_weights.restore(weights), x), ready, x)
    constant = program(lambda x: fun(weights, x), x)
    for item in (restored, constant):
        readers = [op for op in item.ops if op.family.weight_inputs]
        assert readers
        for op in readers:
            assert op.inputs[1].shape[-1] == 1 or op.inputs[1].view.strides()[-1] == 1
    if any(op.family.name == "matmul_panels" for op in constant.ops):
        assert all(
            op.family.name == "matmul_panels" for item in (restored, constant) for op in item.ops if op.family.weight_inputs
        )
        return
    assert any(op.inputs[1].view.strides()[-1] != 1 for op in program(fun, weights, x).ops if op.family.name == "matmul") or (
        len(program(fun, weights, x).ops) > len(restored.ops)
    )


def test_weights_that_lie_well_are_left_alone():
    def fun(params, x):
        y = lax.conv_general_dilated(x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return y.mean((1, 2)) @ params["head"]

    params = {"kernel": normal(0, 3, 3, 4, 8), "head": normal(1, 8, 5)}
    assert count_prepared(aspen(fun, weights=0).prepare(params, normal(2, 1, 9, 9, 4))) == 0


def products(fun, *args):
    """The names of the products in the function's programs, and the shapes of its constants."""
    parts = compile_jaxpr(jax.make_jaxpr(fun)(*args), Options()).parts
    names = [op.family.name for part in parts for op in part.program.ops if op.family.name.startswith("matmul")]
    return names, [value.shape for part in parts for value, _ in part.program.constants]


def test_weights_are_stored_in_panels_once():
    w, x = normal(0, 8, 64), normal(1, 3, 8)
    decorated = aspen(lambda w, x: x @ w, weights=0)
    ready = decorated.prepare(w, x)
    assert (ready.stored.shape, ready.in_panels, ready.shape) == ((2, 8, 32), (8, 64), (8, 64))
    np.testing.assert_array_equal(jnp.asarray(ready), w)
    assert products(lambda ready, x: x @ prepared_weights.restore(ready), ready, x)[0] == ["matmul_panels"]
    assert products(lambda x: (x @ w) * (x @ w + 1), x)[1] == [(2, 8, 32)]


def test_weights_that_others_read_too_are_not_stored_in_panels():
    w, x = normal(0, 60, 8), jnp.arange(3)

    def tied(w, x):
        return w[x] @ w.T

    assert_close(aspen(tied, weights=0)(w, x), tied(w, x))
    ready = aspen(tied, weights=0).prepare(w, x)
    assert not (isinstance(ready, PreparedArray) and ready.in_panels)
    names, constants = products(lambda x: tied(w, x), x)
    assert names == ["matmul_panels"]
    assert sorted(constants) == [(2, 8, 32), (60, 8)]  # as constants they are, beside what the others read


def test_transformations_of_panels():
    w, x = normal(0, 8, 64), normal(1, 3, 8)
    decorated = aspen(lambda w, x: jnp.tanh(x @ w), weights=0)
    ready = decorated.prepare(w, x)

    def loss(w, x):
        return (jnp.tanh(x @ w) ** 2).sum()

    got = jax.jit(jax.grad(lambda w, x: (decorated(w, x) ** 2).sum(), (0, 1)))(ready, x)
    assert_close((prepared_weights.restore(got[0]), got[1]), jax.grad(loss, (0, 1))(w, x))
    assert_close(jax.vmap(decorated, (None, 0))(ready, x[:, None]), jnp.tanh(x @ w)[:, None])


def test_prepared_once_and_shared_between_functions():
    one, other = aspen(dense, weights=0), aspen(lambda x, params: dense(params, x), weights="params")
    x = normal(3, 4, 5)
    ready = one.prepare(PARAMS, x)
    assert one.prepare(PARAMS)["layers"][0] is ready["layers"][0]
    assert other.prepare(x, PARAMS)["layers"][0] is ready["layers"][0]
    assert other.prepare(x, params=PARAMS)["layers"][1] is ready["layers"][1]
    assert_close(other(x, ready), jax.jit(dense)(PARAMS, x))


def test_what_was_prepared_goes_with_the_array():
    w = normal(0, 9, 5)
    decorated = aspen(lambda w, x: x @ w.T, weights=0)
    decorated(w, normal(1, 2, 5))
    copy = weakref.ref(decorated.prepare(w).stored)
    assert copy() is not None
    before = len(prepared_weights._prepared)
    del w
    gc.collect()
    assert copy() is None
    assert len(prepared_weights._prepared) == before - 1


def test_a_new_array_is_prepared_anew():
    decorated = aspen(lambda w, x: x @ w.T, weights=0)
    x = normal(0, 2, 5)
    for seed in range(3):
        w = normal(seed, 4, 5)
        assert_close(decorated(w, x), x @ w.T)


def test_transformations_of_prepared_weights():
    x = normal(3, 4, 5)
    decorated = aspen(dense, weights=0)
    ready = decorated.prepare(PARAMS, x)

    def loss(fun, params, x):
        return (fun(params, x) ** 2).sum()

    want = jax.grad(lambda *args: loss(dense, *args), (0, 1))(PARAMS, x)
    got = jax.jit(jax.grad(lambda *args: loss(decorated, *args), (0, 1)))(ready, x)
    assert_close((prepared_weights.restore(got[0]), got[1]), want)
    assert_close(jax.grad(lambda *args: loss(decorated, *args), (0, 1))(PARAMS, x), want)
    xs = jnp.stack([x, x * 2])
    assert_close(jax.vmap(decorated, (None, 0))(ready, xs), jax.vmap(dense, (None, 0))(PARAMS, xs))
    assert_close(jax.vmap(decorated, (None, 0))(PARAMS, xs), jax.vmap(dense, (None, 0))(PARAMS, xs))


def test_a_prepared_array_passes_for_the_array():
    w = normal(0, 3, 4, 5)
    ready = prepared_weights.prepare(w, (2, 0, 1))
    assert (ready.shape, ready.dtype) == (w.shape, w.dtype)
    np.testing.assert_array_equal(jnp.asarray(ready), w)


def test_equinox_models_gain_unchanged():
    model = eqx.nn.MLP(5, 3, 8, 2, key=jax.random.key(0))
    x = normal(1, 4, 5)
    parameters, static = eqx.partition(model, eqx.is_array)
    decorated = aspen(lambda parameters, x: jax.vmap(eqx.combine(parameters, static))(x), weights=0)
    assert_close(decorated(parameters, x), jax.vmap(model)(x))


def test_large_weights_are_the_same_after_the_engine_has_moved_their_pages():
    w, x = normal(0, 1536, 1024), normal(1, 2, 1536)
    plain = jax.jit(aspen(lambda w, x: x @ w))
    closed = jax.jit(aspen(lambda x: x @ w))
    before, want = np.array(w), np.asarray(x) @ np.asarray(w)
    for _ in range(4):
        np.testing.assert_allclose(plain(w, x), want, atol=1e-3)
        np.testing.assert_allclose(closed(x), want, atol=1e-3)
    np.testing.assert_array_equal(w, before)


def test_weights_of_methods():
    class Model:
        @aspen(weights=1)
        def __call__(self, w, x):
            return x @ w.T

    w, x = normal(0, 4, 5), normal(1, 2, 5)
    model = Model()
    assert_close(model(w, x), x @ w.T)
    assert count_prepared(type(model).__call__.__get__(model).prepare(w, x)) == 1


def test_deleted_weights_are_refused_by_name():
    decorated = aspen(dense, weights=0)
    params = {"layers": [normal(0, 7, 5), normal(1, 6, 7)], "scale": normal(2, 6)}
    x = normal(3, 4, 5)
    decorated(params, x)
    params["layers"][1].delete()
    with pytest.raises(InputError, match=r"^dense: argument params\['layers'\]\[1\] .* deleted or donated .*; pass"):
        decorated(params, x)


def test_what_cannot_be_prepared_is_refused():
    with pytest.raises(InputError, match=r"^dense has no weights to prepare; say which"):
        aspen(dense).prepare(PARAMS)
    with pytest.raises(InputError, match=r"^dense.prepare: it was not called yet with weights .* pass all arguments"):
        aspen(dense, weights=0).prepare(PARAMS)
    with pytest.raises((TypeError, ValueError), match=r"dot_general|incompatible|shape"):
        aspen(dense, weights=0).prepare(PARAMS, normal(0, 4, 9))
