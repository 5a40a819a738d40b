"""Taking turns: each side is a process of its own, with its model warm, which is stopped while others have their turn.

Threads that wait by spinning, as those of OpenMP and ONNX Runtime do, would take the cores from whoever runs next; a stopped
process cannot.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aspen_jax import _engine
from aspen_jax.errors import AspenError
from aspen_jax.report.comparison import TOLERANCE
from aspen_jax.report.cores import share_cores
from aspen_jax.report.difference import largest_difference
from benchmarks.peers.prepared import Prepared
from benchmarks.peers.sides import SIDES
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layout import to_nhwc

PEAK = "multiply-add peak"  # takes its turns like the sides, and gives FLOP/s

_ROOT = Path(__file__).resolve().parents[2]
_SHORTEST_SAMPLE_S = 0.02  # long beside the clock and the first call's cold caches
_NO_MATTER_OF_CACHES_S = 1.0  # reading all of a large model again takes a tenth of that
_LONGEST_MESSAGE = 300


class Contestant:
    """A side's process, seen from outside."""

    def __init__(self, side: str, prepared: Prepared, threads: int, timeout: float) -> None:
        """Start the process.

        Args:
            side: a name in `SIDES`, or `PEAK`.
            prepared: the model.
            threads: it may use.
            timeout: seconds after which it is given up.
        """
        size = json.dumps(vars(prepared.size))
        command = [sys.executable, "-m", __name__, side, str(prepared.folder), prepared.name, size, str(threads)]
        self._timeout = timeout
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `end`
        # A group of its own, so that all its processes can be stopped; the kernel ends a stopped group that lost its parent.
        self._process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, **_threads_in_environment(threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            process_group=0,
        )

    def started(self) -> dict[str, Any]:
        """Wait until the side has answered once, and give what it says of that; then stop it.

        Raises:
            AspenError: it failed.
        """
        return self._reply()

    def turn(self) -> float:
        """Let it run, and give its seconds a call, or its FLOP/s.

        Raises:
            AspenError: it failed.
        """
        assert self._process.stdin is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # the reply tells why
            self._process.stdin.write("turn\n")
            self._process.stdin.flush()
        return self._reply()["turn"]

    def end(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], self._timeout)
        if not ready:
            raise AspenError(f"gave no answer in {self._timeout:g} seconds; --timeout grants more")
        line = self._process.stdout.readline()
        if not line:
            raise AspenError(f"ended with status {self._process.wait()}: {self._last_words()}")
        reply = json.loads(line)
        if "error" in reply:
            raise AspenError(reply["error"])
        os.killpg(self._process.pid, signal.SIGSTOP)
        return reply

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line for line in self._log.read().splitlines() if line.strip()]
        return lines[-1][:_LONGEST_MESSAGE] if lines else "it left no message"


def _threads_in_environment(threads: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")
    return {**dict.fromkeys(names, str(threads)), "PYTHONWARNINGS": "ignore"}


def _main(side: str, folder: str, name: str, size: str, threads: str) -> None:
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no reply

    def reply(**content: Any) -> None:
        replies.write(json.dumps(content) + "\n")
        replies.flush()

    try:
        share_cores(int(threads))  # before any library counts the cores
        prepared = Prepared(Path(folder), name, Size(**json.loads(size)))
        start = time.perf_counter()
        turn, about = _peak(int(threads)) if side == PEAK else _timed(side, prepared, int(threads))
        reply(**about, start_s=time.perf_counter() - start)
        for _ in sys.stdin:
            reply(turn=turn())
    except BaseException as error:  # libraries raise what they like; it is reported, with the others' times
        reply(error=f"{type(error).__name__}: {error}"[:_LONGEST_MESSAGE])
        raise


def _timed(name: str, prepared: Prepared, threads: int) -> tuple[Callable[[], float], dict[str, Any]]:
    side = SIDES[name]
    run = side.start(prepared, threads)
    outputs = tuple(np.asarray(output) for output in run())
    if side.nchw:
        outputs = tuple(to_nhwc(output) for output in outputs)
    difference = largest_difference(outputs, prepared.expected)

    seconds = 0.0

    def turn() -> float:
        nonlocal seconds
        if seconds < _NO_MATTER_OF_CACHES_S:
            _sample(run)  # brings the model back into the caches
        seconds = _sample(run)
        return seconds

    return turn, {"difference": difference, "agrees": difference <= TOLERANCE, "version": side.version()}


def _sample(run: Callable[[], Any]) -> float:
    calls = 0
    start = time.perf_counter()
    while (seconds := time.perf_counter() - start) < _SHORTEST_SAMPLE_S:
        run()
        calls += 1
    return seconds / calls


def _peak(threads: int) -> tuple[Callable[[], float], dict[str, Any]]:
    target = _engine.cpu_target()
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    return lambda: sum(pool.map(lambda _: _engine.peak_flops(target), range(threads))), {"target": target}


if __name__ == "__main__":
    _main(*sys.argv[1:])
