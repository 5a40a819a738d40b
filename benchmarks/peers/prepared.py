"""A model made ready in a folder by `prepare`, from which each side reads the same weights, inputs and expected outputs."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import zoo
from benchmarks.child import measure_in_child
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.in_jax import Params
from benchmarks.zoo.network.network import Network

_QUIET = {"PYTHONWARNINGS": "ignore"}


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The folder of a model made ready.

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

    def make(self, threads: int, what: str) -> dict[str, Any]:
        """Fill the folder, which exists, in a process of its own: with `weights`, and then `onnx`.

        Returns:
            what benchmarks/peers/prepare.py says of it.

        Raises:
            AspenError: it cannot be made.
        """
        words = (str(self.folder), self.name, json.dumps(dataclasses.asdict(self.size)), str(threads), what)
        return measure_in_child("benchmarks.peers.prepare", words, _QUIET)

    def _arrays(self, name: str) -> tuple[np.ndarray, ...]:
        with np.load(self.folder / f"{name}.npz") as file:
            return tuple(file.values())
