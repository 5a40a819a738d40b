"""device="auto" on a GPU: what was timed decides. There is no GPU here."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from aspen_jax import CUSTOM_CALL_TARGET, aspen
from aspen_jax.cache.disk_cache import CACHE_VARIABLE
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cuda import times
from aspen_jax.targets.cuda.choice import Chosen, chosen
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from aspen_jax.targets.cuda.executor import EXECUTOR_VARIABLE
from aspen_jax.targets.cuda.target import CudaTarget
from tests.targets.cuda.test_cuda_call import custom_calls, exported

CARD = "a card"
SHAPES = (jax.ShapeDtypeStruct((64, 64), np.float32), jax.ShapeDtypeStruct((32, 64), np.float32))


def network(w, x):
    for _ in range(3):
        x = jax.nn.softmax(x @ w)
    return x


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(EXECUTOR_VARIABLE, raising=False)
    monkeypatch.delenv(ARCHITECTURE_VARIABLE, raising=False)


@pytest.fixture
def card(monkeypatch):
    """Puts a kind of GPU in place."""
    return lambda kind: monkeypatch.setattr(times, "card", lambda: kind)


def who(function=network, shapes=SHAPES, choices=Choices()):  # noqa: B008 - immutable
    return chosen(jax.make_jaxpr(function)(*shapes), choices, CudaTarget.here)


def timed(function=network, **seconds: float) -> None:
    jaxpr = jax.make_jaxpr(function)(*SHAPES)
    times.remember(
        times.key(compile_jaxpr(jaxpr, Options(Choices(executor="graph"), CudaTarget.here()))), {"stream": 9.0, **seconds}
    )


def test_what_was_not_timed_stays_with_xla(card):
    card(None)
    assert who() == Chosen("xla", "JAX has no GPU here")
    card(CARD)
    assert who() == Chosen("xla", f"nothing was timed on {CARD}; tune() times all sides")
    timed(xla=2.0, graph=1.0)
    found = who(lambda w, x: network(w, x) * 2)
    assert found == Chosen("xla", f"this function was not timed on {CARD}; tune() times all sides")


def test_the_fastest_is_taken(card):
    card(CARD)
    timed(xla=1.0, graph=2.0)
    assert who() == Chosen("xla", f"timed on {CARD}: 1.00 s by xla, 9.00 s by stream, 2.00 s by graph")
    timed(xla=2.0, graph=1.0)
    assert who().executor == "graph"
    card("another card")
    assert who().executor == "xla"


def test_who_decides(card, monkeypatch):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")

    def call(device):
        module = exported(aspen(network, device=device), *SHAPES)
        return custom_calls(module), "executor = 1" in module

    card(CARD)
    assert call("auto") == ([], False)
    assert call("cuda") == ([CUSTOM_CALL_TARGET], True)
    monkeypatch.setenv(EXECUTOR_VARIABLE, "stream")
    assert call("auto") == ([CUSTOM_CALL_TARGET], False)
    monkeypatch.delenv(EXECUTOR_VARIABLE)
    timed(xla=2.0, graph=1.0)
    assert call("auto") == ([CUSTOM_CALL_TARGET], True)
    assert call("cpu") == ([], False)
    monkeypatch.setenv(EXECUTOR_VARIABLE, "xla")
    assert call("auto") == ([], False)


def test_explain_says_who_and_why(card, monkeypatch):
    def told(device="auto"):
        return " ".join(str(aspen(network, device=device).explain(*SHAPES)).split())

    card(None)
    assert CARD not in told()
    card(CARD)
    assert f"on {CARD}: device='auto' takes xla: nothing was timed on {CARD}" in told()
    assert f"on {CARD}: graph, as device='cuda' says; device='auto' takes xla: nothing was timed" in told("cuda")
    assert CARD not in told("cpu")
    timed(xla=2.0, graph=1.0)
    assert f"on {CARD}: device='auto' takes graph: timed on {CARD}: 2.00 s by xla" in told()
    monkeypatch.setenv(EXECUTOR_VARIABLE, "stream")
    assert f"on {CARD}: stream, as {EXECUTOR_VARIABLE} says; without it device='auto' takes graph: timed" in told()
