"""`TileGraph.verify` and the engine refuse the same graphs, but for what the edges have to keep in order."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from aspen_jax import _engine
from aspen_jax.errors import GraphFormatError
from aspen_jax.graph.tilegraph import TileGraph
from tests.tile_graphs import changed, random_graph, small_net

# What `verify` finds by asking for regions, of which the engine knows nothing: a graph with such a fault computes nonsense and
# touches no memory but its own.
OF_ORDER = re.compile("does not wait for it|no edges keep their tiles apart|none of which rewrites the other's value")
ARRAYS = [field.name for field in dataclasses.fields(TileGraph) if isinstance(getattr(small_net(), field.name), np.ndarray)]
CHANGES = (-(1 << 63), -(1 << 40), -2, -1, 0, 1, 2, 3, 16, 64, 1 << 40, 1 << 62)


def refusal(read, data: bytes) -> str | None:
    """Why the reader refuses the graph; None where it takes it."""
    try:
        read(data)
    except GraphFormatError as error:
        return str(error)
    return None


def verified(data: bytes) -> None:
    TileGraph.from_bytes(data).verify()


def mutant(graph: TileGraph, rng: np.random.Generator) -> tuple[str, TileGraph]:
    """The graph with one number changed or replaced by its neighbour's, and what was changed."""
    name = str(rng.choice([*ARRAYS, "params", "inputs", "workspace_bytes", "max_depth"]))
    change = int(rng.choice(CHANGES))
    if name in ("workspace_bytes", "max_depth"):
        number = int(np.clip(getattr(graph, name) + change, -(1 << 63), (1 << 63) - 1))
        return f"{name} {number}", dataclasses.replace(graph, **{name: number})
    array = getattr(graph, name)
    index = int(rng.integers(max(array.size, 1)))
    if not array.size:
        return "nothing", graph
    numbers = array.copy()
    with np.errstate(over="ignore"):
        numbers.flat[index] = (
            numbers.flat[int(rng.integers(array.size))] if change == 0 else numbers.flat[index] + np.int64(change)
        )
    return f"{name}[{index}] {numbers.flat[index]}", dataclasses.replace(graph, **{name: numbers})


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(32))
def test_both_refuse_the_same_mutants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = small_net() if seed % 8 == 0 else random_graph(seed)
    refused = 0
    for number in range(60):
        what, broken = mutant(graph, rng)
        try:
            data = broken.to_bytes()
        except (IndexError, OverflowError):
            continue  # no bytes say so
        by_engine, by_python = refusal(_engine.Plan, data), refusal(verified, data)
        where = f"seed {seed}, mutant {number}: {what}"
        refused += by_python is not None
        if by_engine is not None:
            assert by_python is not None, f"{where}: the engine alone says {by_engine}"
        elif by_python is not None:
            assert OF_ORDER.search(by_python), f"{where}: Python alone says {by_python}"
    assert refused > 20


@pytest.mark.parametrize("child", [0, 1, -1])
def test_a_child_beyond_the_last_tile_is_refused(child: int) -> None:
    """The first number that is no tile's, wherever it stands among the children."""
    graph = small_net()
    broken = changed(graph, "children", child, graph.num_tiles)
    for check in (broken.verify, lambda: TileGraph.from_bytes(broken.to_bytes()), lambda: _engine.Plan(broken.to_bytes())):
        with pytest.raises(GraphFormatError, match=rf"is {graph.num_tiles}, outside \[0, "):
            check()


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("operands", lambda graph: len(graph.values)),
        ("results", lambda graph: len(graph.values)),
        ("tile_ops", lambda graph: graph.num_ops),
        ("children", lambda graph: graph.num_tiles),
    ],
)
def test_the_first_number_beyond_a_table_is_refused(name: str, limit) -> None:
    graph = small_net()
    for number in (limit(graph), -1):
        broken = changed(graph, name, -1, number)
        with pytest.raises(GraphFormatError, match=str(number)):
            broken.verify()


def test_a_result_of_another_dtype_than_what_is_written_there_is_refused_by_both() -> None:
    """Bytes that are no bools would come out as bools."""
    graph = small_net()
    (written,) = (number for number in graph.ops[:, 1].tolist() if graph.values[number, 0] == len(graph.operands))
    values = np.vstack([graph.values, graph.values[written]])
    shape = graph.value(written)[0]
    other = dataclasses.replace(
        graph,
        values=values,
        value_shapes=np.concatenate([graph.value_shapes, shape]),
        results=np.array([len(graph.values)]),
    )
    other.verify()
    broken = changed(other, "values", (len(graph.values), 2), 3)  # int32
    with pytest.raises(GraphFormatError, match="value"):
        broken.verify()
    with pytest.raises(GraphFormatError, match="has another dtype than buffer"):
        _engine.Plan(broken.to_bytes())
