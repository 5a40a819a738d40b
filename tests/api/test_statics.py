"""What may be a static argument, what is refused because a change in it would not be seen, and static leaves of results."""

import dataclasses
import enum
import functools
import itertools
import logging
import operator
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import InputError, aspen

pytestmark = pytest.mark.usefixtures("either_mode")

X = jnp.arange(3.0)


class Config:
    def __init__(self, rate=2.0):
        self.rate = rate

    def times(self, x):
        return x * self.rate


class Comparable(Config):
    def __eq__(self, other):
        return isinstance(other, Comparable)

    __hash__ = object.__hash__


class Hashed(Config):
    def __eq__(self, other):
        return isinstance(other, Hashed) and self.rate == other.rate

    def __hash__(self):
        return hash(self.rate)


class Slotted:
    __slots__ = ("rate",)


@dataclasses.dataclass
class Plain:
    rate: float = 2.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: object = 2.0
    note: str = dataclasses.field(default="", compare=False)


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        *(Config, np, jnp.sin, jax.nn.relu, jax.jit(abs), jax.custom_vjp(abs), aspen(abs), np.add, len, str.upper, "a".upper),
        *(Color.RED, np.dtype("f4"), jnp.bfloat16, ..., None, "text", b"bytes", frozenset({1, "a"}), object(), range(3)),
        *(Frozen(), Frozen("text"), Hashed(), jax.devices()[0], jax.sharding.SingleDeviceSharding(jax.devices()[0])),
        *(operator.itemgetter(0), functools.lru_cache(abs), jax.make_jaxpr(abs)(1.0), jax.lax.add_p, logging.getLogger("a")),
        *(jax.tree.structure(1), weakref.ref(Config), jax.ShapeDtypeStruct((), jnp.int32)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_does_not_change_is_static(value):
    seen = []

    def fun(x, value):
        seen.append(value)
        return x + 1

    decorated = aspen(fun)
    for _ in range(2):
        np.testing.assert_allclose(decorated(X, value), X + 1)
    np.testing.assert_allclose(decorated(X, value=value), X + 1)
    assert all(item is value for item in seen)
    assert len(seen) == 2


CONFIG = Config()
GENERATOR = np.random.default_rng(0)
CHANGING = [
    *(GENERATOR, np.random.RandomState(0), GENERATOR.normal, threading.Lock(), [].append, weakref.ref(CONFIG), np.vectorize(abs)),
    *(iter([1]), iter([1]).__next__, itertools.count(), map(abs, [1]), zip([1]), (item for item in [1])),
    *(CONFIG, Comparable(), Slotted(), Plain(), CONFIG.times, Frozen(CONFIG), Frozen((CONFIG,)), frozenset({CONFIG})),
    *(functools.partial(CONFIG.times), functools.partial(next, iter([1])), functools.partial(abs, key=CONFIG)),
]


@pytest.mark.filterwarnings("ignore:Python iterable type:DeprecationWarning")  # of JAX, about the same
@pytest.mark.parametrize("value", CHANGING, ids=lambda value: type(value).__name__)
def test_what_may_change_is_refused(value):
    decorated = aspen(lambda x, value: x)
    for call in (decorated, decorated.explain, decorated.graph, decorated.trace):
        for args, kwargs in (((X, value), {}), ((X,), {"value": value}), ((X, [{"a": value}]), {})):
            with pytest.raises(InputError, match="; pass"):
                call(*args, **kwargs)


def test_the_error_says_what_to_write():
    @aspen
    def fun(config):
        return config

    with pytest.raises(InputError, match=r"^fun: argument config\['a'\] is <.*Config.* of type Config, which hashes by .*; pass"):
        fun({"a": CONFIG})


def test_values_with_a_hash_are_compared():
    decorated = aspen(lambda x, config: x * config.rate)
    for config in (Frozen(2.0), Frozen(3.0), Hashed(4.0), Hashed(5.0), Frozen(2.0, note="other")):
        np.testing.assert_allclose(decorated(X, config), X * config.rate)
    config = Hashed(2.0)
    for config.rate in (2.0, 3.0):
        np.testing.assert_allclose(decorated(X, config), X * config.rate)

    class Model:
        def __init__(self):
            self.config = Hashed(2.0)

        @aspen
        def __call__(self, x):
            return x * self.config.rate

    model = Model()
    for model.config.rate in (2.0, 3.0):
        np.testing.assert_allclose(model(X), X * model.config.rate)


def test_partials_and_bound_methods_are_what_they_hold():
    traces = []

    def fun(x, of):
        traces.append(None)
        return of(x)

    def times(w, x, power=1):
        return w * x**power

    decorated = aspen(fun)
    for scale in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(decorated(X, functools.partial(times, jnp.ones(3) * scale)), X * scale)
    assert len(traces) == 1
    for power in (1, 2, 1):
        np.testing.assert_allclose(decorated(X, functools.partial(times, np.ones(3), power=power)), X**power)
    assert len(traces) == 3
    for scale in (1.0, 2.0):
        np.testing.assert_allclose(decorated(X, (jnp.ones(3) * scale).__mul__), X * scale)
        np.testing.assert_allclose(decorated(X, functools.partial(Hashed(scale).times)), X * scale)
        np.testing.assert_allclose(decorated(X, Hashed(scale).times), X * scale)
    for call in (decorated.graph, decorated.explain, decorated.lower, decorated.eval_shape, decorated.graph_inputs):
        call(X, functools.partial(times, jnp.ones(3)))
    weighted = aspen(fun, weights=0)
    np.testing.assert_allclose(weighted(X, functools.partial(times, jnp.ones(3) * 2)), X * 2)


def test_what_a_function_closes_over_is_read_when_it_is_traced_as_by_jit():
    config = Config()
    ours, theirs = aspen(lambda x: x * config.rate), jax.jit(lambda x: x * config.rate)
    for config.rate in (2.0, 3.0):
        np.testing.assert_allclose(ours(X), theirs(X))
    for make in (lambda f: aspen(f), jax.jit):
        config = Config()
        method = make(config.times)
        for config.rate in (2.0, 3.0):
            np.testing.assert_allclose(method(X), X * 2)


def test_static_leaves_of_results_come_back_as_they_were():
    def fun(x, flag=True):
        return {"x": x * 2, "f": jnp.tanh, "s": "text", "n": None, "list": [abs, x, Color.RED], "flag": flag, "number": 3}

    decorated = aspen(fun)
    for result in (decorated(X), decorated(X, flag=True), aspen(lambda x: decorated(x))(X)):
        assert result["f"] is jnp.tanh
        assert (result["s"], result["n"], result["list"][0], result["list"][2]) == ("text", None, abs, Color.RED)
        np.testing.assert_allclose(result["x"], X * 2)
        np.testing.assert_allclose(result["list"][1], X)
        assert isinstance(result["number"], jax.Array)  # as under jax.jit
    assert decorated(X, True)["flag"] is True
    assert decorated.eval_shape(X) == {**jax.eval_shape(lambda x: {**fun(x), "f": None, "s": None, "list": [None, x, None]}, X)}
    np.testing.assert_allclose(decorated.lower(X).compile()(X)["x"], X * 2)
    graph = aspen(lambda x: {"x": x * 2, "f": jnp.tanh, "y": x + 1}).graph(X)
    assert graph.result_names == ("result.x", "result.y")
    stream = aspen(lambda x: (x * 2, "text")).stream(X)
    assert stream(X)[1] == "text"


def test_results_that_would_be_shared_by_all_calls_are_refused():
    @aspen
    def fun(x):
        return x, {"a": Config()}

    with pytest.raises(InputError, match=r"^fun returns <.*Config.*> of type Config as result\[1\]\['a'\], neither .*; return"):
        fun(X)


def test_sixty_nested_functions():
    def nested(decorate):
        fun = lambda x: x  # noqa: E731
        for _ in range(60):
            fun = decorate(lambda x, inner=fun: jnp.tanh(inner(x)) + 0.1)
        return fun

    ours, theirs = nested(aspen), nested(jax.jit)
    for transform in (lambda f: f, jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum()), jax.jacfwd, jax.checkpoint):
        np.testing.assert_allclose(transform(ours)(X), transform(theirs)(X), rtol=1e-5, atol=1e-6)


def test_functions_nested_deeply_are_as_those_that_are_not():
    @aspen
    def innermost(x, n, name, array):
        assert not isinstance(array, np.ndarray)
        for _ in range(n):
            x = getattr(jnp, name)(x) * array.at[0].set(2)
        return x, name, 2.0

    def wrapped(inner, *args):
        return aspen(lambda x: inner(x, *args))

    def nested(inner, *args):
        fun = wrapped(inner, *args)
        for _ in range(6):
            fun = wrapped(fun)
        return fun(X)

    result, name, number = nested(innermost, 2, "sin", np.ones(3, np.float32))
    np.testing.assert_allclose(result, innermost(X, 2, "sin", np.ones(3, np.float32))[0], rtol=1e-6)
    assert name == "sin"
    assert isinstance(number, jax.Array)
    with pytest.raises(InputError, match=r"^innermost: argument name is"):
        nested(innermost, 2, CONFIG, np.ones(3, np.float32))


def test_meshes_and_partition_specs_are_static():
    """They hash by identity, at least in JAX 0.10, but never change."""
    seen = []

    @aspen
    def constrained(x, spec, mesh):
        seen.append(spec)
        return jax.lax.with_sharding_constraint(x * 2, jax.sharding.NamedSharding(mesh, spec))

    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.arange(16.0).reshape(4, 4)
    free = jax.P.UNCONSTRAINED
    for spec in (jax.P("x"), jax.P("x"), jax.P(None, "x"), jax.P(None, "x"), jax.P(free, ("x",)), jax.P(free, ("x",))):
        result = constrained(x, spec, mesh)
        np.testing.assert_array_equal(result, x * 2)
        assert free in spec or result.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, spec), 2)
    assert seen == [jax.P("x"), jax.P(None, "x"), jax.P(free, "x")]
    assert isinstance(seen[0], jax.P)
    np.testing.assert_array_equal(constrained(x, jax.P("x"), mesh.abstract_mesh), x * 2)


def test_partition_specs_are_static_with_sums_that_devices_add_up_later():
    """JAX lets nobody unpack such a specification."""
    seen = []

    @aspen
    def doubled(x, spec):
        seen.append(spec)
        return x * 2

    specs = [jax.P(None, unreduced={"x"}), jax.P(None, reduced={"x"}), jax.P("y", unreduced={"x"})]
    for spec in specs + specs:
        np.testing.assert_array_equal(doubled(np.ones(4, np.float32), spec), 2)
    assert seen == specs
