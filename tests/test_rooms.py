"""Rooms know what docs/architecture.md says that they know, and files import each other in no circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "aspen_jax"
# What every room may import.
COMMON = {"errors", "files", "forks", "runtime", "_engine", ""}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Modules of ours that a file imports but for type checking, and whether only when a function is called."""

    def visit(node: ast.AST, is_late: bool) -> Iterator[tuple[str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from ((name.name, is_late) for name in child.names if name.name.split(".")[0] == "aspen_jax")
            elif isinstance(child, ast.ImportFrom) and (child.module or "").split(".")[0] == "aspen_jax":
                for name in child.names:
                    whole = f"{child.module}.{name.name}"
                    yield (whole if whole in MODULES or name.name == "_engine" else str(child.module)), is_late
            yield from visit(child, is_late or isinstance(child, ast.FunctionDef | ast.Lambda))

    return visit(ast.parse(path.read_text()), False)


def room(module: str) -> str:
    return [*module.split("."), ""][1]


def claims() -> dict[str, tuple[set[str], set[str]]]:
    """For each room of the table, those that it knows, and those that it knows when asked."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for line in (ROOT / "docs/architecture.md").read_text().splitlines():
        match = re.fullmatch(r"\| (`[a-z./]+`(?:, `[a-z./]+`)*) \| .* \|([^|]*)\|", line)
        if match is None:
            continue
        always, _, asked = match[2].partition("when asked:")
        words = [set(re.findall(r"[a-z]+", part)) for part in (always, asked)]
        if "all" in words[0]:
            words[0] = words[0] - {"all", "above"} | set(found)
        for name in re.findall(r"`([a-z]+)[./]", match[1]):
            found[name] = (words[0], words[1])
    return found


def test_rooms_know_what_the_page_says():
    known = claims()
    assert known.keys() >= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    for module, path in MODULES.items():
        name = room(module)
        if name not in known:
            continue
        always, asked = known[name]
        for other, is_late in imports(path):
            allowed = {name} | COMMON | always | (asked if is_late else set())
            if name in ("report", "demo", "cli"):
                allowed |= {"report", "demo"}
            assert room(other) in allowed, f"{module} imports {other}, which {name}/ does not know"


# What others may know of devices. A report of the machine names them.
OF_TARGETS = {"aspen_jax.targets.target", "aspen_jax.targets.registry"}


def test_no_room_knows_a_device():
    for module, path in MODULES.items():
        if room(module) == "targets" or module == "aspen_jax.report.machine":
            continue
        for other, _ in imports(path):
            assert room(other) != "targets" or other in OF_TARGETS, f"{module} imports {other}; ask the Target instead"


def test_few_files_stay_at_the_top_and_each_room_says_what_it_is():
    assert len(list(PACKAGE.glob("*.py"))) <= 6
    for path in PACKAGE.glob("*/__init__.py"):
        if path.parent.name in ("report", "demo", "ops", "passes", "apu", "cuda"):
            continue
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert "nows" in text or "Asked by" in text, f"{path.parent.name}/__init__.py does not say what it knows"
        assert "Begin at" in text, f"{path.parent.name}/__init__.py does not say where to begin"


def test_tests_lie_in_the_rooms_of_what_they_test():
    folders = {path.parent.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    others = {".", "benchmarks", "models", "tools"}
    assert all((PACKAGE / folder).is_dir() for folder in folders - others), folders


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """What each module imports when it is loaded."""
    return {module: {other for other, is_late in imports(path) if not is_late} for module, path in MODULES.items()}


@pytest.mark.parametrize("name", sorted({room(module) for module in MODULES}))
def test_files_import_each_other_in_no_circle(name, graph):
    """When they are loaded; what a function imports when it is called may look back."""

    def reaches(start: str, wanted: str) -> bool:
        seen, waiting = set(), [start]
        while waiting:
            module = waiting.pop()
            for other in graph.get(module, ()):
                if other == wanted:
                    return True
                if other not in seen and other != "aspen_jax":
                    seen.add(other)
                    waiting.append(other)
        return False

    for module in MODULES:
        if room(module) == name and module != "aspen_jax":
            assert not reaches(module, module), module
