"""Pictures of graphs show every op, tile and arrow, under any name."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from aspen_jax.errors import InputError
from aspen_jax.report import graph_picture
from aspen_jax.report.graph_picture import digraph, draw
from tests.report.test_trace import HOSTILE
from tests.tile_graphs import random_graph

needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz's program dot is not installed")


def edges(source: str) -> list[tuple[str, str]]:
    return re.findall(r"^\s*(\w+) -> (\w+)", source, re.MULTILINE)


@pytest.mark.parametrize("seed", range(5))
def test_tiles_and_their_arrows_are_drawn_once(seed):
    graph = random_graph(seed)
    parents = np.repeat(np.arange(graph.num_tiles), graph.child_counts)
    wanted = [(f"t{parent}", f"t{child}") for parent, child in zip(parents, graph.children, strict=True)]
    source = digraph(graph, tiles=True).source
    assert sorted(edges(source)) == sorted(wanted)
    assert source.count("style=solid") == graph.carries_data.sum()
    assert sorted(re.findall(r"^\s*(t\d+) \[", source, re.MULTILINE)) == sorted(f"t{i}" for i in range(graph.num_tiles))


@pytest.mark.parametrize("seed", range(5))
def test_ops_say_how_many_tiles_and_pairs_they_stand_for(seed):
    graph = random_graph(seed)
    source = digraph(graph).source
    assert len(set(edges(source))) == len(edges(source))
    assert sum(map(int, re.findall(r"-> o\d+ \[label=(\d+) style=\w+\]", source))) == graph.num_edges
    assert sum(map(int, re.findall(r"^(\d+) tiles?\"\]", source, re.MULTILINE))) == graph.num_tiles


@needs_dot
@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_shown_as_they_are(name, tmp_path):
    graph = random_graph(3)
    graph = dataclasses.replace(graph, op_names=(name,) * graph.num_ops)
    path = tmp_path / "graph.svg"
    draw(path, graph)
    texts = [element.text for element in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    for label in map(bounded, graph_picture.Labels(graph).ops):
        assert label in texts
    assert len(texts) == 3 * graph.num_ops + graph_picture.digraph(graph).source.count(" -> ")


def bounded(name: str) -> str:
    return graph_picture.bounded(name, graph_picture.LONGEST_LABEL)


@needs_dot
def test_a_file_is_what_its_ending_says(tmp_path):
    graph = random_graph(1)
    for ending, begins in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("dot", b"digraph")):
        draw(tmp_path / f"graph.{ending}", graph, tiles=True)
        assert (tmp_path / f"graph.{ending}").read_bytes().startswith(begins)


def test_what_cannot_be_drawn_is_refused(tmp_path, monkeypatch):
    graph = random_graph(1)
    with pytest.raises(InputError, match="cannot be written as a picture"):
        draw(tmp_path / "graph.doodle", graph)
    with pytest.raises(InputError, match="cannot be written as a picture"):
        draw(tmp_path / "missing" / "graph.dot", graph)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="program dot is not installed"):
        draw(tmp_path / "graph.svg", graph)
    monkeypatch.setattr(graph_picture, "MOST_NODES", 0)
    with pytest.raises(InputError, match="draw its ops instead"):
        digraph(graph, tiles=True)
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(InputError, match="pip install graphviz"):
        digraph(graph)
