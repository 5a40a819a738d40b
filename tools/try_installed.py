"""What an installed aspen_jax must do on a machine without a compiler: run by tools/wheels.py, from a folder of its own."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

import aspen_jax
from aspen_jax import TileGraph, _engine, aspen

# A wheel has kernels for all processors, also for those that this machine is not.
TARGETS = {"x86_64": ["portable", "avx2", "avx512", "amx"]}

# One product, one convolution and one reduction. An error instead of a fallback, so that it is tiles that are tried.
ATTEMPTS = {
    "product": (lambda x, w: jax.nn.relu(x @ w), ((64, 128), (128, 256))),
    "convolution": (lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME"), ((1, 16, 28, 28), (32, 16, 3, 3))),
    "softmax": (lambda x: jax.nn.softmax(x, axis=-1), ((32, 512),)),
}


def main() -> None:
    """Try all; the first thing that fails ends the script."""
    for compiler in ("c++", "g++", "gcc", "cc", "clang++", "clang"):
        assert shutil.which(compiler) is None, f"{compiler} is on PATH, so nothing would be shown"
    programs = Path(sys.prefix) / "bin"
    assert Path(aspen_jax.__file__).is_relative_to(sys.prefix), f"{aspen_jax.__file__} is not what was installed"

    report = subprocess.run([programs / "aspen", "info"], check=True, capture_output=True, text=True).stdout
    rows = dict(line.split(maxsplit=1) for line in report.splitlines() if len(line.split(maxsplit=1)) == 2)
    assert rows["aspen_jax"] == importlib.metadata.version("aspen_jax") == aspen_jax.__version__, report
    assert _engine.cpu_targets_compiled() == TARGETS.get(platform.machine(), ["portable"]), report

    random = np.random.default_rng(0)
    for name, (function, shapes) in ATTEMPTS.items():
        arguments = [random.standard_normal(shape, np.float32) for shape in shapes]
        expected = jax.jit(function)(*arguments)
        tiled = aspen(function, strict=True)
        compare(name, jax.jit(tiled)(*arguments), expected)
        with tempfile.TemporaryDirectory() as folder:
            tiled.graph(*arguments).save(Path(folder) / "graph")
            graph = TileGraph.load(Path(folder) / "graph")
            compare(f"{name}, without Python", run_without_python(programs, graph, arguments, Path(folder)), expected)
        graph.verify()
        assert graph.num_tiles > 0
        compare(f"{name}, a graph saved and loaded", graph.run(*arguments)[0], expected)
    print(report, end="")


def run_without_python(programs: Path, graph: TileGraph, arguments: list[np.ndarray], folder: Path) -> np.ndarray:
    """The first result of `aspen-run`: the first argument from a .npy file, the others from a safetensors file."""
    first, *others = graph.input_names
    np.save(folder / "first.npy", arguments[0])
    write_safetensors(folder / "weights", dict(zip(others, arguments[1:], strict=True)))
    inputs = ["--input", f"{first}={folder / 'first.npy'}", "--weights", folder / "weights"]
    command = [programs / "aspen-run", folder / "graph", *inputs, "--output", folder / "results", "--runs", "3"]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return np.load(folder / "results" / f"{graph.result_names[0]}.npy")


def write_safetensors(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """A file of float32 arrays; the package safetensors, which would do this, is not installed here."""
    header, position = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values()))


def compare(name: str, actual: jax.Array | np.ndarray, expected: jax.Array) -> None:
    limit = 1e-4 * float(np.abs(expected).max())
    error = float(np.abs(np.asarray(actual) - np.asarray(expected)).max())
    assert error <= limit, f"{name}: off by {error}, more than {limit}"


if __name__ == "__main__":
    main()
