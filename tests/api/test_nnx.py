"""Modules of flax.nnx change in place: what a decorated function changes in them is kept, as by `nnx.jit`, or refused."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import InputError, aspen
from aspen_jax.api.bound import BoundAspenFunction
from tests.modes import sized

nnx = pytest.importorskip("flax.nnx")
optax = pytest.importorskip("optax")

BATCH, WIDTH = sized((32, 16), (1024, 64))


def waves(x):
    return jnp.sin(x) * jnp.log(2 + x * x)


class Net(nnx.Module):
    """A batch norm with its statistics, dropout with its random stream, a counter, and weights that two layers share."""

    def __init__(self, rngs: Any):
        self.embed = nnx.Linear(8, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.hidden = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.again = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.again.kernel = self.hidden.kernel
        self.head = nnx.Linear(WIDTH, 4, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, x: jax.Array) -> jax.Array:
        self.calls[...] += 1
        x = self.dropout(waves(self.norm(self.embed(x))))
        return self.head(waves(self.again(waves(self.hidden(x)))))

    def loss(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return ((self(x) - y) ** 2).mean()


X = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, 8)), jnp.float32)
Y = 2 * X[:, :4]


def loss(model, x, y):
    return model.loss(x, y)


def step(model, optimizer, x, y):
    value, gradients = nnx.value_and_grad(loss)(model, x, y)
    optimizer.update(model, gradients)
    return value


def step_around(decorated_loss, model, optimizer, x, y):
    value, gradients = nnx.value_and_grad(decorated_loss)(model, x, y)
    optimizer.update(model, gradients)
    return value


def by_jax(definition, state, x, y):
    model, optimizer = nnx.merge(definition, state)
    return step(model, optimizer, x, y), nnx.state((model, optimizer))


def functional(decorated, model, optimizer, x, y):
    value, state = decorated(*nnx.split((model, optimizer)), x, y)
    nnx.update((model, optimizer), state)
    return value


def trained(step, **how):
    """Losses of six steps, and all state behind them, by path."""
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2, eps=1e-3), wrt=nnx.Param)
    losses = [float(step(model, optimizer, X, Y)) for _ in range(6)]
    assert model.again.kernel is model.hidden.kernel
    state = nnx.to_pure_dict(nnx.state((model, optimizer)))
    return losses, {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(state)}


def assert_trained_alike(ours, theirs):
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-4)
    assert ours[1].keys() == theirs[1].keys()
    for path, want in theirs[1].items():
        got = ours[1][path]
        assert got.dtype == want.dtype
        if jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4, err_msg=path)


@pytest.fixture(scope="module")
def by_nnx():
    result = trained(nnx.jit(step))
    assert result[0][-1] != result[0][0]
    return result


@pytest.mark.parametrize(
    "decorated",
    [
        aspen(step),
        nnx.jit(aspen(step)),
        aspen(nnx.jit(step)),
        functools.partial(step_around, aspen(loss)),
        nnx.jit(functools.partial(step_around, aspen(loss))),
        aspen(functools.partial(step_around, aspen(loss))),
        lambda *args: aspen(lambda bundle, options: step(*bundle["all"], *options))({"all": args[:2]}, options=args[2:]),
        functools.partial(functional, aspen(by_jax)),
        functools.partial(functional, jax.jit(aspen(by_jax))),
    ],
)
@pytest.mark.sweep
def test_a_train_step_learns_as_under_nnx_jit(by_nnx, decorated):
    assert_trained_alike(trained(decorated), by_nnx)


def test_a_train_step_is_traced_once():
    traces = []

    @aspen
    def counted(*args):
        traces.append(None)
        return step(*args)

    trained(counted)
    assert len(traces) == 1


def forward_twins():
    return Net(nnx.Rngs(params=1, dropout=2)), Net(nnx.Rngs(params=1, dropout=2))


def assert_same_state(ours, theirs):
    for got, want in zip(jax.tree.leaves(nnx.state(ours)), jax.tree.leaves(nnx.state(theirs)), strict=True):
        if not jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", [(), 0])
def test_statistics_streams_and_counters_move_on_in_a_forward_pass(weights):
    ours, theirs = forward_twins()
    decorated = aspen(lambda model, x: model(x), weights=weights)
    wanted = nnx.jit(lambda model, x: model(x))
    kernel = ours.embed.kernel.get_raw_value()
    for _ in range(3):
        np.testing.assert_allclose(decorated(ours, X), wanted(theirs, X), rtol=1e-4, atol=1e-5)
    assert int(ours.calls[...]) == 3
    assert int(ours.dropout.rngs.count[...]) == 3
    assert ours.embed.kernel.get_raw_value() is kernel  # what did not change is not even copied
    assert_same_state(ours, theirs)


@pytest.mark.parametrize(
    ("decorate", "call"),
    [
        (lambda model: aspen(model), lambda model, decorated: decorated(X)),
        (lambda model: aspen(model.__call__), lambda model, decorated: decorated(X)),
        (lambda model: aspen(model, weights="x"), lambda model, decorated: decorated(x=X)),
        (lambda model: aspen(model.__call__, weights=0), lambda model, decorated: decorated(X)),
        (lambda model: aspen(Net.__call__), lambda model, decorated: decorated(model, X)),
    ],
)
def test_a_module_itself_or_its_method_is_decorated(decorate, call):
    ours, theirs = forward_twins()
    decorated = decorate(ours)
    for _ in range(2):
        np.testing.assert_allclose(call(ours, decorated), theirs(X), rtol=1e-4, atol=1e-5)
    ours.head.bias[...] += 1.0  # trained elsewhere meanwhile
    theirs.head.bias[...] += 1.0
    np.testing.assert_allclose(call(ours, decorated), theirs(X), rtol=1e-4, atol=1e-5)
    assert_same_state(ours, theirs)


def test_a_decorated_module_is_pickled_with_its_decorator():
    model = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    copy = pickle.loads(pickle.dumps(aspen(model)))
    assert isinstance(copy, BoundAspenFunction)
    np.testing.assert_allclose(copy(X), model(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_pytree", [True, False])
def test_decorated_methods_change_their_module(is_pytree):
    class Counter(nnx.Module, pytree=is_pytree):
        def __init__(self):
            self.total = nnx.Variable(jnp.zeros(()))
            self.scale = nnx.Param(jnp.ones(()))

        @aspen
        def add(self, x):
            self.total[...] += x * self.scale[...]
            return self.total[...]

    counter = Counter()
    assert [float(counter.add(2.0)) for _ in range(3)] == [2.0, 4.0, 6.0]
    counter.scale[...] = jnp.asarray(10.0)
    assert float(counter.add(2.0)) == 26.0
    assert float(counter.total[...]) == 26.0


def test_streams_metrics_and_lone_variables_are_objects_too():
    rngs, same = nnx.Rngs(3), nnx.Rngs(3)
    draw = aspen(lambda rngs: jax.random.normal(rngs(), (4,)))
    first, second = draw(rngs), draw(rngs)
    np.testing.assert_array_equal(first, jax.random.normal(same(), (4,)))
    np.testing.assert_array_equal(second, jax.random.normal(same(), (4,)))

    metric = nnx.metrics.Average()
    update = aspen(lambda metric, values: metric.update(values=values))
    update(metric, jnp.arange(4.0))
    update(metric, jnp.ones(4))
    assert float(metric.compute()) == 10 / 8

    variable, other = nnx.Variable(jnp.arange(3.0)), nnx.Variable(jnp.zeros(3))

    def exchange(one, two):
        one[...], two[...] = two[...] + 1, one[...]

    aspen(exchange)(variable, two=other)
    np.testing.assert_array_equal(variable[...], np.ones(3))
    np.testing.assert_array_equal(other[...], np.arange(3))
    aspen(lambda one: exchange(*one))([variable, variable])
    np.testing.assert_array_equal(variable[...], jnp.ones(3))


def test_new_structure_reaches_the_caller():
    class Growing(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(4, 4, rngs=nnx.Rngs(0))])
            self.depth = 1

        def grow(self):
            self.layers.append(nnx.Linear(4, 4, rngs=nnx.Rngs(self.depth)))
            self.depth += 1

    ours, theirs = Growing(), Growing()
    decorated = aspen(Growing.grow)
    for _ in range(2):
        decorated(ours)
        theirs.grow()
    assert ours.depth == theirs.depth == len(ours.layers) == 3
    for one, two in zip(ours.layers, theirs.layers, strict=True):
        np.testing.assert_allclose(one.kernel[...], two.kernel[...], rtol=1e-6)


def test_a_module_that_is_made_inside_is_returned_whole():
    made = aspen(lambda key: Net(nnx.Rngs(key)))(jax.random.key(0))
    assert made.again.kernel is made.hidden.kernel
    assert_same_state(made, Net(nnx.Rngs(jax.random.key(0))))

    @aspen
    def chained(model, x):
        return model, {"y": model(x)}

    model = Net(nnx.Rngs(0))
    returned, out = chained(model, X)
    assert returned is model
    assert int(model.calls[...]) == 1
    assert out["y"].shape == (BATCH, 4)


@pytest.mark.one_mode("asserts errors")
def test_what_a_function_closes_over_and_changes_is_refused():
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2, eps=1e-3), wrt=nnx.Param)
    message = r"closes over .*different trace level.*; make the object an argument, whose changes are kept, or .* nnx.split"
    for fun, args in (
        (lambda x: model(x), (X,)),
        (lambda x, y: step(model, optimizer, x, y), (X, Y)),
        (functools.partial(step, model, optimizer), (X, Y)),
        (lambda x, rate: model(x) * rate, (X, 2.0)),
    ):
        for decorated in (aspen(fun), jax.jit(aspen(fun)), aspen(fun).explain):
            with pytest.raises(InputError, match=message):
                decorated(*args)
    assert int(model.calls[...]) == 0


def test_a_module_from_outside_may_be_read_under_a_trace():
    model = nnx.Linear(8, WIDTH, rngs=nnx.Rngs(0))
    decorated = aspen(lambda model, x: jnp.sin(model(x)))
    want = jnp.sin(model(X))
    np.testing.assert_allclose(jax.jit(lambda x: decorated(model, x))(X), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(aspen(lambda x: jnp.sin(model(x)))(X), want, rtol=1e-5, atol=1e-5)
    changed = Net(nnx.Rngs(0))
    with pytest.raises(Exception, match="different trace level"):
        jax.jit(lambda x: decorated(changed, x))(X)
    assert int(changed.calls[...]) == 0


def test_a_state_is_data():
    """As under `jax.jit`: a function of a state returns the new one."""
    model = Net(nnx.Rngs(0))
    definition, state = nnx.split(model)

    @aspen
    def run(state, x):
        merged = nnx.merge(definition, state)
        return merged(x), nnx.state(merged)

    _, new = run(state, X)
    assert int(state["calls"][...]) == 0
    assert int(new["calls"][...]) == 1


@pytest.mark.one_mode("asserts that shapes are tiled which XLA does as fast")
def test_graph_explain_lower_and_prepare_take_modules():
    model = nnx.Sequential(nnx.Linear(8, 16, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(16, 4, rngs=nnx.Rngs(1)))
    decorated = aspen(lambda model, x: model(x), weights="model")
    want = model(X)
    assert len(decorated.explain(model, X).parts) == 1
    decorated.graph(model, X).verify()
    assert decorated.cost_analysis(model, X)["flops"] > 2 * BATCH * (8 * 16 + 16 * 4)
    assert decorated.eval_shape(model, X).shape == want.shape
    np.testing.assert_allclose(decorated.lower(model, X).compile()(model, X), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(decorated(decorated.prepare(model, X), X), want, rtol=1e-5, atol=1e-5)
    training = Net(nnx.Rngs(0))
    aspen(loss).explain(training, X, Y)
    assert int(training.calls[...]) == 0


def test_transformations_around_and_inside_keep_state():
    ours, theirs = forward_twins()
    got = nnx.grad(aspen(loss))(ours, X, Y)
    want = nnx.grad(loss)(theirs, X, Y)
    for one, two in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5)
    assert_same_state(ours, theirs)

    def body(model, x):
        return model, model(x)

    xs = jnp.stack([X] * 3)
    got = aspen(lambda model, xs: nnx.scan(body, in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))(model, xs)[1])(ours, xs)
    want = nnx.scan(body, in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))(theirs, xs)[1]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert_same_state(ours, theirs)
    with jax.disable_jit():
        np.testing.assert_allclose(aspen(loss)(ours, X, Y), loss(theirs, X, Y), rtol=1e-4)
    assert_same_state(ours, theirs)


def test_hijax_variables_are_read_as_under_jit():
    variable = nnx.Variable(jnp.arange(3.0), hijax=True)

    def read(variable, x):
        return variable[...] * x

    np.testing.assert_array_equal(aspen(read)(variable, 2.0), jax.jit(read)(variable, 2.0))
