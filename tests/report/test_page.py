"""The page of a run: complete, self-contained, and safe whatever names it holds."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import aspen
from aspen_jax.report.explain import Explanation, FallbackReport
from aspen_jax.report.labels import Labels
from aspen_jax.report.page import page
from aspen_jax.report.timeline import Timeline
from tests.report.test_trace import HOSTILE
from tests.tile_graphs import random_graph
from tests.timelines import random_timeline


class Parsed(HTMLParser):
    """What a browser makes of a page: elements, their attributes, and text."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._inside: list[str] = []
        self.feed(text)
        self.close()
        assert self._inside == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self._inside.append(tag)

    def handle_endtag(self, tag):
        assert self._inside.pop() == tag

    def handle_data(self, data):
        if self._inside:
            self.text.setdefault(self._inside[-1], []).append(data)

    def count(self, tag: str) -> int:
        return sum(element == tag for element, _ in self.elements)


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    return aspen(lambda x: jax.lax.lgamma(jnp.tanh(x @ x))).explain(jnp.ones((256, 256)))


def example(seed: int, explanation, name: str = "predict", op_names=None):
    graph = random_graph(seed)
    if op_names is not None:
        graph = dataclasses.replace(graph, op_names=op_names * graph.num_ops)
    lanes = 1 + seed % 3
    run = Timeline(graph, random_timeline(graph, seed, lanes, 1 + seed % 2), [f"worker {lane}" for lane in range(lanes)])
    return graph, run, page(name, Labels(graph), run, explanation)


@pytest.mark.parametrize("seed", range(8))
def test_the_page_holds_the_run(seed, explanation):
    graph, run, text = example(seed, explanation)
    parsed = Parsed(text)
    (data, _) = parsed.text["script"]
    drawn = json.loads(data)
    assert sorted(tile[4] for tile in drawn["tiles"]) == list(range(graph.num_tiles))
    for row, begin, end, op, tile, _, critical in drawn["tiles"]:
        assert (begin, end) == (run.begin[tile] - run.start, run.end[tile] - run.start)
        assert op == graph.tile_ops[tile]
        assert critical == (tile in run.critical_path)
        assert row < len(drawn["rows"])
    assert len(drawn["gaps"]) == len(run.gaps)
    assert [name for name in drawn["rows"] if name] == [name for _, name in run.lanes]
    cells = parsed.text["td"]
    assert {"lgamma"} <= {cell.split("(")[0] for cell in cells}
    assert all(name in cells for name in Labels(graph).ops[:3])


def test_the_page_needs_no_network(explanation):
    _, _, text = example(1, explanation)
    assert "http" not in text
    parsed = Parsed(text)
    assert parsed.count("link") == parsed.count("img") == 0
    assert not [attributes for _, attributes in parsed.elements if {"src", "href"} & attributes.keys()]


@pytest.mark.parametrize("hostile", [*HOSTILE, "<!--<script>", "]]>", "&lt;", "' onload='alert(1)"])
def test_names_are_only_text(hostile, explanation):
    report = FallbackReport(hostile, hostile, hostile, hostile, 1)
    told = dataclasses.replace(explanation, fallbacks=(report,))
    harmless = dataclasses.replace(explanation, fallbacks=(FallbackReport("a", "b", "c", "d", 1),))
    _, _, text = example(2, told, hostile, (hostile,))
    _, _, usual = example(2, harmless, "name", ("op" if hostile else "",))
    text.encode()
    assert Parsed(text).elements == Parsed(usual).elements
    assert json.loads(Parsed(text).text["script"][0])["ops"]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_explanations_in_notebooks(hostile, explanation):
    told = explanation._repr_html_()
    assert Parsed(told).count("table") == len(explanation.parts) + 1
    assert "lgamma" in told
    report = FallbackReport(hostile, hostile, hostile, hostile, 1)
    changed = dataclasses.replace(explanation, fallbacks=(report,), function=hostile)
    changed._repr_html_().encode()
    assert Parsed(changed._repr_html_()).elements == Parsed(told).elements
    reason = dataclasses.replace(explanation, fallbacks=(), reason=hostile)
    assert Parsed(reason._repr_html_()).count("script") == 0


def test_all_left_to_xla_and_nothing_left(explanation):
    _, _, text = example(3, dataclasses.replace(explanation, reason="does nothing", fallbacks=()))
    assert "because the function does nothing" in text
    _, _, text = example(3, dataclasses.replace(explanation, fallbacks=()))
    assert "<div>nothing</div>" in text


def test_a_run_without_tiles(explanation):
    empty = np.ones((0, 3), np.float32)
    graph = aspen(jnp.exp).graph(empty)
    assert graph.num_tiles == 0
    Parsed(page("nothing", Labels(graph), Timeline(graph, graph.timeline(empty)), explanation))
