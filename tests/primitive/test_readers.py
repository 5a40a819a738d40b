"""Whatever reads a jaxpr sees into a decorated function as into one of jax.jit, wherever the function stands.

Each reader meets each place. Results are those of the undecorated function. Where a reader refuses that, the error is alike, and
the pair is named in `REFUSED`.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.experimental import checkify, jet
from jax.extend import core
from jax.interpreters import partial_eval

from aspen_jax import aspen
from aspen_jax.runtime import CUSTOM_CALL_TARGET
from tests.modes import sized

ROWS, COLUMNS = sized((16, 32), (256, 128))
_RANDOM = np.random.default_rng(0)
X, TANGENT = (jnp.asarray(_RANDOM.standard_normal((ROWS, COLUMNS)), np.float32) for _ in range(2))
W = jnp.asarray(_RANDOM.standard_normal((COLUMNS, COLUMNS)) * COLUMNS**-0.5, np.float32)


def layer(x):
    y = 1 + x * x
    return jnp.tanh(x @ W) / y + jnp.sin(x) * jnp.log(y)


def looped(f, x):
    return lax.while_loop(lambda state: state[0] < 2, lambda state: (state[0] + 1, f(state[1])), (0, x))[1]


def with_derivative(f, x):
    @jax.custom_jvp
    def inner(x):
        return f(x)

    inner.defjvp(lambda primals, tangents: (inner(*primals), 2 * f(primals[0]) * tangents[0]))
    return inner(x)


PLACES = {
    "bare": lambda f, x: f(x),
    "within jit": lambda f, x: jax.jit(f)(x),
    "twice": lambda f, x: f(f(x)),
    "scan": lambda f, x: lax.scan(lambda c, _: (f(c), c.sum()), x, None, length=2),
    "while_loop": looped,
    "cond": lambda f, x: lax.cond(x.sum() > 0, f, lambda x: x * 2, x),
    "vmap": lambda f, x: jax.vmap(f)(x[:, None]),
    "map": lambda f, x: lax.map(f, x.reshape(4, -1, COLUMNS)),
    "checkpoint": lambda f, x: jax.checkpoint(f)(x),
    "checkpoint in scan": lambda f, x: lax.scan(lambda c, _: (jax.checkpoint(f)(c), None), x, None, length=2)[0],
    "custom_jvp": with_derivative,
    "gradient": lambda f, x: jax.grad(lambda x: f(x).sum())(x),
}


def total(place):
    return lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(place(x)))


def checked(place):
    """The values, and what the checks say of a NaN."""

    def read(x):
        error, values = checkify.checkify(place, errors=checkify.nan_checks)(x)
        return values, error.get() is None

    return read(X), read(X.at[0, 0].set(jnp.nan))[1]


def without_dead_code(place):
    """What is left when JAX has dropped half of the results."""
    jaxpr = jax.make_jaxpr(lambda x: (total(place)(x), total(place)(x * 2)))(X)
    alive, used = partial_eval.dce_jaxpr(jaxpr.jaxpr, [False, True])
    consts = jaxpr.consts if len(alive.constvars) == len(jaxpr.consts) else ()
    assert used == [True]
    return core.jaxpr_as_fun(core.ClosedJaxpr(alive, consts))(X)


def exported(place):
    unchecked = [export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)]
    return export.deserialize(export.export(jax.jit(place), disabled_checks=unchecked)(X).serialize()).call(X)


def mapped_over_devices(place):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("x")
    return jax.shard_map(lambda x: total(place)(x)[None], mesh=mesh, in_specs=spec, out_specs=spec)(X)


READERS = {
    "call": lambda place: place(X),
    "jit": lambda place: jax.jit(place)(X),
    "eval_shape": lambda place: jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(place, X)),
    "jvp": lambda place: jax.jvp(place, (X,), (TANGENT,)),
    "linearize": lambda place: jax.linearize(place, X)[1](TANGENT),
    "grad": lambda place: jax.grad(total(place))(X),
    "value_and_grad in jit": lambda place: jax.jit(jax.value_and_grad(total(place)))(X),
    "second derivative": lambda place: jax.jvp(jax.grad(total(place)), (X,), (TANGENT,)),
    "vmap": lambda place: jax.vmap(place)(jnp.stack([X, TANGENT])),
    "evaluation": lambda place: core.jaxpr_as_fun(jax.make_jaxpr(place)(X))(X),
    "dead code": without_dead_code,
    "checkify": checked,
    "export": exported,
    "shard_map": mapped_over_devices,
    "jet": lambda place: jet.jet(place, (X,), ((TANGENT, TANGENT * 0),)),
}
RUNS_NOTHING = pytest.mark.one_mode("runs nothing")
# What JAX does not do for the undecorated function.
REFUSED = {
    "grad": {"while_loop"},
    "value_and_grad in jit": {"while_loop"},
    "second derivative": {"while_loop"},
    "jet": {"scan", "while_loop", "cond", "map", "checkpoint", "checkpoint in scan", "custom_jvp"},
}


@RUNS_NOTHING
def test_what_jax_refuses_is_told(record_property):
    assert REFUSED.keys() <= READERS.keys()
    assert all(places <= PLACES.keys() for places in REFUSED.values())
    pairs = [f"{reader} of {place}" for reader, places in REFUSED.items() for place in sorted(places)]
    said = f"{len(pairs)} of {len(READERS) * len(PLACES)} pairs of a reader and a place raise with and without us"
    record_property("summary", f"readers: {said}: {', '.join(pairs)}")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("reader", [pytest.param(name, marks=RUNS_NOTHING) if name == "eval_shape" else name for name in READERS])
@pytest.mark.sweep
def test_a_reader_sees_in(reader, place):
    read = READERS[reader]
    if place in REFUSED.get(reader, ()):
        with pytest.raises((ValueError, TypeError, KeyError)) as refusal:
            read(functools.partial(PLACES[place], layer))
        with pytest.raises(refusal.type):
            read(functools.partial(PLACES[place], aspen(layer)))
        return
    expected = read(functools.partial(PLACES[place], layer))
    ours = read(functools.partial(PLACES[place], aspen(layer)))
    assert jax.tree.structure(ours) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
