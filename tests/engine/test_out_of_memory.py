"""Memory and threads that the system refuses: a run ends with an error or goes on with less, and the process lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.targets.cuda import cuda_host

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="preloads a library"),
    pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler was found"),
]

SCRIPT = """\
import ctypes, dataclasses, itertools, os, sys, time
import jax, jax.numpy as jnp, numpy as np
from aspen_jax import _engine, aspen
from aspen_jax.errors import EngineError

system = ctypes.CDLL(None)
system.refuse_memory.argtypes = [ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64]
system.give_memory.restype = ctypes.c_int64
ALL = 2**60

def sweep(act, errors, stride=1):
    "Refuses one request of `act` after the other: itself, the next one too, or all that follow."
    for count in (1, 2, ALL):
        for first in itertools.count(0, stride):
            system.refuse_memory(b"_engine.", first, count)
            try:
                act()
                requests = system.give_memory()
            except errors as error:
                requests = system.give_memory()
                assert ("RESOURCE_EXHAUSTED" if errors is XLA else "memory") in str(error), error
                assert requests > first, error
            if requests <= first:
                break
        print(act.__name__, requests, flush=True)

def names():
    return [open(f"/proc/self/task/{task}/comm").read()[:6] for task in os.listdir("/proc/self/task")]

MEMORY, XLA = (EngineError, MemoryError), (jax.errors.JaxRuntimeError, ValueError)
x = np.random.default_rng(0).standard_normal((64, 64), np.float32)
function = aspen(lambda x, w: jnp.tanh(x @ w) @ w, strict=True)
expected = np.tanh(x.astype(float) @ x) @ x
"""

RUNS = """\
graph = function.graph(x, x)
number = itertools.count()
jitted = jax.jit(function)
check = lambda result: np.testing.assert_allclose(result, expected, atol=1e-3)
check(graph.run(x, x)[0])
check(jitted(x, x))
big = np.random.default_rng(1).standard_normal((512, 512), np.float32)
big_graph = function.graph(big, big)
big_graph.run(big, big)
jax.block_until_ready(jitted(big, big))

def parse(): _engine.Plan(dataclasses.replace(graph, fields={"number": np.array([next(number)])}).to_bytes())
def run(): check(graph.run(x, x)[0])
def run_in_pool(): big_graph.run(big, big)
def call(): check(jitted(x, x))
def call_in_pool(): jax.block_until_ready(jitted(big, big))
def compiled():
    rows = np.ones((1 + next(number), 64), np.float32)  # of another shape each time, so that it is another graph
    np.testing.assert_allclose(jax.jit(function)(rows, x), np.tanh(rows @ x) @ x, atol=1e-2)

sweep(parse, MEMORY)
sweep(run, MEMORY)
sweep(run_in_pool, MEMORY)
sweep(call, XLA)
sweep(call_in_pool, XLA)
sweep(compiled, XLA, 41)
call(), run(), call_in_pool(), run_in_pool()
print("right", flush=True)
"""

THREADS = """\
_engine.set_num_workers(2)
big = np.random.default_rng(1).standard_normal((512, 512), np.float32)
graph = function.graph(big, big)
plan = graph.plan
system.refuse_threads(1)
graph.run(big, big)
assert "aspen-" not in names(), names()
system.refuse_threads(0)
graph.run(big, big)
assert names().count("aspen-") == 2, names()
system.refuse_threads(1)
_engine.set_num_workers(4)
graph.run(big, big)
assert names().count("aspen-") == 2, names()
system.refuse_threads(0)
end = time.monotonic() + 30
while names().count("aspen-") < 4 and time.monotonic() < end:
    graph.run(big, big)
    time.sleep(0.01)
assert names().count("aspen-") == 4, names()
print("right", flush=True)
"""


@pytest.fixture(scope="module")
def failing_system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("failing") / "libfailing_system.so"
    options = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = Path(__file__).with_name("failing_system.cc")
    command = [str(cuda_host.COMPILER), *options, str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return library


def outcome(library: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "ASPEN_DISABLE_PASSES"}
    environment |= {"LD_PRELOAD": str(library), "ASPEN_NUM_WORKERS": "2"}
    command = [sys.executable, "-P", "-c", SCRIPT + code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.mark.parametrize("code", [RUNS, THREADS], ids=["memory", "threads"])
def test_what_the_system_refuses_ends_no_process(failing_system: Path, code: str) -> None:
    result = outcome(failing_system, code)
    assert result.stdout.endswith("right\n"), (result.returncode, result.stdout[-2000:], result.stderr[-4000:])
