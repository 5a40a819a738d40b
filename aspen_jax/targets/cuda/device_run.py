"""Graphs on the first GPU without XLA: for checks of kernels and executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from aspen_jax import _engine
from aspen_jax.errors import InputError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.targets.cuda.code.image import Code
from aspen_jax.targets.cuda.executor import Executor


class RunTimes(NamedTuple):
    """Seconds of a run, from each round: by the device's events, and until the host had given it to the device."""

    device: list[float]
    host: list[float]


class DeviceRun:
    """A graph loaded on the first GPU."""

    def __init__(self, graph: TileGraph, code: Code, executor: Executor):
        """Reads the graph and finds the GPU; the code is loaded by the first run.

        Raises:
            EngineError: there is no driver, or no GPU.
            InputError: the code is not the graph's.
        """
        self._graph = graph
        numbers = (code.kernels.tolist(), code.launched_with.tolist())
        self._run = _engine.CudaRun(graph.to_bytes(), code.image.tobytes(), *numbers, int(executor))

    def run(self, *operands: Any, captured: bool = False) -> list[np.ndarray]:
        """The graph's results.

        Args:
            *operands: an array for each operand of the graph that is no constant.
            captured: whether the run is captured into a CUDA graph, as XLA's command buffers are.

        Raises:
            InputError: the arrays are not those of the graph.
            EngineError: the GPU refuses something; the message names op and tiles.
        """
        return self._results_and_milliseconds(operands, captured, 0)[0]

    def timed(self, *operands: Any, rounds: int) -> tuple[list[np.ndarray], RunTimes]:
        """The graph's results, and how long runs took; for the rest see `run`."""
        results, milliseconds = self._results_and_milliseconds(operands, False, rounds)
        return results, RunTimes(*([1e-3 * item for item in side] for side in milliseconds))

    def _results_and_milliseconds(
        self, operands: Sequence[Any], captured: bool, rounds: int
    ) -> tuple[list[np.ndarray], tuple[list[float], list[float]]]:
        arrays = []
        given = [*operands, *self._graph.constants]
        if len(given) != len(self._graph.operands):
            wanted = len(self._graph.operands) - len(self._graph.constants)
            raise InputError(f"the graph takes {wanted} operands, but {len(operands)} were given; pass one for each")
        for number, (operand, value) in enumerate(zip(given, self._graph.operands.tolist(), strict=True)):
            shape, dtype = self._graph.value(value)
            array = np.asarray(operand, order="C")
            if array.shape != shape or array.dtype != dtype:
                given_as, wanted_as = f"{array.dtype}{list(array.shape)}", f"{dtype}{list(shape)}"
                raise InputError(f"operand {number} is {given_as}, but the graph takes {wanted_as}; pass such an array")
            arrays.append(array)
        results = [np.empty(*self._graph.value(value)) for value in self._graph.results.tolist()]
        given_at, results_at = ([array.ctypes.data for array in side] for side in (arrays, results))
        # What ops rewrite in place lies where XLA lets it lie, or else all of it would be copied.
        operand_of = {result: operand for operand, result in self._graph.shared_memory.items()}
        lies_in = [operand_of.get(number, -1) for number in range(len(results))]
        return results, self._run.run(given_at, results_at, lies_in, captured, rounds)
