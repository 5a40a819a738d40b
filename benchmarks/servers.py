"""Servers for the benchmark `serving`: what answers a request of each kind, and how many requests it takes at once."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import jax

from aspen_jax import aspen, set_num_workers
from aspen_jax.errors import AspenError
from aspen_jax.report.difference import largest_difference
from benchmarks import zoo
from benchmarks.peers.prepared import Prepared
from benchmarks.peers.sides import SIDES
from benchmarks.zoo.model import Model, Size

PROCESSES, RAY = "a process a core", "Ray Serve"
PEERS = (*SIDES, PROCESSES, RAY)

MOST_AT_ONCE = 48
_TOLERANCE = 1e-3
_START = 600  # seconds within which all processes have compiled their models


class Server(NamedTuple):
    """A call for each kind of requests, and how many run at once."""

    calls: Mapping[str, Callable[[], Any]]
    at_once: int


def checked_call(name: str, size: Size | None = None, **options: Any) -> Callable[[], Any]:
    """A call of a decorated model, whose results were compared with the undecorated one's; its own size if None."""
    model = zoo.build(name, size or Size()).calibrated()
    wanted = jax.jit(model.apply)(*model.arguments)
    return _agreeing(model, wanted, jax.jit(aspen(model.apply, **options)))


def _agreeing(model: Model, wanted: Any, function: Callable[..., Any]) -> Callable[[], Any]:
    if largest_difference(function(*model.arguments), wanted) > _TOLERANCE:  # infinite where only one side is NaN
        raise AspenError(f"{model.name}: the decorated function gives other results; run `python -m benchmarks accuracy`")
    return lambda: jax.block_until_ready(function(*model.arguments))


@contextlib.contextmanager
def peer(name: str, models: Mapping[str, str], size: Size, cores: int) -> Iterator[Server]:
    """A server that is not the engine with its Ready Pool, as long as the context lasts.

    Args:
        name: of `PEERS`. A side of the benchmark `peers` stands behind one queue. The others have decorated functions on each
            core.
        models: by kind of requests.
        size: of the inputs.
        cores: that it may use.

    Raises:
        AspenError: a package is missing, or a model cannot be made ready.
    """
    if name in SIDES:
        yield Server(dict(_of_side(name, models, size, cores)), 1)
        return
    with {PROCESSES: _processes, RAY: _replicas}[name](models, size, cores) as ask:
        yield Server({kind: functools.partial(ask, kind) for kind in models}, MOST_AT_ONCE)


def _of_side(name: str, models: Mapping[str, str], size: Size, cores: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """A call of each model, made ready as the benchmark `peers` does it."""
    side = SIDES[name]
    if (remedy := side.remedy()) is not None:
        raise AspenError(f"{name} cannot serve: {remedy}")
    for kind, model in models.items():
        with tempfile.TemporaryDirectory() as folder:
            prepared = Prepared(Path(folder), model, size)
            prepared.make(cores, "weights")
            if side.onnx:
                prepared.make(cores, "onnx")
            call = side.start(prepared, cores)
            call()  # what is compiled or read at first is ready
        yield kind, call


class OneWorker:
    """The decorated models in a process of their own, whose engine has one worker."""

    def __init__(self, models: Mapping[str, str], size: Size):
        """Compile them."""
        set_num_workers(1)
        self._calls = {kind: checked_call(model, size) for kind, model in models.items()}

    def __call__(self, kind: str) -> None:
        """Compute the answer to a request, which stays here."""
        self._calls[kind]()


_child: list[OneWorker] = []  # of a process of `_processes`


def _start(models: Mapping[str, str], size: Size, started: Any) -> None:
    try:
        _child.append(OneWorker(models, size))
    finally:
        started.wait()


def _answer(kind: str) -> None:
    _child[0](kind)


@contextlib.contextmanager
def _processes(models: Mapping[str, str], size: Size, cores: int) -> Iterator[Callable[[str], Any]]:
    context = multiprocessing.get_context("spawn")
    started = context.Barrier(cores + 1)
    with ProcessPoolExecutor(cores, context, _start, (models, size, started)) as pool:
        # Each of so many calls starts a process, since none is idle yet.
        first = [pool.submit(_answer, kind) for kind in itertools.islice(itertools.cycle(models), max(cores, len(models)))]
        try:
            started.wait(_START)
            for item in first:
                item.result()
        except (threading.BrokenBarrierError, BrokenProcessPool) as error:
            raise AspenError(f"{PROCESSES} cannot serve: a process did not start ({error!r}); see its message above") from None
        yield lambda kind: pool.submit(_answer, kind).result()


@contextlib.contextmanager
def _replicas(models: Mapping[str, str], size: Size, cores: int) -> Iterator[Callable[[str], Any]]:
    try:
        ray, serve = (importlib.import_module(name) for name in ("ray", "ray.serve"))
    except ImportError:
        raise AspenError(f"{RAY} cannot serve: pip install 'aspen_jax[serve]'") from None
    paths = [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
    ray.init(
        num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": environment}
    )
    try:
        options = {"num_replicas": cores, "max_ongoing_requests": 1, "ray_actor_options": {"num_cpus": 1}}
        handle = serve.run(serve.deployment(**options)(OneWorker).bind(models, size))
        for kind in models:
            handle.remote(kind).result()
        yield lambda kind: handle.remote(kind).result()
    finally:
        try:
            serve.shutdown()
        finally:
            ray.shutdown()
