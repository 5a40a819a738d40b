"""A tile graph as a picture, laid out by Graphviz: its ops, or every tile."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aspen_jax.errors import GraphFormatError, InputError
from aspen_jax.report.labels import Labels, bounded

if TYPE_CHECKING:
    import graphviz

    from aspen_jax.graph.tilegraph import TileGraph

MOST_NODES = 2_000
"""Graphviz takes minutes for more."""

LONGEST_LABEL = 60

_STYLES = {True: "solid", False: "dashed"}


def digraph(graph: TileGraph, *, tiles: bool = False) -> graphviz.Digraph:
    """A graph as Graphviz knows it; a notebook shows it as a picture.

    Args:
        graph: what is drawn.
        tiles: a node for each tile, in a box for each op, and an arrow wherever one tile waits for another. Otherwise a node for
            each op, with its number of tiles, and on each arrow how many pairs of tiles it stands for. Arrows are dashed where
            the child reads nothing of its parent and only uses its memory again.

    Raises:
        InputError: the package graphviz is not installed, or there are too many nodes to lay out.
    """
    try:
        import graphviz
    except ImportError as error:
        raise InputError("pictures of graphs need the package graphviz; run pip install graphviz") from error
    nodes = graph.num_tiles if tiles else graph.num_ops
    if nodes > MOST_NODES:
        remedy = "draw its ops instead" if tiles else "draw a part of the function"
        raise InputError(f"the picture would have {nodes} nodes, and Graphviz lays out {MOST_NODES} in bearable time; {remedy}")
    picture = graphviz.Digraph(graph_attr={"rankdir": "TB"}, node_attr={"shape": "box", "fontname": "sans-serif"})
    labels = Labels(graph)
    reads = _reads(graph)
    parents = np.repeat(np.arange(graph.num_tiles), graph.child_counts)
    if tiles:
        for op in range(graph.num_ops):
            box = graphviz.Digraph(name=f"cluster_{op}", graph_attr={"label": _text(labels.ops[op])})
            for tile in graph.tiles_of(op)[0].tolist():
                box.node(f"t{tile}", _text(labels.boxes[tile] or str(tile)))
            picture.subgraph(box)
        for parent, child, is_read in zip(parents.tolist(), graph.children.tolist(), reads.tolist(), strict=True):
            picture.edge(f"t{parent}", f"t{child}", style=_STYLES[is_read])
        return picture
    for op in range(graph.num_ops):
        shape, dtype = graph.value(int(graph.ops[op, 1]))
        count = len(graph.tiles_of(op)[0])
        lines = [labels.ops[op], f"{dtype.name}{list(shape)}", f"{count} tile{'s' if count != 1 else ''}"]
        picture.node(f"o{op}", _text(*lines))
    pairs = list(zip(graph.tile_ops[parents].tolist(), graph.tile_ops[graph.children].tolist(), strict=True))
    with_data = {pair for pair, is_read in zip(pairs, reads.tolist(), strict=True) if is_read}
    for (parent, child), count in Counter(pairs).items():
        picture.edge(f"o{parent}", f"o{child}", label=str(count), style=_STYLES[(parent, child) in with_data])
    return picture


def draw(path: str | os.PathLike[str], graph: TileGraph, *, tiles: bool = False) -> None:
    """Draw a graph into a file, whose ending says what it is: .svg, .pdf, .png, or .dot for Graphviz's own text.

    Args:
        path: of the file.
        graph: what is drawn.
        tiles: every tile rather than the ops.

    Raises:
        InputError: Graphviz's program `dot` or its package is not installed, there are too many nodes, or the file cannot be
            written.
    """
    picture = digraph(graph, tiles=tiles)
    path = Path(path)
    import graphviz

    try:
        is_text = path.suffix == ".dot"
        path.write_bytes(picture.source.encode() if is_text else picture.pipe(format=path.suffix.removeprefix(".")))
    except graphviz.ExecutableNotFound as error:
        raise InputError(
            "Graphviz's program dot is not installed; install Debian's or Ubuntu's package graphviz, or write a .dot file"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} cannot be written as a picture: {error}") from error


def _reads(graph: TileGraph) -> np.ndarray:
    try:
        return graph.carries_data
    except GraphFormatError:  # a graph made by hand, for a simulation
        return np.ones(graph.num_edges, bool)


def _text(*lines: str) -> str:
    """A label that Graphviz shows as it is; it would read backslashes as commands, &...; as a character and <...> as HTML."""
    import graphviz

    return graphviz.escape("\n".join(bounded(line, LONGEST_LABEL) for line in lines).replace("&", "&amp;"))
