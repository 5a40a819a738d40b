"""Loops and branches inside a decorated function: short loops are one op, others stay with XLA and their bodies run as tiles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import UnsupportedError, aspen
from tests import modes
from tests.primitive.test_transformations import kinked

SIZE = modes.sized(64, 128)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def layer(w, x):
    """Worth a custom call at SIZE x SIZE."""
    return jnp.tanh(x @ w) + jnp.sin(jnp.log(1 + x * x)) * 0.1


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x) * 2


clipped.defvjp(lambda x: (jnp.sin(x) * 2, x), lambda x, dy: (jnp.clip(dy * jnp.cos(x), -0.3, 0.3),))


def rnn(w, x):
    return lax.scan(lambda c, y: (layer(w, c + y), c.sum(0)), x, np.linspace(-1, 1, 4 * SIZE, dtype=np.float32).reshape(4, SIZE))


def backwards(w, x):
    return lax.scan(lambda c, y: (layer(w, c) * y, y), x, jnp.linspace(0.5, 1, 5), reverse=True, unroll=2)


def until_small(w, x):
    return lax.while_loop(lambda x: jnp.abs(x).max() > 0.3, lambda x: layer(w, x) * 0.5, x)


def counted(w, x):
    return lax.fori_loop(0, 5, lambda i, x: layer(w, x) * (i + 1), x)


def chosen(w, x):
    return lax.cond(x.sum() > 0, layer, lambda w, x: x - 1, w, x) + lax.switch(2, [layer, lambda w, x: x, layer], w, x)


def mapped(w, x):
    return lax.map(functools.partial(layer, w), jnp.stack([x, x * 2, -x]))


def mapped_in_batches(w, x):
    return lax.map(functools.partial(layer, w), jnp.stack([x] * 5), batch_size=2)


def associative(w, x):
    return lax.associative_scan(lambda a, b: jnp.einsum("nij,njk->nik", a, b), jnp.stack([w, x, w, x, w]) / 8)


def nested(w, x):
    def inner(x):
        return lax.fori_loop(0, 2, lambda _, x: layer(w, x), x)

    return lax.scan(lambda c, y: (lax.cond(y > 2, inner, lambda x: layer(w, x) * 2, c), None), x, jnp.arange(4))[0]


def with_custom_derivatives(w, x):
    return lax.scan(lambda c, y: (kinked(clipped(layer(w, c)) + y), None), x, jnp.linspace(0, 1, 3))[0]


def with_remat(w, x):
    return lax.scan(jax.checkpoint(lambda c, y: (layer(w, c) + y, None)), x, jnp.linspace(0, 1, 3))[0]


def with_policy(w, x):
    body = jax.checkpoint(
        lambda c, y: (layer(w, jnp.sin(c)) + y, None), policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    )
    return lax.scan(body, x, jnp.linspace(0, 1, 3))[0]


# name -> (function, custom calls at least, differentiable backwards)
CASES = {
    "scan": (rnn, 1, True),
    "reverse_scan": (backwards, 1, True),
    "while": (until_small, 1, False),
    "fori_loop": (counted, 1, True),
    "cond": (chosen, 3, True),
    "map": (mapped, 1, True),
    "map_in_batches": (mapped_in_batches, 1, True),
    "associative_scan": (associative, 1, True),
    "nested": (nested, 2, True),
    "custom_derivatives": (with_custom_derivatives, 1, True),
    "remat": (with_remat, 1, True),
    "remat_policy": (with_policy, 1, True),
}
W, X = normal(0, SIZE, SIZE) * SIZE**-0.5, normal(1, SIZE, SIZE)


def assert_close(ours, theirs, tolerance=2e-5):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert jax.typeof(got) == jax.typeof(want)
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * float(np.max(np.abs(want), initial=1e-3)))


def custom_calls(fun, *args):
    return jax.jit(fun).lower(*args).as_text().count("@aspen_run")


@pytest.mark.parametrize(("fun", "least_calls", "_"), CASES.values(), ids=CASES)
@pytest.mark.one_mode("asserts that shapes are tiled which XLA does as fast")
def test_bodies_are_tiled(fun, least_calls, _):
    decorated = aspen(fun)
    assert_close(decorated(W, X), jax.jit(fun)(W, X))
    explanation = decorated.explain(W, X)
    assert len(explanation.parts) >= least_calls
    for part in explanation.parts:
        part.graph.verify()
    assert custom_calls(decorated, W, X) >= least_calls


@pytest.mark.parametrize(("fun", "_", "backwards"), CASES.values(), ids=CASES)
@pytest.mark.sweep
def test_derivatives(fun, _, backwards):
    def loss(fun, w, x):
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(fun(w, x)))

    ours, theirs = functools.partial(loss, aspen(fun)), functools.partial(loss, fun)
    if backwards:
        got, want = (jax.jit(jax.value_and_grad(item, (0, 1)))(W, X) for item in (ours, theirs))
        assert_close(got, want, 1e-4)
        assert modes.IS_DEFAULT or custom_calls(jax.grad(ours), W, X) >= 1
    if fun is not with_custom_derivatives:
        directions = jnp.sin(W), jnp.cos(X)
        got, want = (jax.jit(lambda *args, item=item: jax.jvp(item, (W, X), args))(*directions) for item in (ours, theirs))
        assert_close(got, want, 1e-4)


@pytest.mark.parametrize("fun", [rnn, until_small, chosen, mapped, nested])
def test_batched(fun):
    xs = jnp.stack([X, X * 0.3])
    assert_close(jax.vmap(aspen(fun), (None, 0))(W, xs), jax.vmap(fun, (None, 0))(W, xs))


@pytest.mark.one_mode("asserts that nothing is tiled")
def test_cheap_bodies_are_left_alone():
    def fun(x):
        x = lax.fori_loop(0, 10, lambda i, x: x * 1.5 + i, x)
        return lax.cond(x > 3, jnp.sin, lambda x: lax.while_loop(lambda x: x < 3, lambda x: x + 1, x), x)

    explanation = aspen(fun).explain(1.0)
    assert not explanation.parts
    reasons = [item.reason for item in explanation.fallbacks if item.primitive in ("scan", "cond")]
    assert reasons == ["control flow over too little work for tiles"] * 2


@pytest.mark.one_mode("a function with effects is left to XLA")
def test_a_loop_with_effects_is_left_alone(capfd):
    def fun(w, x):
        def body(c, y):
            jax.debug.print("y is {y}", y=y)
            return layer(w, c), None

        return lax.scan(body, x, jnp.arange(2))[0]

    assert_close(aspen(fun)(W, X), fun(W, X))
    jax.effects_barrier()
    assert capfd.readouterr().out.count("y is 1") == 2


@pytest.mark.one_mode("asserts that shapes are tiled which XLA does as fast")
def test_the_loop_is_explained_and_its_bodies_are_parts():
    w, x = normal(0, 1024, 1024) / 32, normal(1, 1024, 1024)
    explanation = aspen(until_small).explain(w, x)
    assert [(item.primitive, item.reason) for item in explanation.fallbacks] == [
        ("while", "control flow; bodies that run as tiles: 2")
    ]
    with pytest.raises(UnsupportedError, match="left to XLA: while"):
        aspen(until_small).graph(w, x)


def test_strict_looks_into_bodies():
    assert_close(aspen(rnn, strict=True)(W, X), jax.jit(rnn)(W, X))

    def special(w, x):
        return lax.scan(lambda c, _: (lax.lgamma(layer(w, c)), None), x, None, length=2)[0]

    with pytest.raises(UnsupportedError, match=rf"lgamma\(float32\[{SIZE},{SIZE}\]\)"):
        aspen(special, strict=True)(W, X)


def test_tracers_do_not_leak_from_bodies():
    with jax.checking_leaks():
        jax.jit(jax.grad(lambda w: aspen(nested)(w, X).sum()))(W)


def _counted(body):
    return lambda *args: lax.while_loop(lambda s: s[0] < 3, body(*args[1:]), (0, args[0]))


@pytest.mark.parametrize("loop", ["whole", "mapped", "with weights", "around a decorated body", "three carries"])
def test_a_loop_whose_body_is_one_call_of_several_carries_ends(loop: str) -> None:
    x, w = np.full((modes.sized(100, 500), 200), 0.3, np.float32), np.eye(200, dtype=np.float32) * np.float32(0.9)
    sine = lambda: lambda s: (s[0] + 1, jnp.sin(s[1]) * 1.01)  # noqa: E731
    product = lambda w: lambda s: (s[0] + 1, jnp.tanh(s[1] @ w))  # noqa: E731
    three = lambda s: (jnp.sin(s[0]) * 1.01, s[1] + 1, s[2] * 0.5)  # noqa: E731
    cases = {
        "whole": (aspen(_counted(sine)), _counted(sine), (x,)),
        "mapped": (jax.vmap(aspen(_counted(sine))), jax.vmap(_counted(sine)), (x,)),
        "with weights": (aspen(_counted(product)), _counted(product), (x, w)),
        "around a decorated body": (_counted(lambda: aspen(sine())), _counted(sine), (x,)),
        "three carries": (
            lambda x: lax.while_loop(lambda s: s[1] < 3, aspen(three), (x, 0, x)),
            lambda x: lax.while_loop(lambda s: s[1] < 3, three, (x, 0, x)),
            (x,),
        ),
    }
    ours, plain, args = cases[loop]
    for got, expected in zip(jax.jit(ours)(*args), jax.jit(plain)(*args), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
