"""Peak memory of a process that runs a model, with aspen and with `jax.jit`."""

from __future__ import annotations

import json as json_format
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspen_jax import aspen
from aspen_jax.demo.keras_application import keras_application
from aspen_jax.errors import AspenError
from aspen_jax.report.comparison import PLAIN, TILED, TOLERANCE
from aspen_jax.report.difference import largest_difference
from aspen_jax.report.record import write_record
from aspen_jax.report.timing import aligned, check_rounds
from benchmarks.options import File, Models

_IDLE = "the model, not run"
_CALLS = 5


def memory(
    names: Models = ("ResNet50",), /, batch: int = 1, image_size: int | None = None, rounds: int = 3, json: File = None
) -> int:
    """Peak resident memory of a process of its own for each side: build a model, compile it, call it five times.

    Args:
        names: models, by their names in keras.applications.
        batch: images a call.
        image_size: height and width of the images; each model's own by default.
        rounds: how often each side is measured.
        json: where to write the figures as well.
    """
    check_rounds(rounds)
    results = []
    for name in names:
        peaks: dict[str, list[float]] = {_IDLE: [], PLAIN: [], TILED: []}
        outputs: dict[str, Any] = {}
        for _ in range(rounds):
            for side, samples in peaks.items():
                measured = _in_process_of_its_own(side, name, batch, image_size)
                samples.append(measured["peak_bytes"])
                outputs[side] = np.asarray(measured["output"], np.float32)
        difference = largest_difference(outputs[TILED], outputs[PLAIN])
        ratio = statistics.median(peaks[TILED]) / statistics.median(peaks[PLAIN])
        print(f"{name}, batch {batch}: largest difference {difference:.1e} of the largest output")
        rows = [(side, _mebibytes(min(samples)), _mebibytes(statistics.median(samples))) for side, samples in peaks.items()]
        print(
            "\n".join(aligned([("", "min", "median"), *rows])),
            f"\naspen needs {ratio:.2f} times as much as jax.jit\n",
            flush=True,
        )
        results.append({"name": name, "batch": batch, "difference": difference, "peak_bytes": peaks, "ratio": ratio})
    if json is not None:
        write_record(json, {"benchmark": "memory", "results": results})
    return 0 if all(result["difference"] <= TOLERANCE for result in results) else 1


def _in_process_of_its_own(side: str, name: str, batch: int, image_size: int | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.memory", side, name, str(batch), str(image_size or 0)]
    child = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if child.returncode:
        raise AspenError(f"measuring {side} on {name} ended with status {child.returncode}; its messages are above")
    return json_format.loads(child.stdout)


def _measure(side: str, name: str, batch: int, image_size: int | None) -> dict[str, Any]:
    model = keras_application(name, image_size)
    images = model.random_images(batch)
    output = np.zeros(0, np.float32)
    if side != _IDLE:
        run = jax.jit(model.predict if side == PLAIN else aspen(model.predict, weights="params"))
        for _ in range(_CALLS):
            output = np.asarray(run(model.params, images))
    return {"peak_bytes": _peak_bytes(), "output": output.tolist()}


def _peak_bytes() -> int:
    # Not getrusage: its figure begins with the memory of the process that forked this one.
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def _mebibytes(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"


if __name__ == "__main__":
    _side, _name, _batch, _image_size = sys.argv[1:]
    print(json_format.dumps(_measure(_side, _name, int(_batch), int(_image_size) or None)))
