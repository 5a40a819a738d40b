"""Graphs of which one word of the parameters is another: files that lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from aspen_jax.errors import GraphFormatError
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ops.family import OpFamily

FAR = (-(1 << 63), -(1 << 40), 1 << 40, (1 << 63) - 1)


def most_are_refused(graph: TileGraph, family: OpFamily, operands: Sequence[np.ndarray]) -> None:
    """Changes each word of a family's ops a little and a lot: most graphs must be refused with an error, the rest must run."""
    of_family = [op.family is family for op in graph.program().ops]
    tried = refused = 0
    for word in np.flatnonzero(np.repeat(of_family, graph.ops[:, 3])):
        for value in [int(graph.params[word]) + step for step in (-2, -1, 1, 2)] + [*FAR]:
            params = graph.params.copy()
            params[word] = value
            changed = dataclasses.replace(graph, params=params)
            tried += 1
            try:
                changed.verify()
                changed.run(*operands)
            except GraphFormatError:
                refused += 1
    assert tried
    assert 2 * refused > tried
