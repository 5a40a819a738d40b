"""Makes a model ready in a folder, in a process of its own: draws weights and inputs, computes what to expect, exports it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspen_jax.errors import AspenError
from aspen_jax.report.cores import share_cores
from benchmarks.child import serve
from benchmarks.peers.prepared import Prepared
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.in_jax import in_jax
from benchmarks.zoo.network.parameters import calibrated, draw, draw_inputs


def _prepare(folder: str, name: str, size: str, threads: str, what: str) -> dict[str, Any]:
    share_cores(int(threads))
    prepared = Prepared(Path(folder), name, Size(**json.loads(size)))
    if what == "onnx":
        return {"onnx": _write_onnx(prepared)}
    _write_arrays(prepared)
    return {"flops": _flops(prepared)}


def _write_arrays(prepared: Prepared) -> None:
    network = prepared.network
    params = calibrated(network, draw(network))
    inputs = draw_inputs(network)
    arrays = [params[node][name].reshape(-1) for node, names in network.parameter_shapes().items() for name in names]
    np.save(prepared.folder / "params.npy", np.concatenate(arrays))
    with jax.default_matmul_precision("highest"):
        outputs = jax.tree.leaves(jax.jit(in_jax(network))(params, *inputs))
    np.savez(prepared.folder / "inputs.npz", *inputs)
    np.savez(prepared.folder / "expected.npz", *outputs)


def _flops(prepared: Prepared) -> float:
    """Floating-point operations of a call, as XLA counts them in the JAX function."""
    shapes = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, np.float32),
        prepared.network.parameter_shapes(),
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )
    analysis = jax.jit(in_jax(prepared.network)).lower(shapes, *prepared.inputs).cost_analysis() or {}
    return float(analysis.get("flops", 0))


def _write_onnx(prepared: Prepared) -> str:
    """Write the ONNX model: as PyTorch exports it, which is what its users have; from the description where there is none.

    Returns:
        Where it came from.

    Raises:
        AspenError: it cannot be written.
    """
    try:
        if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnxscript") is None:
            from benchmarks.zoo.network.in_onnx import write_onnx

            write_onnx(prepared.network, prepared.params, prepared.onnx)
            return "written from the description"
        from benchmarks.peers.torch_sides import export

        return export(prepared)
    except Exception as error:
        raise AspenError(f"there is no ONNX model: {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    serve(_prepare)
