"""What products and convolutions do at their end: reducing their own result, and writing it as the caller wants it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax import apu, num_workers
from aspen_jax.frontend import trace as frontend
from aspen_jax.passes import run_passes
from benchmarks import zoo
from benchmarks.benchmark import Run, Table, benchmark, samples, timed
from benchmarks.options import File

# What each case is about: the pass that is switched off on the other side.
_REDUCES, _WRITES = "partial_reduce", "last_op"
_NETWORKS = ("efficientnet_b0",)
_CLOSE = 1e-3  # of the largest element


@benchmark
def ends(rounds: int = 30, workers: int | None = None, networks: tuple[str, ...] = _NETWORKS, json: File = None) -> Run:
    """Ops that reduce their own result, or write it transposed, beside ops of their own for that.

    Args:
        rounds: how often each is timed.
        workers: workers; all usable cores by default.
        networks: names in benchmarks/zoo/catalogue.py, for reductions.
        json: where to write the figures as well.
    """
    columns = {"case": "", "pass": "", "with": "s", "without": "s", "without is so many times as long": ".2f"}
    table = Table("", {**columns, "MB with": ".1f", "MB without": ".1f", "ops": "d", "ops without": "d"})
    machine = apu.Machine.here(num_workers())
    for name, (passed, function, arguments) in {**_cases(), **{name: _network(name) for name in networks}}.items():
        trace = frontend.trace(jax.make_jaxpr(function)(*arguments))
        (part,) = trace.parts
        values = dict(zip(trace.inputs, arguments, strict=True))
        inputs = [values[value] for value in part.inputs]
        graphs = [apu.build(run_passes(part, disabled, machine), num_workers(), machine) for disabled in ((), (passed,))]
        calls = {side: functools.partial(graph.run, *inputs) for side, graph in zip(("with", "without"), graphs, strict=True)}
        timings = timed(name, calls, rounds, tolerance=_CLOSE)
        first, second = (timing.minimum for timing in timings.values())
        counts = *(graph.stats()["bytes"] / 1e6 for graph in graphs), *(graph.num_ops for graph in graphs)
        table.add(name, passed, first, second, second / first, *counts, **samples(timings))
    yield table


_Case = tuple[str, Callable[..., Any], tuple[np.ndarray, ...]]


def _cases() -> dict[str, _Case]:
    return {
        "gradient of 3 layers, 4096 x 1024": (_REDUCES, _gradient, _random((4096, 1024), *[(1024, 1024), (1024,)] * 3)),
        "column sums of 4096 x 1024": (_REDUCES, functools.partial(_dense, axis=0), _random((4096, 256), (256, 1024), (1024,))),
        "row sums of 4096 x 1024": (_REDUCES, functools.partial(_dense, axis=1), _random((4096, 256), (256, 1024), (1024,))),
        "squeeze-and-excitation, 112x112x32": (_REDUCES, _squeeze, _random((1, 112, 112, 32), (3, 3, 1, 32), (32, 8), (8, 32))),
        "squeeze-and-excitation, 8 of 56x56x96": (
            _REDUCES,
            _squeeze,
            _random((8, 56, 56, 96), (3, 3, 1, 96), (96, 24), (24, 96)),
        ),
        "1x1 to NCHW, 128x128x64 to 21": (_WRITES, _last, _random((1, 128, 128, 64), (1, 1, 64, 21))),
        "3x3 to NCHW, 112x112x32 to 64": (_WRITES, _last, _random((1, 112, 112, 32), (3, 3, 32, 64))),
        "3x3 to NCHW, 224x224x64 to 3": (_WRITES, _last, _random((1, 224, 224, 64), (3, 3, 64, 3))),
    }


def _network(name: str) -> _Case:
    model = zoo.build(name)
    function = functools.partial(model.apply, model.params)
    return _REDUCES, function, tuple(map(np.asarray, model.inputs))


def _random(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    return tuple(random.standard_normal(shape, np.float32) * np.float32(0.1) for shape in shapes)


def _gradient(x: Any, *params: Any) -> Any:
    def loss(params: Any) -> Any:
        y = x
        for w, b in zip(params[::2], params[1::2], strict=True):
            y = jax.nn.relu(y @ w + b)
        return jnp.mean(y**2)

    return jax.grad(loss)(params)


def _dense(x: Any, w: Any, b: Any, axis: int) -> Any:
    y = jax.nn.relu(x @ w + b)
    return y, y.sum(axis)


def _squeeze(x: Any, w: Any, down: Any, up: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    y = jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=x.shape[3]))
    share = jax.nn.hard_sigmoid(jax.nn.relu(y.mean((1, 2)) @ down) @ up)
    return y * share[:, None, None, :]


def _last(x: Any, w: Any) -> Any:
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.transpose(jax.nn.relu(y), (0, 3, 1, 2))
