"""What a call gives a TileGraph, as arrays that fit its inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from aspen_jax.errors import InputError
from aspen_jax.ir.leaf_names import leaf_names

if TYPE_CHECKING:
    from aspen_jax.graph.tilegraph import TileGraph

# The kind of an input that stands for an argument which no tile could hold and none reads: `run` takes anything for it.
_UNREAD = ((0,), np.dtype(np.uint8))


def operands_of(graph: TileGraph, inputs: Sequence[Any]) -> list[np.ndarray]:
    """Gives what `TileGraph.operands_of`."""
    given = jax.tree.leaves(inputs)
    num_inputs = len(graph.operands) - len(graph.constants)
    if len(given) != num_inputs:
        raise InputError(f"the graph takes {num_inputs} inputs and got {len(given)}; pass one array for each")
    arrays = [_as_input(item, *graph.value(number)) for item, number in zip(given, graph.operands[:num_inputs], strict=True)]
    for index, array in enumerate(arrays):
        _check_input(f"input {index}", array, *graph.value(graph.operands[index]))
    return [*arrays, *graph.constants]


def weights_of(graph: TileGraph, arguments: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays by the names of the inputs that they are for; see `TileGraph.save_weights`."""
    kinds = {name: graph.value(number) for name, number in zip(graph.input_names, graph.operands, strict=False)}
    weights: dict[str, np.ndarray] = {}
    for argument, tree in arguments.items():
        for name, leaf in zip(leaf_names(argument, tree), jax.tree.leaves(tree), strict=True):
            if name not in kinds:
                raise InputError(
                    f"{name!r} is no input of the graph, whose inputs are {', '.join(graph.input_names) or 'without names'}; "
                    "pass arguments by their names, as in save_weights(path, params=params)"
                )
            array = _as_input(leaf, *kinds[name])
            _check_input(repr(name), array, *kinds[name])
            weights[name] = array
    return weights


def _check_input(what: str, array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise InputError(
            f"{what} is {array.dtype}{list(array.shape)} and the graph takes {dtype}{list(shape)}; "
            "pass that, or build a graph for these inputs"
        )


def _as_input(given: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array for an input of this kind, which it need not fit."""
    if (shape, dtype) == _UNREAD:
        return np.zeros(*_UNREAD)
    if isinstance(given, bool | int | float) and not isinstance(given, np.generic):
        with contextlib.suppress(OverflowError):
            return np.asarray(given, dtype)
    return np.ascontiguousarray(given).reshape(np.shape(given))
