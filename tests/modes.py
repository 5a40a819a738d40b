"""The suite's two modes: `forced` tiles what tiles can compute, `default` is what users run.

    ASPEN_TEST_MODE=default pytest tests/primitive/test_transformations.py

In the default mode the chooser decides and XLA optimises its code. One case in two runs, chosen by the content of the checkout
(`rotation.py`). What is marked `one_mode` stays out. At the end each file says in how many of its cases the engine ran tiles.
The run fails where that is less than half of a file's cases. So tests take arrays that are worth tiles there (`sized`).
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from typing import TypeVar

import pytest

from tests.rotation import share

IS_DEFAULT = os.environ.get("ASPEN_TEST_MODE") == "default"
TURNS = 2
# A file of fewer cases may have any number with tiles.
LEAST_CASES = 8
_PROPERTY = "tiles"

T = TypeVar("T")


def sized(forced: T, default: T) -> T:
    """One of two sizes or shapes: small where tiles are forced, and so large in the default mode that the chooser takes tiles."""
    return default if IS_DEFAULT else forced


class DefaultMode:
    """A plugin of pytest for runs in the default mode."""

    def __init__(self) -> None:
        self.cases: Counter[str] = Counter()
        self.tiled: Counter[str] = Counter()
        self.untiled: defaultdict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl(trylast=True)  # after what is swept by turns was chosen
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        of_files: defaultdict[str, list[pytest.Item]] = defaultdict(list)
        for item in items:
            if item.get_closest_marker("one_mode") is None:
                of_files[item.path.name].append(item)
        kept = {item for name, of_file in of_files.items() for item in share(of_file, f"default mode of {name}", TURNS)}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):
        """Counts the tiles that the engine runs; what the chooser leaves to XLA has none."""
        from aspen_jax import _engine

        recorder = _engine.Recorder(1)
        recorder.start()
        try:
            return (yield)
        finally:
            rows, _, without_room, _ = recorder.stop()
            item.user_properties.append((_PROPERTY, bool(rows) + without_room))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            name = report.nodeid.partition("::")[0].rpartition("/")[2]
            self.cases[name] += 1
            if dict(report.user_properties)[_PROPERTY]:
                self.tiled[name] += 1
            else:
                self.untiled[name].append(report.nodeid.partition("::")[2])

    @property
    def too_few(self) -> list[str]:
        """Files of which the default mode tests too little."""
        return [name for name, cases in sorted(self.cases.items()) if cases >= LEAST_CASES and 2 * self.tiled[name] < cases]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and self.too_few:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for name, cases in sorted(self.cases.items()):
            terminalreporter.write_line(f"default mode: {name}: {self.tiled[name]} of {cases} cases ran tiles")
        terminalreporter.write_line(f"default mode: {self.tiled.total()} of {self.cases.total()} cases ran tiles")
        for name in self.too_few:
            terminalreporter.write_line(
                f"FAILED {name}: tiles run in fewer than half of its cases in the default mode; give them larger arrays "
                f"(`sized`), or mark what no size brings into tiles `one_mode`. No tiles ran in {', '.join(self.untiled[name])}"
            )
