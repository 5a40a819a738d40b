"""Docstrings say what a thing is: none begins as the rest of a sentence that nobody sees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Prepositions, conjunctions, adverbs and pronouns, which need something before them.
_WORDS = """
    about above across after against along although amid among and apart around as at because before behind below beneath
    beside besides between beyond but by despite down during either else even except for from furthermore hence here her his
    however if in inside instead into it its itself like likewise neither no none nor not nothing of off on once only onto or
    otherwise our ours out outside over per rather she since so still such than that their theirs them then there thereby
    therefore these they those though through throughout thus to together too toward towards under unless unlike until unto up
    upon versus via we when whenever whereas whereby while whoever whom whose with within without yet
"""
_FRAGMENT = re.compile(
    rf"(?:{'|'.join(_WORDS.split())})\b"
    r"|(?:all of them|empty|refused|rounded)\b"
    r"|(?:each|equal|one|the same)[,:]? (?:as|at|by|for|from|if|in|on|over|to|when|where|with|without)\b",
    re.IGNORECASE,
)


def is_fragment(docstring: str) -> bool:
    return _FRAGMENT.match(docstring) is not None


def docstrings(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, name and docstring of a module, of its classes and of its functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                yield getattr(node, "lineno", 1), getattr(node, "name", "<module>"), docstring


@pytest.mark.parametrize("folder", ["aspen_jax", "benchmarks"])
def test_docstrings_say_what_the_thing_is(folder: str) -> None:
    findings = []
    for path in sorted(path for kind in ("py", "pyi") for path in (ROOT / folder).rglob(f"*.{kind}")):
        file = path.relative_to(ROOT).as_posix()
        for line, name, docstring in docstrings(path):
            if is_fragment(docstring):
                findings.append(f"{file}:{line} {name}: {docstring.splitlines()[0]}")
    assert findings == [], "Begin with a verb or a noun, and name the thing:\n" + "\n".join(findings)


@pytest.mark.parametrize(
    "docstring",
    [
        "Of shared memory, but for some words a row.",
        "With all that was measured on it.",
        "Likewise, mostly a power of two.",
        "None where strides forbid it.",
        "By Strassen's algorithm.",
        "When a run is due.",
        "The same for arrays of these shapes.",
        "Equal for ops that are the same work.",
    ],
)
def test_a_fragment_is_found(docstring: str) -> None:
    assert is_fragment(docstring)


@pytest.mark.parametrize(
    "docstring",
    [
        "Bytes of shared memory.",
        "What a tile reads.",
        "Whether an op is streamed.",
        "One of the sides that are compared.",
        "The same graph with memory of its own for each value.",
        "All operations on elements.",
        "Forget what was measured.",
        "`None` stands for no limit.",
        "Notes on an op.",
        "Attributes:\n    rows: of a matrix.",
    ],
)
def test_a_sentence_is_none(docstring: str) -> None:
    assert not is_fragment(docstring)
