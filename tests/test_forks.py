"""Children of forks: one that is forked at any moment can parse, run and end. And the rule in the sources that this rests on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_at_any_moment_can_parse_run_and_end() -> None:
    command = [sys.executable, "-P", "-W", "ignore", "-c", SCRIPT, "100"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert result.stdout == "right\n", (result.returncode, result.stdout, result.stderr[-4000:])
