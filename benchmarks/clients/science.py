"""Simulation, optimisation, reinforcement learning and graphs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.clients.program import Program, client, integers, library, normal, weights


@client("jax_md")
def molecular_dynamics(batch: int) -> Program:
    """Twenty steps of particles at constant energy."""
    space, energy, simulate = (library(f"jax_md.{name}") for name in ("space", "energy", "simulate"))
    count = 64 * batch
    side = (count / 0.8) ** (1 / 3)
    displacement, shift = space.periodic(side)
    potential = energy.lennard_jones_pair(displacement)
    places = math.ceil(count ** (1 / 3) - 1e-9)
    grid = jnp.stack(jnp.meshgrid(*[jnp.arange(places)] * 3), -1).reshape(-1, 3)[:count] * side / places

    def run(positions: Any, key: Any) -> Any:
        start, step = simulate.nve(potential, shift, dt=1e-3)
        state = lax.fori_loop(0, 20, lambda _, state: step(state), start(key, positions, kT=0.5))
        return state.position, state.momentum, potential(state.position)

    return run, (grid, jax.random.key(1))


@client("equinox", "diffrax")
def neural_ode(batch: int) -> Program:
    eqx, diffrax = library("equinox"), library("diffrax")
    mlp = eqx.nn.MLP(4, 4, 64, 2, activation=jax.nn.softplus, key=jax.random.key(0))
    params, rest = eqx.partition(mlp, eqx.is_array)

    def solve(params: Any, start: Any) -> Any:
        field = eqx.combine(params, rest)

        def one(start: Any) -> Any:
            return diffrax.diffeqsolve(
                diffrax.ODETerm(lambda _, y, __: field(y)),
                diffrax.Tsit5(),
                0.0,
                5.0,
                0.1,
                start,
                saveat=diffrax.SaveAt(ts=jnp.linspace(0, 5, 20)),
                stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
            ).ys

        return jax.vmap(one)(start)

    return solve, (params, normal(1, batch, 4))


@client("optax", is_faster=True)
def physics_informed_step(batch: int) -> Program:
    """A step of Adam on Burgers' equation: second derivatives of a network by its inputs."""
    optax = library("optax")
    sizes = [2, 64, 64, 64, 64, 1]
    params = [(weights(i, inputs, outputs), jnp.zeros(outputs)) for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes))]

    def field(params: Any, time: Any, place: Any) -> Any:
        x = jnp.stack([time, place])
        for weight, bias in params[:-1]:
            x = jnp.tanh(x @ weight + bias)
        return (x @ params[-1][0] + params[-1][1])[0]

    def loss(params: Any, inside: Any, start: Any) -> Any:
        def residual(time: Any, place: Any) -> Any:
            by_time, by_place = (jax.grad(field, index)(params, time, place) for index in (1, 2))
            curvature = jax.grad(jax.grad(field, 2), 2)(params, time, place)
            return by_time + field(params, time, place) * by_place - (0.01 / math.pi) * curvature

        initial = jax.vmap(lambda place: field(params, 0.0, place))(start) + jnp.sin(math.pi * start)
        return (jax.vmap(residual)(inside[:, 0], inside[:, 1]) ** 2).mean() + (initial**2).mean()

    optimizer = optax.adam(1e-3)

    def step(params: Any, state: Any, inside: Any, start: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, inside, start)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    inside = jax.random.uniform(jax.random.key(1), (256 * batch, 2))
    return step, (params, optimizer.init(params), inside, jnp.linspace(-1, 1, 128))


@client("jraph")
def graph_attention(batch: int) -> Program:
    jraph = library("jraph")
    nodes, edges = 500 * batch, 3000 * batch
    graph = jraph.GraphsTuple(
        nodes=normal(2, nodes, 64),
        edges=None,
        senders=integers(0, nodes, edges),
        receivers=jnp.sort(integers(1, nodes, edges)),
        globals=None,
        n_node=jnp.array([nodes]),
        n_edge=jnp.array([edges]),
    )
    shapes = ((64, 64), (128, 1), (64, 64), (128, 1), (64, 64), (64, 16))

    def apply(params: Any, graph: Any) -> Any:
        for weight, attention in (params[:2], params[2:4]):
            graph = jraph.GAT(
                attention_query_fn=lambda nodes, weight=weight: nodes @ weight,
                attention_logit_fn=lambda sent, received, _, attention=attention: jax.nn.leaky_relu(
                    jnp.concatenate([sent, received], 1) @ attention
                ),
                node_update_fn=jax.nn.elu,
            )(graph)
        update = jraph.GraphConvolution(
            lambda nodes: jax.nn.relu(nodes @ params[4]), symmetric_normalization=True, add_self_edges=True
        )
        return update(graph).nodes @ params[5]

    return apply, ([weights(3 + i, *shape) for i, shape in enumerate(shapes)], graph)


@client(is_faster=True)
def weather(batch: int) -> Program:
    """Encode, process, decode on graphs, as GraphCast does."""
    cells, points, edges, between, width = 512 * batch, 160 * batch, 960 * batch, 1024 * batch, 128
    seeds = iter(range(1000))

    def mlp(inputs: int, outputs: int = width) -> Any:
        return (weights(next(seeds), inputs, width), jnp.zeros(width), weights(next(seeds), width, outputs), jnp.zeros(outputs))

    sizes = {"cells": 32, "points": 8, "edges": 4, "down": 4, "up": 4, "to_points": 3 * width, "points_update": 2 * width}
    params: Any = {name: mlp(inputs) for name, inputs in sizes.items()}
    params |= {"to_cells": mlp(3 * width), "cells_update": mlp(2 * width), "out": mlp(width, 32)}
    params |= {"steps": [(mlp(3 * width), mlp(2 * width)) for _ in range(6)]}
    index: Any = {
        "down": (integers(1, cells, between), integers(2, points, between)),
        "edges": (integers(3, points, edges), integers(4, points, edges)),
        "up": (integers(5, points, between), integers(6, cells, between)),
    }

    def apply(layer: Any, *parts: Any, normed: bool = True) -> Any:
        up, up_bias, down, down_bias = layer
        y = jax.nn.swish(jnp.concatenate(parts, -1) @ up + up_bias) @ down + down_bias
        return jax.nn.standardize(y) if normed else y

    def predict(params: Any, index: Any, weather: Any, mesh: Any, features: Any) -> Any:
        g, m = apply(params["cells"], weather), apply(params["points"], mesh)
        e, down, up = (apply(params[name], features[name]) for name in ("edges", "down", "up"))
        sent, received = index["down"]
        down = down + apply(params["to_points"], down, g[sent], m[received])
        m = m + apply(params["points_update"], m, jax.ops.segment_sum(down, received, points))
        sent, received = index["edges"]
        for of_edges, of_points in params["steps"]:
            e = e + apply(of_edges, e, m[sent], m[received])
            m = m + apply(of_points, m, jax.ops.segment_sum(e, received, points))
        sent, received = index["up"]
        up = up + apply(params["to_cells"], up, m[sent], g[received])
        g = g + apply(params["cells_update"], g, jax.ops.segment_sum(up, received, cells))
        return weather + apply(params["out"], g, normed=False)

    features = {"edges": normal(13, edges, 4), "down": normal(14, between, 4), "up": normal(15, between, 4)}
    return predict, (params, index, normal(11, cells, 32), normal(12, points, 8), features)


@client("gymnax")
def rollout(batch: int) -> Program:
    """128 steps of a policy in CartPole and their advantages, as PPO wants them."""
    environment, settings = library("gymnax").make("CartPole-v1")
    count = 8 * batch
    params = {"first": weights(0, 4, 64), "second": weights(1, 64, 64), "policy": weights(2, 64, 2), "value": weights(3, 64, 1)}

    def run(params: Any, key: Any) -> Any:
        first, key = jax.random.split(key)
        observed, state = jax.vmap(environment.reset, (0, None))(jax.random.split(first, count), settings)

        def step(carry: Any, _: Any) -> Any:
            observed, state, key = carry
            key, for_action, for_step = jax.random.split(key, 3)
            hidden = jnp.tanh(jnp.tanh(observed @ params["first"]) @ params["second"])
            logits, value = hidden @ params["policy"], (hidden @ params["value"])[:, 0]
            action = jax.random.categorical(for_action, logits)
            chance = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
            keys = jax.random.split(for_step, count)
            after, state, reward, done, *_ = jax.vmap(environment.step, (0, 0, 0, None))(keys, state, action, settings)
            return (after, state, key), (observed, action, reward, done.astype(jnp.float32), value, chance)

        _, steps = lax.scan(step, (observed, state, key), None, 128)

        def advantage(carry: Any, item: Any) -> Any:
            gain, following = carry
            reward, done, value = item
            gain = reward + 0.99 * following * (1 - done) - value + 0.99 * 0.95 * (1 - done) * gain
            return (gain, value), gain

        start = (jnp.zeros(count), jnp.zeros(count))
        _, advantages = lax.scan(advantage, start, (steps[2], steps[3], steps[4]), reverse=True)
        return steps, advantages

    return run, (params, jax.random.key(7))


@client("optimistix")
def quasi_newton(batch: int) -> Program:
    """A regression by BFGS."""
    optimistix = library("optimistix")
    inputs = normal(0, 256 * batch, 20)
    wanted = jnp.tanh(inputs @ jnp.linspace(-1, 1, 20))

    def fit(inputs: Any, wanted: Any) -> Any:
        def loss(weight: Any, _: None) -> Any:
            return jnp.mean((jnp.tanh(inputs @ weight) - wanted) ** 2) + 1e-3 * (weight**2).sum()

        solver = optimistix.BFGS(1e-5, 1e-5)
        return optimistix.minimise(loss, solver, jnp.zeros(20), max_steps=60, throw=False).value

    return fit, (inputs, wanted)
