"""What ops of several outputs save in gradients and optimizers: ops, bytes, memory and time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax import apu, num_workers
from aspen_jax.cost.machine import Machine
from aspen_jax.cost.timing import speedup
from aspen_jax.frontend.trace import trace
from aspen_jax.passes import run_passes
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark, samples, timed
from benchmarks.options import File
from benchmarks.zoo.model import Size

# The passes that let several ops read, or a caller get, what one op goes on with.
PASSES = ("merge", "signs")

_TOLERANCE = 1e-3


@benchmark
def residuals(image_size: int = 224, rounds: int = 20, workers: int | None = None, json: File = None) -> Run:
    """Gradients and updates as graphs, with and without ops of several outputs: first the results, then times, in turns.

    Args:
        image_size: of ResNet-50's images.
        rounds: how often each side is timed.
        workers: cores for both sides; all usable ones by default.
        json: where to write the figures as well.
    """
    forms = {"ops": "d", "MB": ".2f", "MB of workspace": ".2f"}
    columns = {f"{what} {side}": form for what, form in forms.items() for side in ("before", "after")}
    table = Table("", {"function": "", **columns, "times as fast": ".2f"})
    machine = Machine.here(num_workers())
    for name, function, arguments in _cases(image_size):
        (program,), given = _traced(function, arguments)
        inputs = [given[value] for value in program.inputs]
        graphs = {
            side: apu.build(run_passes(program, disabled, machine), num_workers(), machine)
            for side, disabled in (("before", PASSES), ("after", ()))
        }
        calls = {side: functools.partial(graph.run, *inputs) for side, graph in graphs.items()}
        timings = timed(name, calls, rounds, tolerance=_TOLERANCE)
        stats = [graph.stats() for graph in graphs.values()]
        cells = [stat[key] / unit for key, unit in (("ops", 1), ("bytes", 1e6), ("workspace_bytes", 1e6)) for stat in stats]
        table.add(name, *map(int, cells[:2]), *cells[2:], speedup(timings["before"], timings["after"]), **samples(timings))
    yield table


def _cases(image_size: int) -> list[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    draw = np.random.default_rng(0).standard_normal
    size = 128
    params = {"input": draw((size, 4 * size)) / 8, "hidden": draw((size, 4 * size)) / 8, "bias": draw(4 * size)}
    params = {name: array.astype(np.float32) for name, array in params.items()}
    state = [draw((1, size)).astype(np.float32) for _ in range(5)]
    trees = tuple([np.abs(draw((512, 512))).astype(np.float32) for _ in range(4)] for _ in range(4))
    layers = [(draw((512, 512)).astype(np.float32) / 22, draw(512).astype(np.float32)) for _ in range(3)]
    network = zoo.build("resnet50", Size(image_size=image_size)).calibrated()
    return [
        ("LSTM cell of 128, gradient", _lstm_gradient, (params, *state)),
        ("MLP 3 x 512, batch 64, gradient", jax.grad(_mlp_loss), (layers, draw((64, 512)).astype(np.float32))),
        ("Adam, 4 tensors of 512x512", _adam, trees),
        (
            f"ResNet-50, {image_size}x{image_size}, gradient",
            jax.grad(lambda params, x: (network.apply(params, x) ** 2).mean()),
            network.arguments,
        ),
    ]


def _lstm_cell(params: dict[str, jax.Array], x: jax.Array, h: jax.Array, c: jax.Array) -> tuple[jax.Array, jax.Array]:
    i, f, g, o = jnp.split(x @ params["input"] + h @ params["hidden"] + params["bias"], 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def _lstm_gradient(params: Any, x: jax.Array, h: jax.Array, c: jax.Array, *cotangents: jax.Array) -> Any:
    return jax.vjp(_lstm_cell, params, x, h, c)[1](cotangents)


def _mlp_loss(layers: Any, x: jax.Array) -> jax.Array:
    for w, b in layers:
        x = jax.nn.gelu(x @ w + b)
    return (x**2).mean()


def _adam(*trees: Any) -> list[Any]:
    def update(parameter: jax.Array, gradient: jax.Array, mean: jax.Array, square: jax.Array) -> Any:
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        return parameter - 1e-3 * mean / (jnp.sqrt(square) + 1e-8), mean, square

    return [update(*leaves) for leaves in zip(*trees, strict=True)]


def _traced(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, dict[Any, np.ndarray]]:
    """The parts of a function, and what stands for its inputs."""
    traced = trace(jax.make_jaxpr(function)(*arguments))
    return traced.parts, dict(zip(traced.inputs, map(np.asarray, jax.tree.leaves(arguments)), strict=True))
