"""The Python blocks of README.md and of every page below docs/."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_FENCE = re.compile(r"^```python( [^\n]*)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# A block in another language that says title="FILE" is a file that the page's program reads.
_FILE = re.compile(r'^```\w+ title="([\w.]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)

# Put behind ```python where a block is no program of its own; the page says why.
NOT_RUN = "not run"


def pages_with_code() -> list[Path]:
    """README.md and the pages in docs/ and its folders that have Python blocks."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in pages if _FENCE.search(page.read_text())]


@functools.cache
def run_page(page: Path) -> dict[str, Any]:
    """Run a page's blocks one after the other, as one module, and give its names. Its files go to the current folder."""
    text = page.read_text()
    for file in _FILE.finditer(text):
        Path(file[1]).write_text(file[2])
    names: dict[str, Any] = {"__name__": page.stem}
    for match in _FENCE.finditer(text):
        if (match[1] or "").strip() == NOT_RUN:
            continue
        line = text.count("\n", 0, match.start(2))
        exec(compile("\n" * line + match[2], str(page), "exec"), names)  # tracebacks show the page's own lines
    return names


def run_apart(page: Path, environment: dict[str, str]) -> str:
    """Run a page in a process of its own, since what it registers stays, and give what it prints."""
    program = f"import sys; sys.path.append({str(ROOT)!r}); from tests import pages; pages.run_page(pages.Path({str(page)!r}))"
    command = [sys.executable, "-P", "-W", "error", "-c", program]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout
