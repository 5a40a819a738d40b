"""Accuracy over cuts and bits, on a network that is trained here."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax.api.decorator import flat_call
from aspen_jax.errors import InputError
from aspen_jax.split import cut
from aspen_jax.split.accuracy import AccuracyMap, accuracy_map, relu_outputs
from aspen_jax.split.equations import flatten
from aspen_jax.split.quantise import RAW, dequantise, quantise
from tests.content import generator

RNG = generator(__name__)


def scores(params, x):
    x = x.reshape(len(x), -1)
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return x @ w + b


@pytest.fixture(scope="module")
def trained():
    """A network of two hidden layers, trained here, and the digits that it has not seen."""
    pytest.importorskip("sklearn")
    from aspen_jax.demo import digits

    data = digits.load_digits()
    random = np.random.default_rng(0)
    params = [
        (jnp.asarray(random.normal(size=(n, m)) * np.sqrt(2 / n), jnp.float32), jnp.zeros(m))
        for n, m in ((64, 64), (64, 32), (32, 10))
    ]

    def loss(params):
        log_probabilities = jax.nn.log_softmax(scores(params, data.images))
        return -jnp.take_along_axis(log_probabilities, data.labels[:, None], axis=1).mean()

    def step(state, _):
        params, velocity = state
        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.1 * g, velocity, jax.grad(loss)(params))
        return (jax.tree.map(jnp.add, params, velocity), velocity), None

    state = params, jax.tree.map(jnp.zeros_like, params)
    (params, _), _ = jax.jit(lambda state: jax.lax.scan(step, state, length=150))(state)
    return lambda x: scores(params, x), data.test_images, data.test_labels


@pytest.fixture(scope="module")
def of_digits(trained) -> AccuracyMap:
    return accuracy_map(*trained, bits=(1, 4, RAW))


def test_four_bits_cost_less_than_a_point(of_digits):
    assert of_digits.exact > 0.95
    measured = of_digits.values[~np.isnan(of_digits.values).any(axis=1)]
    assert len(measured) > 2
    assert (measured[:, 1] > of_digits.exact - 0.01).all()
    np.testing.assert_allclose(measured[:, 2], of_digits.exact, atol=0.003)  # both halves alone may round otherwise
    lowest = of_digits.lowest_bits(0.01)
    assert set(lowest[lowest > 0]) <= {1, 4}
    assert ((lowest == 0) == np.isnan(of_digits.values).any(axis=1)).all()


def test_only_cuts_of_relus_are_measured(trained, of_digits):
    model, images, _ = trained
    flat = flatten(flat_call(model, (images[:4],), {}))
    sparse = relu_outputs(flat)
    for k, variables in enumerate(flat.live(range(len(flat.equations) + 1))):
        is_measured = not np.isnan(of_digits.values[k]).any()
        is_input = set(variables) == set(flat.inputs)
        assert is_measured == (k == len(flat.equations) or is_input or set(variables) <= sparse)
    assert of_digits.left_out > 0.3


def test_the_map_is_what_two_halves_give(trained, of_digits):
    model, images, labels = trained
    inner = [k for k in range(1, len(of_digits.values) - 1) if not np.isnan(of_digits.values[k]).any()]
    k = int(RNG.choice(inner))
    head, tail = cut(model, k, images)
    for column, bits in enumerate((1, 4)):
        sent = [np.stack([dequantise(quantise(example, bits)) for example in np.asarray(value)]) for value in head(images)]
        right = np.asarray(tail(*sent)).argmax(-1) == labels
        assert abs(right.mean() - of_digits.values[k, column]) <= 0.005


def test_examples_fill_batches_in_any_number():
    x = RNG.normal(size=(23, 6)).astype(np.float32)
    w = RNG.normal(size=(6, 3)).astype(np.float32)

    def model(x):
        return jax.nn.relu(x) @ w

    labels = np.asarray(model(x)).argmax(-1)
    whole, parts = (accuracy_map(model, x, labels, (1, 5), batch=batch) for batch in (23, 5))
    np.testing.assert_array_equal(whole.values, parts.values)
    assert whole.exact == parts.exact == 1
    everything = accuracy_map(model, x, labels, (5,), only_relus=False)
    assert not np.isnan(everything.values).any()


@pytest.mark.parametrize(
    ("fun", "is_relu"),
    [
        (jax.nn.relu, True),
        (jax.nn.relu6, True),
        (lambda x: jnp.maximum(0, x), True),
        (lambda x: jnp.clip(x, 0, 6), True),
        (lambda x: jax.lax.clamp(0.0, x, 3.0), True),
        (lambda x: jnp.pad(jax.nn.relu(x).T, 1).reshape(-1), True),
        (lambda x: jnp.concatenate([jax.nn.relu(x), jnp.maximum(x, 0)]), True),
        (lambda x: jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID"), True),
        (jax.jit(jax.nn.relu), True),
        (lambda x: jnp.maximum(x, -1), False),
        (lambda x: jnp.maximum(x, x.T), False),
        (lambda x: jnp.clip(x, -1, 6), False),
        (lambda x: jnp.minimum(jax.nn.relu(x), -1), False),
        (lambda x: jnp.concatenate([jax.nn.relu(x), x]), False),
        (lambda x: jax.nn.relu(x) + 1, False),
        (lambda x: jnp.pad(jax.nn.relu(x), 1, constant_values=2), False),
        (jax.nn.gelu, False),
        (jax.nn.elu, False),
    ],
)
def test_relus_are_found(fun, is_relu):
    flat = flatten(flat_call(fun, (np.ones((4, 4), np.float32),), {}))
    assert (flat.outputs[0] in relu_outputs(flat)) == is_relu


@pytest.mark.parametrize(
    ("inputs", "labels", "options"),
    [(4, 5, {}), (0, 0, {}), (4, 4, {"batch": 0}), (4, 4, {"bits": (0,)}), (4, 4, {"bits": (4.5,)})],
)
def test_data_that_do_not_fit_are_refused(inputs, labels, options):
    with pytest.raises(InputError, match=r"Pass|Use"):
        accuracy_map(jax.nn.relu, np.ones((inputs, 3), np.float32), np.ones(labels, int), **options)
