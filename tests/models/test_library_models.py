"""One model of each library that people build on JAX: value, gradient and a step of training are those of `jax.jit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import aspen

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    """A function of a library's user.

    Attributes:
        fun: takes `args`; gives a number and anything else, (loss, more), if it is differentiable; else any tree.
        args: the first of them is what to differentiate by.
        is_loss: whether it is differentiable.
        tolerance: as a share of the largest number of an array.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]
    is_loss: bool = True
    tolerance: float = 1e-4


CASES: dict[str, Callable[[], Case]] = {}


def case(make: Callable[[], Case]) -> Callable[[], Case]:
    CASES[make.__name__] = make
    return make


def assert_alike(actual: Any, expected: Any, tolerance: float) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(expected)[0]]
    arrays = list(zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True))
    largest = max(
        (float(np.abs(b).max(initial=0)) for _, b in arrays if jnp.issubdtype(jnp.result_type(b), jnp.inexact)), default=0
    )
    for where, (a, b) in zip(paths, arrays, strict=True):
        assert jax.typeof(a) == jax.typeof(b), where
        if jax.dtypes.issubdtype(jnp.result_type(b), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        if not jnp.issubdtype(b.dtype, jnp.inexact):
            np.testing.assert_array_equal(a, b, err_msg=where)
            continue
        scale = max(float(np.abs(b[np.isfinite(b)]).max(initial=0)), 1e-2 * largest, 1e-30)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=where)


# --- flax ---


@case
def linen() -> Case:
    """A residual network with batch norms, whose statistics move, and dropout."""
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        width: int
        stride: int

        @nn.compact
        def __call__(self, x, train):
            y = nn.Conv(self.width, (3, 3), (self.stride, self.stride), use_bias=False)(x)
            y = nn.relu(nn.BatchNorm(not train)(y))
            y = nn.BatchNorm(not train)(nn.Conv(self.width, (3, 3), use_bias=False)(y))
            if y.shape != x.shape:
                x = nn.Conv(self.width, (1, 1), (self.stride, self.stride))(x)
            return nn.relu(x + y)

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.Conv(8, (3, 3))(x)
            for width, stride in ((8, 1), (16, 2)):
                x = Block(width, stride)(x, train)
            x = nn.Dropout(0.3, deterministic=not train)(x.mean((1, 2)))
            return nn.Dense(5)(x)

    model, x = Net(), normal(4, 16, 16, 3)
    labels = jnp.asarray([0, 4, 2, 1])
    variables = model.init(jax.random.key(0), x, False)

    def loss(params, statistics, key, x):
        logits, moved = model.apply(
            {"params": params, "batch_stats": statistics}, x, True, mutable=["batch_stats"], rngs={"dropout": key}
        )
        return -jax.nn.log_softmax(logits)[jnp.arange(4), labels].mean(), (logits, moved)

    return Case(loss, (variables["params"], variables["batch_stats"], jax.random.key(1), x))


@case
def linen_transformer() -> Case:
    """Attention with a causal mask under `nn.scan` and `nn.remat`."""
    nn = pytest.importorskip("flax.linen")

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            mask = nn.make_causal_mask(x[..., 0])
            x = x + nn.MultiHeadDotProductAttention(4)(nn.LayerNorm()(x), mask=mask)
            return x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.RMSNorm()(x)))), None

    class Decoder(nn.Module):
        @nn.compact
        def __call__(self, ids):
            embed = nn.Embed(50, 32)
            layers = nn.scan(nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
            return embed.attend(layers()(embed(ids), None)[0])

    model, ids = Decoder(), jnp.asarray(RANDOM.integers(50, size=(2, 10)))
    params = model.init(jax.random.key(0), ids)

    def loss(params, ids):
        logits = model.apply(params, ids)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], -1).mean(), logits

    return Case(loss, (params, ids))


@case
def nnx() -> Case:
    """A convolution, norms whose statistics move, attention, and weights of low rank, as states."""
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
            self.norm = nnx.GroupNorm(16, 4, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, 16, decode=False, rngs=rngs)
            self.batch_norm = nnx.BatchNorm(16, rngs=rngs)
            self.head = nnx.LoRALinear(16, 5, lora_rank=2, rngs=rngs)

        def __call__(self, x):
            x = nnx.silu(self.norm(self.conv(x)))
            x = x.reshape(x.shape[0], -1, 16)
            return self.head(self.batch_norm(x + self.attention(x))[:, -1])

    definition, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)

    def loss(params, rest, x, y):
        model = nnx.merge(definition, params, rest, copy=True)
        out = model(x)
        return ((out - y) ** 2).mean(), (out, nnx.state(model, nnx.BatchStat))

    return Case(loss, (params, rest, normal(3, 8, 8, 3), normal(3, 5)))


# --- equinox and what is built on it ---


@case
def equinox() -> Case:
    """A stateful batch norm, a recurrent cell under scan, attention, dropout."""
    eqx = pytest.importorskip("equinox")

    class Net(eqx.Module):
        conv: Any
        norm: Any
        cell: Any
        attention: Any
        dropout: Any
        head: Any
        name: str = eqx.field(static=True)

        def __init__(self, key):
            keys = jax.random.split(key, 4)
            self.conv = eqx.nn.Conv2d(3, 8, 3, padding=1, key=keys[0])
            self.norm = eqx.nn.BatchNorm(8, "batch", mode="batch")
            self.cell = eqx.nn.LSTMCell(8, 12, key=keys[1])
            self.attention = eqx.nn.MultiheadAttention(3, 12, key=keys[2])
            self.dropout = eqx.nn.Dropout(0.2)
            self.head = eqx.nn.MLP(12, 5, 16, 2, key=keys[3])
            self.name = "net"

        def __call__(self, x, state, key):
            x, state = self.norm(self.conv(x), state)
            rows = jax.nn.relu(x).mean(2).T

            def step(carry, row):
                carry = self.cell(row, carry)
                return carry, carry[0]

            _, hidden = jax.lax.scan(step, (jnp.zeros(12), jnp.zeros(12)), rows)
            hidden = self.attention(hidden, hidden, hidden)
            return self.head(self.dropout(hidden.mean(0), key=key)), state

    model, state = eqx.nn.make_with_state(Net)(jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    x, y, keys = normal(4, 3, 8, 8), normal(4, 5), jax.random.split(jax.random.key(1), 4)

    def loss(params, state, x, y, keys):
        model = eqx.combine(params, static)
        out, state = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))(x, state, keys)
        return ((out - y) ** 2).mean(), (out, state)

    return Case(loss, (params, state, x, y, keys))


@case
def diffrax() -> Case:
    """A neural differential equation with an adaptive step, differentiated through its steps."""
    diffrax, eqx = pytest.importorskip("diffrax"), pytest.importorskip("equinox")
    field = eqx.nn.MLP(3, 3, 16, 2, activation=jnp.tanh, key=jax.random.key(0))
    params, static = eqx.partition(field, eqx.is_inexact_array)

    def loss(params, y0, times):
        field = eqx.combine(params, static)
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: field(y)),
            diffrax.Tsit5(),
            times[0],
            times[-1],
            0.1,
            y0,
            saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(1e-4, 1e-4),
        )
        return (found.ys**2).mean(), found.ys

    return Case(loss, (params, normal(3), jnp.linspace(0, 1, 7)), tolerance=1e-3)


@case
def optimistix() -> Case:
    """Least squares by Levenberg-Marquardt and a root by Newton's method, differentiated implicitly."""
    optx = pytest.importorskip("optimistix")

    def loss(params, x, y):
        def residuals(guess, args):
            x, y = args
            return guess[0] * jnp.exp(-guess[1] * x) - y * params["gain"]

        fitted = optx.least_squares(residuals, optx.LevenbergMarquardt(1e-5, 1e-5), jnp.asarray([1.0, 0.5]), (x, y)).value
        root = optx.root_find(lambda z, a: z**3 + z - a, optx.Newton(1e-6, 1e-6), jnp.asarray(0.5), params["a"]).value
        return fitted.sum() + root, (fitted, root)

    x = jnp.linspace(0, 2, 30)
    return Case(loss, ({"gain": jnp.asarray(1.2), "a": jnp.asarray(2.0)}, x, 2 * jnp.exp(-0.7 * x)), tolerance=2e-3)


# --- haiku, keras ---


@case
def haiku_recurrent() -> Case:
    hk = pytest.importorskip("haiku")

    def forward(x):
        core = hk.DeepRNN([hk.LSTM(16), jax.nn.relu, hk.GRU(12)])
        out, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        return hk.MultiHeadAttention(2, 6, w_init=hk.initializers.VarianceScaling())(out, out, out)

    net, x = hk.without_apply_rng(hk.transform(forward)), normal(6, 3, 8)

    def loss(params, x):
        out = net.apply(params, x)
        return (out**2).mean(), out

    return Case(loss, (net.init(jax.random.key(0), x), x))


@case
def keras() -> Case:
    """A functional model, stateless, in training: batch norms and dropout move their state."""
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    layers = keras.layers
    inputs = keras.Input((12, 12, 3))
    y = layers.SeparableConv2D(8, 3, padding="same", activation="swish")(inputs)
    y = layers.BatchNormalization()(y)
    y = layers.Conv2DTranspose(6, 3, strides=2, padding="same")(y)
    y = layers.MaxPooling2D()(layers.UpSampling2D()(y))
    y = layers.Bidirectional(layers.LSTM(7))(layers.Reshape((24, -1))(y))
    model = keras.Model(inputs, layers.Dense(4)(layers.Dropout(0.2)(y)))

    def loss(trained, kept, x):
        out, kept = model.stateless_call(trained, kept, x, training=True)
        return (out**2).mean(), (out, kept)

    trained, kept = (
        [variable.value for variable in group] for group in (model.trainable_variables, model.non_trainable_variables)
    )
    return Case(loss, (trained, kept, normal(3, 12, 12, 3)))


# --- inference ---


@case
def numpyro() -> Case:
    """The potential of a hierarchical model, as NUTS differentiates it."""
    numpyro = pytest.importorskip("numpyro")
    from numpyro import distributions as dist
    from numpyro.infer.util import initialize_model

    def model(x, groups, y):
        scale = numpyro.sample("scale", dist.HalfCauchy(2.0))
        with numpyro.plate("groups", 3):
            offset = numpyro.sample("offset", dist.Normal(0, scale))
        slope = numpyro.sample("slope", dist.MultivariateNormal(jnp.zeros(4), jnp.eye(4)))
        numpyro.sample("y", dist.Bernoulli(logits=x @ slope + offset[groups]), obs=y)

    args = normal(40, 4), jnp.asarray(RANDOM.integers(3, size=40)), jnp.asarray(RANDOM.integers(2, size=40))
    found = initialize_model(jax.random.key(0), model, model_args=args, dynamic_args=True)

    def loss(params, x, groups, y):
        return found.potential_fn(x, groups, y)(params), found.postprocess_fn(x, groups, y)(params)

    return Case(loss, (found.param_info.z, *args))


@case
def numpyro_nuts() -> Case:
    """Some samples of NUTS: trees of leapfrog steps in while loops."""
    pytest.importorskip("numpyro")
    from numpyro.infer import NUTS

    target = normal(5)
    kernel = NUTS(potential_fn=lambda z: 0.5 * jnp.sum((z - target) ** 2), step_size=0.3, adapt_step_size=False, max_tree_depth=4)
    state = kernel.init(jax.random.key(0), 0, jnp.zeros(5), (), {})

    def run(state):
        return jax.lax.fori_loop(0, 3, lambda _, state: kernel.sample(state, (), {}), state)

    return Case(lambda state: run(state).z, (state,), is_loss=False, tolerance=1e-3)


@case
def blackjax() -> Case:
    """Hamiltonian Monte Carlo over a batch of chains, under scan."""
    blackjax = pytest.importorskip("blackjax")
    centre = normal(4)
    kernel = blackjax.nuts(lambda z: -0.5 * jnp.sum((z - centre) ** 2), step_size=0.4, inverse_mass_matrix=jnp.ones(4))
    states = jax.vmap(kernel.init)(normal(3, 4))

    def run(states, key):
        def step(states, key):
            states, info = jax.vmap(kernel.step)(jax.random.split(key, 3), states)
            return states, (states.position, info.acceptance_rate)

        return jax.lax.scan(step, states, jax.random.split(key, 4))

    return Case(run, (states, jax.random.key(1)), is_loss=False, tolerance=1e-3)


# --- optax, jraph ---


OPTIMIZERS = ("adamw", "lion", "adafactor", "lamb", "yogi", "novograd", "lbfgs", "sm3", "noisy_sgd", "muon")


@case
def optax() -> Case:
    """A step of many optimizers, clipped, with a schedule and an average of the weights."""
    optax = pytest.importorskip("optax")

    def optimizer(name):
        schedule = optax.warmup_cosine_decay_schedule(1e-3, 1e-2, 2, 10)
        special = {
            "muon": lambda: optax.contrib.muon(1e-2),
            "noisy_sgd": lambda: optax.noisy_sgd(1e-2, key=jax.random.key(0)),
            "lbfgs": lambda: optax.lbfgs(1e-2, linesearch=None),
        }
        made = special[name]() if name in special else getattr(optax, name)(schedule if name != "sm3" else 1e-2)
        return optax.chain(optax.clip_by_global_norm(1.0), made)

    made = {name: optimizer(name) for name in OPTIMIZERS}
    params = {"w": normal(12, 8), "b": normal(8)}
    x, y = normal(16, 12), normal(16, 8)

    def loss(params, x, y):
        return optax.losses.huber_loss(jnp.tanh(x @ params["w"] + params["b"]), y).mean()

    def steps(params, states, x, y):
        found = {}
        for name, optimizer in made.items():
            trained, state = params, states[name]
            for _ in range(2):
                updates, state = optimizer.update(jax.grad(loss)(trained, x, y), state, trained)
                trained = optax.apply_updates(trained, updates)
            found[name] = optax.incremental_update(trained, params, 0.1), state
        return found

    states = {name: optimizer.init(params) for name, optimizer in made.items()}
    return Case(steps, (params, states, x, y), is_loss=False, tolerance=1e-3)


@case
def optax_lbfgs() -> Case:
    """L-BFGS with its line search, in a while loop."""
    optax = pytest.importorskip("optax")
    target = normal(6)

    def value(z):
        return jnp.sum((z - target) ** 2) + jnp.sum(jnp.cosh(0.1 * z))

    solver = optax.lbfgs()

    def solve(z):
        value_and_grad = optax.value_and_grad_from_state(value)

        def step(carry):
            z, state, number = carry
            loss, gradient = value_and_grad(z, state=state)
            updates, state = solver.update(gradient, state, z, value=loss, grad=gradient, value_fn=value)
            return optax.apply_updates(z, updates), state, number + 1

        return jax.lax.while_loop(lambda carry: carry[2] < 4, step, (z, solver.init(z), 0))[0]

    return Case(solve, (jnp.zeros(6),), is_loss=False, tolerance=1e-3)


@case
def jraph() -> Case:
    """A graph network over a batch of padded graphs: gathers, sums over segments, a softmax over edges."""
    jraph = pytest.importorskip("jraph")
    senders, receivers = (jnp.asarray(RANDOM.integers(5, size=12)) for _ in range(2))

    def graph():
        return jraph.GraphsTuple(
            nodes=normal(5, 6), edges=normal(12, 4), globals=normal(1, 3), senders=senders, receivers=receivers,
            n_node=jnp.asarray([5]), n_edge=jnp.asarray([12]),
        )  # fmt: skip

    graphs = jraph.pad_with_graphs(jraph.batch([graph(), graph()]), 16, 30, 4)
    params = {
        "edge": normal(19, 4) / 4,
        "node": normal(17, 6) / 4,
        "global": normal(13, 3) / 4,
        "query": normal(6, 8),
        "logit": normal(16, 1),
    }

    def loss(params, graphs):
        network = jraph.GraphNetwork(
            update_edge_fn=jraph.concatenated_args(lambda x: jax.nn.relu(x @ params["edge"])),
            update_node_fn=jraph.concatenated_args(lambda x: jnp.tanh(x @ params["node"])),
            update_global_fn=jraph.concatenated_args(lambda x: x @ params["global"]),
        )
        attention = jraph.GAT(
            lambda nodes: nodes @ params["query"],
            lambda sent, received, edges: jnp.concatenate([sent, received], -1) @ params["logit"],
            lambda nodes: nodes,
        )
        moved = attention(network(graphs)._replace(edges=None))
        mask = jraph.get_graph_padding_mask(graphs)
        return jnp.where(mask[:, None], moved.globals, 0).sum() + (moved.nodes[:10] ** 2).mean(), moved

    return Case(loss, (params, graphs))


# --- What is asked of each ---


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_as_undecorated(name, either_mode):
    made = CASES[name]()
    whole = jax.value_and_grad(made.fun, has_aux=True) if made.is_loss else made.fun
    expected = jax.jit(whole)(*made.args)
    assert_alike(aspen(whole)(*made.args), expected, made.tolerance)
    if made.is_loss:
        around = jax.value_and_grad(aspen(made.fun), has_aux=True)
        assert_alike(jax.jit(around)(*made.args), expected, made.tolerance)


def test_what_orbax_restores_goes_on_as_if_nothing_had_happened(either_mode, tmp_path):
    checkpoints, optax = pytest.importorskip("orbax.checkpoint"), pytest.importorskip("optax")
    optimizer = optax.adam(1e-2)
    x, y = normal(16, 12), normal(16, 4)

    @aspen(weights=0)
    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["first"]["w"] + params["first"]["b"])
        return ((hidden @ params["second"]["w"] - y) ** 2).mean()

    @aspen
    def step(params, state, x, y):
        value, gradient = jax.value_and_grad(loss)(params, x, y)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    params = {"first": {"w": normal(12, 32), "b": normal(32)}, "second": {"w": normal(32, 4)}}
    state = optimizer.init(params)
    params, state, _ = step(params, state, x, y)
    with checkpoints.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "step", {"params": params, "state": state})
        checkpointer.wait_until_finished()
        abstract = jax.tree.map(jax.typeof, {"params": params, "state": state})
        like = jax.tree.map(lambda aval: jax.ShapeDtypeStruct(aval.shape, aval.dtype), abstract)
        restored = checkpointer.restore(tmp_path / "step", like)
    assert_alike(restored, {"params": params, "state": state}, 0)
    for _ in range(2):
        found, expected = step(restored["params"], restored["state"], x, y), step(params, state, x, y)
        assert_alike(found, expected, 0)
        assert_alike(loss(restored["params"], x, y), loss(params, x, y), 0)
        restored["params"], restored["state"], _ = found
        params, state, _ = expected
