"""A model made ready in a folder, so that each side reads the same weights, inputs and expected outputs."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from aspen_jax.errors import AspenError
from aspen_jax.report.cores import share_cores
from benchmarks.child import serve
from benchmarks.models import zoo
from benchmarks.models.model import Size
from benchmarks.network.in_jax import Params, in_jax
from benchmarks.network.network import Network
from benchmarks.network.parameters import calibrated, draw, draw_inputs


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A folder that `prepare` has filled.

    Attributes:
        folder: where it lies.
        name: of the network.
        size: of its inputs.
    """

    folder: Path
    name: str
    size: Size

    @functools.cached_property
    def network(self) -> Network:
        """The description."""
        return zoo.describe(self.name, self.size)

    @property
    def params(self) -> Params:
        """Float32 arrays in the file; nothing is in memory before it is read."""
        numbers = np.load(self.folder / "params.npy", mmap_mode="r")
        params: Params = {}
        start = 0
        for node, shapes in self.network.parameter_shapes().items():
            for name, shape in shapes.items():
                end = start + math.prod(shape)
                params.setdefault(node, {})[name] = numbers[start:end].reshape(shape)
                start = end
        return params

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        """What the network is called with."""
        return self._arrays("inputs")

    @property
    def expected(self) -> tuple[np.ndarray, ...]:
        """What it must give: by `jax.jit` in the highest precision."""
        return self._arrays("expected")

    @property
    def onnx(self) -> Path:
        """The network as an ONNX model."""
        return self.folder / "model.onnx"

    def write(self) -> None:
        """Fill the folder, but for the ONNX model."""
        params = calibrated(self.network, draw(self.network))
        inputs = draw_inputs(self.network)
        shapes = self.network.parameter_shapes()
        arrays = [params[node][name].reshape(-1) for node, names in shapes.items() for name in names]
        np.save(self.folder / "params.npy", np.concatenate(arrays))
        with jax.default_matmul_precision("highest"):
            outputs = jax.tree.leaves(jax.jit(in_jax(self.network))(params, *inputs))
        np.savez(self.folder / "inputs.npz", *inputs)
        np.savez(self.folder / "expected.npz", *outputs)

    def flops(self) -> float:
        """Floating-point operations of a call, as XLA counts them in the JAX function."""
        shapes = jax.tree.map(
            lambda shape: jax.ShapeDtypeStruct(shape, np.float32),
            self.network.parameter_shapes(),
            is_leaf=lambda leaf: isinstance(leaf, tuple),
        )
        analysis = jax.jit(in_jax(self.network)).lower(shapes, *self.inputs).cost_analysis() or {}
        return float(analysis.get("flops", 0))

    def write_onnx(self) -> str:
        """Write the ONNX model: as PyTorch exports it, which is what its users have; from the description where there is none.

        Returns:
            Where it came from.

        Raises:
            AspenError: it cannot be written.
        """
        try:
            if importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnxscript") is None:
                from benchmarks.network.in_onnx import write_onnx

                write_onnx(self.network, self.params, self.onnx)
                return "written from the description"
            from benchmarks.peers.torch_sides import export

            return export(self)
        except Exception as error:
            raise AspenError(f"there is no ONNX model: {type(error).__name__}: {error}") from error

    def _arrays(self, name: str) -> tuple[np.ndarray, ...]:
        with np.load(self.folder / f"{name}.npz") as file:
            return tuple(file.values())


def _prepare(folder: str, name: str, size: str, threads: str, what: str) -> dict[str, Any]:
    share_cores(int(threads))
    prepared = Prepared(Path(folder), name, Size(**json.loads(size)))
    if what == "onnx":
        return {"onnx": prepared.write_onnx()}
    prepared.write()
    return {"flops": prepared.flops()}


if __name__ == "__main__":
    serve(_prepare)
