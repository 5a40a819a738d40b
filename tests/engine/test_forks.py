"""Children of forks: one that is forked at any moment can parse, run and end. And the rule in the sources that this rests on."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Locks that are no lock of the process (engine/fork_safe_mutex.h), and why no child waits for them.
OF_A_CALL = {
    "engine/arrivals.h": "a run's; in a fork the run is refused before the lock is asked for",
    "engine/couriers.h": "of a call of the lab, whose threads end with it",
    "engine/fork_safe_mutex.h": "what the locks of the process are made of",
    "engine/desk.h": "of a call of the lab",
    "engine/ffi.cc": "a call's; only the thread that began it waits",
    "engine/turns.h": "of a call of the lab",
    "engine/ready_tiles.h": "of a call of the lab",
    "engine/outcome.h": "a run's; only the thread that began it waits",
    "cuda/executable.h": "asked for once the driver has named the stream's context, which it refuses in a fork",
    "cuda/loaded.h": "likewise",
}
LOCK = re.compile(r"std::(?:recursive_|shared_|timed_)?(?:mutex|once_flag|call_once)\b(?!>)")
# A static variable inside a function that is not ready at compile time has a lock of the compiler's.
STATIC = re.compile(r"^[ \t]+static (?!constexpr|constinit|_?assert|inline)[^()\n;]*[\w>&*] +\w+(?: = |\{|;)", re.MULTILINE)
IN_A_CLASS = {("cuda/ffi.cc", "id"), ("engine/ffi.cc", "id"), ("engine/runtime.cc", "mutex")}  # no variable of a function
MADE_EARLY = {
    ("cpu/cache.cc", "bytes"): "made under the lock of plan_cache.cc",
    ("cpu/target.cc", "target"): "made under the lock of plan_cache.cc",
    ("cpu/kernels.cc", "table"): "made under the lock of plan_cache.cc",
    ("engine/plan_cache.cc", "registry"): "made under a lock of the process",
    ("engine/ffi_buffers.h", "info"): "made under a lock of the process",
    ("engine/lab.cc", "good"): "made under the GIL, which a fork holds",
    ("engine/runtime.cc", "instance"): "made when the library is loaded",
}
PYTHON_LOCKS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"}
# Locks of Python that are no forks.Lock, and why.
OF_PYTHON = {
    "forks.py": "what the others are made of",
    "split/client.py": "a client's; a child has neither its connection nor its threads",
    "split/stream.py": "likewise",
}
HOLDING = """\
import importlib, os, signal, sys, threading
import jax, jax.numpy as jnp, numpy as np
from aspen_jax import aspen, forks
from aspen_jax.cost import measured
from aspen_jax.targets.cuda.products import kernel_choices
from aspen_jax.errors import InputError
from aspen_jax.graph.arrivals import Arrivals
from aspen_jax.targets.cpu import trial
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.primitive import warning

for module in sys.argv[1:]:
    importlib.import_module(module)
function = aspen(lambda x: jnp.tanh(x) @ x, strict=True)
x = np.ones((64, 64), np.float32)
stream, graph = function.stream(x), function.graph_without_reuse(x)
arriving = Arrivals(graph, {0: np.array([[[0, 64], [0, 64]]])}).start(None)
jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) @ x)(x)
locks = list(forks._locks)
of_modules = {sys.modules[module]._lock for module in sys.argv[1:] if "codec" not in module}
assert of_modules | {stream._lock, arriving._lock} <= {*locks}


def work():
    for lock in locks:
        with lock, lock:  # its thread may enter again
            pass
    assert not Slow().value
    compile_jaxpr(jaxpr, Options())
    for room in (measured, trial, kernel_choices):
        room.forget()
    warning.warn("a function", "all of it is", "this is a test")
    try:
        arriving.put(0, 0, x)
    except InputError as error:
        assert "forked" in str(error)


def forked(act):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # whoever waits for ever is killed
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    if status:
        print("a child ended with", status, flush=True)
        os._exit(1)


are_held, may_go = threading.Event(), threading.Event()


class Slow:
    def __init__(self, act=bool):
        self.act = act

    @forks.cached_property
    def value(self):
        return self.act()


def wait():
    are_held.set()
    return may_go.wait()


def hold():
    for lock in locks:
        lock.__enter__()
    assert Slow(wait).value
    for lock in locks:
        lock.__exit__()


thread = threading.Thread(target=hold)
thread.start()
are_held.wait()
forked(work)
assert not any(lock._inner.acquire(blocking=False) for lock in locks)  # nothing has changed in the parent
forked(lambda: forked(work))
may_go.set()
thread.join()
for lock in locks:
    lock.__enter__()
forked(work)  # by the thread that is inside
forked(lambda: [lock.__exit__() for lock in locks])
for lock in locks:
    lock.__exit__()
arriving.put(0, 0, x)
assert (arriving.results()[0] == graph.run(x)[0]).all()
print("right", flush=True)
"""
SCRIPT = """\
import dataclasses, os, signal, sys, threading, time
import jax.numpy as jnp, numpy as np
from aspen_jax import _engine, aspen

x = np.ones((64, 64), np.float32)
graph = aspen(lambda x: jnp.tanh(x) @ x, strict=True).graph(x)
zeros = np.zeros(300_000, np.int64)
keys = [dataclasses.replace(graph, fields={"zz": np.append(zeros, k)}).to_bytes() for k in range(8)]
plans = [_engine.Plan(key) for key in keys[:4]]
expected = graph.run(x)[0]
big = np.ones((512, 512), np.float32)
pooled = aspen(lambda x: jnp.tanh(x) @ x, strict=True).graph(big)
pooled.run(big)
recorder = _engine.Recorder(1000)
stop = False

def parse():
    while not stop:
        for key in keys:
            _engine.Plan(key)

def record():
    while not stop:
        recorder.start()
        pooled.run(big)
        _engine.trust(keys[0])
        recorder.stop()

threads = [threading.Thread(target=act) for act in (parse, parse, record)]
for thread in threads:
    thread.start()
for i in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # whoever waits for ever is killed
        status = 1
        try:
            _engine.Plan(keys[i % len(keys)])
            _engine.trust(keys[1])
            recorder.stop()
            assert (graph.run(x)[0] == expected).all()
            pooled.run(big)
            status = 0
        finally:
            os._exit(status)
    status = os.waitpid(child, 0)[1]
    if status:
        print("fork", i, "ended with", status, flush=True)
        os._exit(1)
stop = True
for thread in threads:
    thread.join()
print("right", flush=True)
"""


def sources() -> list[Path]:
    folders = [ROOT / "aspen_jax/engine", ROOT / "capi", ROOT / "cuda", ROOT / "cpu"]
    return [path for folder in folders for path in sorted(folder.glob("*.*")) if path.suffix in {".cc", ".h"}]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def test_every_lock_of_the_process_takes_part_in_forks() -> None:
    found = {name_of(path) for path in sources() if LOCK.search(re.sub(r"//.*", "", path.read_text()))}
    assert found == set(OF_A_CALL), "make it a ForkSafeMutex, or say here why no child of a fork waits for it"


def test_no_static_variable_is_made_while_another_thread_may_fork() -> None:
    found = set()
    for path in sources():
        for line in STATIC.findall(re.sub(r"//.*", "", path.read_text())):
            found.add((name_of(path), re.findall(r"\w+", line.rstrip(" ={;"))[-1]))
    assert found == set(MADE_EARLY) | IN_A_CLASS, "use MadeOnce, or say here under which lock it is made"


def modules() -> dict[str, str]:
    """The text of each module of the package, by its path in it."""
    package = ROOT / "aspen_jax"
    return {str(path.relative_to(package)): path.read_text() for path in sorted(package.rglob("*.py"))}


def makes_a_lock(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="threading" | "multiprocessing"), attr=name):
            return name in PYTHON_LOCKS
        case ast.ImportFrom(module="threading" | "multiprocessing", names=names):
            return any(name.name in PYTHON_LOCKS for name in names)
    return isinstance(node, ast.Import) and any(name.name == "_thread" for name in node.names)


def test_every_lock_of_the_package_takes_part_in_forks() -> None:
    found = {name for name, text in modules().items() if any(map(makes_a_lock, ast.walk(ast.parse(text))))}
    assert found == set(OF_PYTHON), "make it a forks.Lock, or say here why no child of a fork waits for it"


def test_no_property_of_the_package_has_a_lock() -> None:
    found = [name for name, text in modules().items() if "@functools.cached_property" in text or "import cached_property" in text]
    assert not found, "make it a forks.cached_property"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_finds_the_locks_free_that_another_thread_holds() -> None:
    at_the_top = [name for name, text in modules().items() if re.search(r"^\w+ = forks\.Lock\(\)", text, re.MULTILINE)]
    names = ["aspen_jax." + name.removesuffix(".py").replace("/", ".") for name in at_the_top]
    assert len(names) >= 6
    command = [sys.executable, "-P", "-W", "ignore", "-c", HOLDING, *names, "aspen_jax.split.codec"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.stdout == "right\n", (result.returncode, result.stdout, result.stderr[-4000:])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_at_any_moment_can_parse_run_and_end() -> None:
    command = [sys.executable, "-P", "-W", "ignore", "-c", SCRIPT, "100"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.stdout == "right\n", (result.returncode, result.stdout, result.stderr[-4000:])
