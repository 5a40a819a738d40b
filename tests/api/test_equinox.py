"""Modules of Equinox: train steps in all nestings are what `equinox.filter_jit` makes of them."""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

from aspen_jax import aspen

pytestmark = pytest.mark.usefixtures("either_mode")

X = jax.random.normal(jax.random.key(1), (4, 8))
KEY = jax.random.key(2)
ADAM = optax.adam(1e-2)


class Net(eqx.Module):
    mlp: eqx.nn.MLP
    norm: eqx.nn.LayerNorm
    dropout: eqx.nn.Dropout
    name: str
    activation: Callable = jax.nn.gelu

    def __call__(self, x, key=None):
        return self.dropout(self.norm(self.activation(self.mlp(x))), key=key)


NET = Net(eqx.nn.MLP(8, 8, 16, 1, key=KEY), eqx.nn.LayerNorm(8), eqx.nn.Dropout(0.5), "net")


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for got, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        if eqx.is_array(want):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        else:
            assert type(got) is type(want)
            assert got == want


def loss(net, x, key):
    return (jax.vmap(net)(x, jax.random.split(key, len(x))) ** 2).mean()


def descend(net, x, key):
    gradient = eqx.filter_grad(loss)(net, x, key)
    return eqx.apply_updates(net, jax.tree.map(lambda leaf: -0.1 * leaf, gradient))


def adam(net, state, x, key):
    value, gradient = eqx.filter_value_and_grad(loss)(net, x, key)
    updates, state = ADAM.update(gradient, state, eqx.filter(net, eqx.is_inexact_array))
    return eqx.apply_updates(net, updates), state, value


NESTINGS = {
    "aspen": aspen,
    "filter_jit(aspen)": lambda step: eqx.filter_jit(aspen(step)),
    "aspen(filter_jit)": lambda step: aspen(eqx.filter_jit(step)),
    "aspen(aspen)": lambda step: aspen(aspen(step)),
}


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("net", [NET, eqx.nn.inference_mode(NET)], ids=["training", "inference"])
def test_a_train_step_returns_its_model(nesting, net):
    ours, theirs = NESTINGS[nesting](descend), eqx.filter_jit(descend)
    one = other = net
    for _ in range(3):
        one, other = ours(one, X, KEY), theirs(other, X, KEY)
        assert_same(one, other)
    assert one.dropout.p == 0.5  # not an array, and not trained


@pytest.mark.parametrize("nesting", NESTINGS)
def test_a_train_step_with_an_optimizer(nesting):
    state = ADAM.init(eqx.filter(NET, eqx.is_inexact_array))
    ours, theirs = NESTINGS[nesting](adam), eqx.filter_jit(adam)
    one = other = (NET, state)
    for _ in range(3):
        *one, value = ours(*one, X, KEY)
        *other, expected = theirs(*other, X, KEY)
        assert_same((one, value), (other, expected))


def test_gradients_inside_and_outside():
    want = eqx.filter_grad(loss)(NET, X, KEY)
    assert_same(eqx.filter_grad(aspen(loss))(NET, X, KEY), want)
    assert_same(aspen(eqx.filter_grad(loss))(NET, X, KEY), want)
    assert_same(aspen(eqx.filter_grad(aspen(loss)))(NET, X, KEY), want)
    assert_same(eqx.filter_jit(eqx.filter_grad(aspen(loss)))(NET, X, KEY), want)


def test_vmap_inside_and_outside():
    net = eqx.nn.inference_mode(NET)
    want = jax.vmap(net)(X)
    assert_same(eqx.filter_vmap(aspen(lambda net, x: net(x)), in_axes=(None, 0))(net, X), want)
    assert_same(aspen(eqx.filter_vmap(lambda net, x: net(x), in_axes=(None, 0)))(net, X), want)
    ensemble = eqx.filter_vmap(lambda key: eqx.nn.MLP(8, 8, 16, 1, key=key))(jax.random.split(KEY, 3))
    axes = (eqx.if_array(0), None)
    over = lambda fun: eqx.filter_vmap(fun, in_axes=axes)(ensemble, X[0])  # noqa: E731
    assert_same(over(aspen(lambda net, x: net(x))), over(lambda net, x: net(x)))


def test_state_of_batch_norms():
    class Normed(eqx.Module):
        norm: eqx.nn.BatchNorm
        linear: eqx.nn.Linear

        def __init__(self):
            self.norm = eqx.nn.BatchNorm(8, "batch", mode="batch")
            self.linear = eqx.nn.Linear(8, 8, key=KEY)

        def __call__(self, x, state):
            return self.norm(self.linear(x), state)

    def batched(net, state, x):
        return jax.vmap(net, axis_name="batch", in_axes=(0, None), out_axes=(0, None))(x, state)

    net, state = eqx.nn.make_with_state(Normed)()
    decorated = aspen(batched)
    ours, theirs = decorated(net, state, X), eqx.filter_jit(batched)(net, state, X)
    assert_same(jax.tree.leaves(ours), jax.tree.leaves(theirs))
    decorated(net, ours[1], X)


def test_methods_return_their_module():
    class Scorer(eqx.Module):
        embed: eqx.nn.Linear
        activation: Callable

        @aspen
        def __call__(self, x):
            return self.activation(jax.vmap(self.embed)(x))

        @aspen
        def shifted(self, by):
            return eqx.tree_at(lambda item: item.embed.bias, self, self.embed.bias + by)

    scorer = Scorer(eqx.nn.Linear(8, 8, key=KEY), jax.nn.relu)
    moved = scorer.shifted(1.0)
    assert moved.activation is jax.nn.relu
    np.testing.assert_allclose(moved.embed.bias, scorer.embed.bias + 1)
    np.testing.assert_allclose(moved(X), jax.nn.relu(jax.vmap(moved.embed)(X)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        *(eqx.nn.Conv2d(1, 2, 3, key=KEY), eqx.nn.GRUCell(2, 2, key=KEY), eqx.nn.MultiheadAttention(2, 4, key=KEY)),
        *(eqx.nn.Embedding(3, 2, key=KEY), eqx.nn.Sequential([eqx.nn.Lambda(jax.nn.relu)]), eqx.nn.PReLU(), eqx.nn.RMSNorm(3)),
        *(eqx.nn.Dropout(), eqx.nn.RotaryPositionalEmbedding(4)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_come_back_as_they_were(layer):
    assert_same(aspen(lambda layer: layer)(layer), eqx.filter_jit(lambda layer: layer)(layer))
