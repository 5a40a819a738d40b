"""Graph files and exported functions of version 1 of the graph format run in this build (docs/compatibility.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jax import export

from aspen_jax.graph.tilegraph import TileGraph

FOLDER = Path(__file__).parent / "version1"
NAMES = sorted(path.stem for path in FOLDER.glob("*.aspen"))


def case(name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Its inputs and its results."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        inputs = [arrays[f"arr_{k}"] for k in range(sum(key.startswith("arr_") for key in arrays))]
        return inputs, [arrays[f"result{k}"] for k in range(len(arrays.files) - len(inputs))]


def assert_close(found, expected) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_there_are_files():
    assert len(NAMES) == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_file_of_version_1_runs(name):
    data = (FOLDER / f"{name}.aspen").read_bytes()
    assert data[8] == 1
    graph = TileGraph.load(FOLDER / f"{name}.aspen")
    inputs, results = case(name)
    assert_close(graph.run(*inputs), results)
    assert data.startswith(graph.to_bytes()), "a graph that needs nothing new is written as before"


@pytest.mark.parametrize("name", NAMES)
def test_a_function_exported_with_version_1_runs(name):
    exported = export.deserialize(bytearray((FOLDER / f"{name}.export").read_bytes()))
    inputs, results = case(name)
    found = exported.call(*inputs)
    assert_close(found if isinstance(found, tuple | list) else [found], results)
