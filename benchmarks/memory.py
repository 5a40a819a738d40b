"""Peak memory of a process that runs a model, with aspen and with `jax.jit`."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspen_jax import aspen
from aspen_jax.demo.keras_application import keras_application
from aspen_jax.report.comparison import PLAIN, TILED, TOLERANCE
from aspen_jax.report.difference import largest_difference
from aspen_jax.report.record import write_record
from aspen_jax.report.timing import aligned, check_rounds
from benchmarks.child import measure_in_child, serve
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
                words = (side, name, str(batch), "" if image_size is None else str(image_size))
                measured = measure_in_child("benchmarks.memory", words)
                samples.append(measured["peak_bytes"])
                outputs[side] = np.asarray(measured["output"], np.float32)
        difference = largest_difference(outputs[TILED], outputs[PLAIN])
        ratio = statistics.median(peaks[TILED]) / statistics.median(peaks[PLAIN])
        print(f"{name}, batch {batch}: largest difference {difference:.1e} of the largest output")
        rows = [(side, _mebibytes(min(samples)), _mebibytes(statistics.median(samples))) for side, samples in peaks.items()]
        print("\n".join(aligned([("", "min", "median"), *rows])))
        print(f"aspen needs {ratio:.2f} times as much as jax.jit\n", flush=True)
        results.append({"name": name, "batch": batch, "difference": difference, "peak_bytes": peaks, "ratio": ratio})
    if json is not None:
        write_record(json, {"benchmark": "memory", "results": results})
    return 0 if all(result["difference"] <= TOLERANCE for result in results) else 1


def _measure(side: str, name: str, batch: str, image_size: str) -> dict[str, Any]:
    model = keras_application(name, int(image_size) if image_size else None)  # not calibrated: that has a peak of its own
    images = model.random_images(int(batch))
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
    serve(_measure)
