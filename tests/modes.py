"""The suite's two modes: `forced` tiles what tiles can compute, `default` is what users run.

    ASPEN_TEST_MODE=default pytest tests/test_transformations.py

In the default mode the chooser decides and XLA optimises its code. One case in two runs, chosen by the content of the checkout
(`rotation.py`). What is marked `one_mode` stays out. At the end each file says how many of its cases built tiles.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from unittest import mock

import pytest

from tests.rotation import share

IS_DEFAULT = os.environ.get("ASPEN_TEST_MODE") == "default"
TURNS = 2
_PROPERTY = "parts in tiles"


class DefaultMode:
    """A plugin of pytest for runs in the default mode."""

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
        """Counts the parts that became calls of the engine; those that the chooser left to XLA did not."""
        from aspen_jax.lowering.compile import Part

        call, called = Part.call, []

        def counted(part, *operands):
            called.append(part)
            return call(part, *operands)

        with mock.patch.object(Part, "call", counted):
            result = yield
        item.user_properties.append((_PROPERTY, len(called)))
        return result

    def pytest_terminal_summary(self, terminalreporter) -> None:
        cases, tiled = Counter(), Counter()
        for report in terminalreporter.stats.get("passed", []):
            name = report.nodeid.partition("::")[0].rpartition("/")[2]
            cases[name] += 1
            tiled[name] += dict(report.user_properties).get(_PROPERTY, 0) > 0
        for name in sorted(cases):
            terminalreporter.write_line(f"default mode: {name}: {tiled[name]} of {cases[name]} cases built tiles")
        terminalreporter.write_line(f"default mode: {tiled.total()} of {cases.total()} cases built tiles")
