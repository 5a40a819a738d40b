"""Runs JAX's own tests through the decorator and compares them with the same tests undecorated.

    ASPEN_JAX_SOURCE=/path/to/jax python tools/jax_own_tests.py

The source is that of the installed version. Of it only tests/ is read. `--mode forced` tiles what tiles can compute, and
`--mode default` leaves to XLA what XLA does as fast, as users' programs do. Each test file runs in processes of its own:

1. undecorated;
2. decorated, at the places that jax_decorated.py names;
3. what fails, with `jax.jit` in place of the decorator; what passes then is a difference of ours;
4. the rest, decorated only where a test hands a function to `jax.jit` or to JAX's test utilities;
5. what fails, with `jax.jit` in place of the decorator there; what passes then is a difference of ours too.

A test that ends its process, or takes too long, has failed, and the rest goes on in a new process. What has run is kept in the
directory `--record` and does not run again. Both modes share what ran without the decorator. Exit status 1 says that a test
differs and jax_own_tests.toml gives no reason.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import tyro
from jax_decorated import (
    DONE_VARIABLE,
    MODE_VARIABLE,
    RECORD_VARIABLE,
    SHARE_VARIABLE,
    TILES_VARIABLE,
    WANTED_VARIABLE,
    Tiles,
    is_in_share,
)

SOURCE_VARIABLE = "ASPEN_JAX_SOURCE"
KNOWN_DIFFERENCES = Path(__file__).with_suffix(".toml")
FILES = (
    "lax_test",
    "lax_numpy_test",
    "lax_numpy_indexing_test",
    "lax_numpy_einsum_test",
    "lax_numpy_reducers_test",
    "lax_numpy_operators_test",
    "lax_numpy_ufuncs_test",
    "lax_numpy_vectorize_test",
    "lax_control_flow_test",
    "lax_autodiff_test",
    "lax_vmap_test",
    "lax_vmap_op_test",
    "lax_scipy_test",
    "lax_scipy_special_functions_test",
    "nn_test",
    "image_test",
    "custom_api_test",
    "api_test",
    "scipy_stats_test",
    "ode_test",
    "jet_test",
    "checkify_test",
    "random_test",
    "random_lax_test",
    "linalg_test",
    "fft_test",
    "pjit_test",
    "shard_map_test",
    "export_test",
    "sparse_test",
    "sparse_bcoo_bcsr_test",
    "sparsify_test",
    "shape_poly_test",
)
_LEAST_RATE = 0.995


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds, and how much is generated.

    Attributes:
        test: one test.
        cases: how many cases JAX generates of each test with parameters.
        share: the part of all tests that runs, chosen by their names.
    """

    test: float = 180.0
    cases: int = 4
    share: float = 1.0


@dataclasses.dataclass(frozen=True)
class Run:
    """The tests of one file in one mode.

    Attributes:
        file: the test file.
        mode: "plain", "aspen", "jit", "narrow" or "narrow_jit": the runs 1 to 5 above.
        record: a JSON object a line: a test that starts, or one that has ended.
        limits: how long and how many.
        tiles: "forced" or "default": what of a decorated function becomes tiles.
    """

    file: Path
    mode: str
    record: Path
    limits: Limits
    tiles: Tiles = "forced"

    def results(self) -> dict[str, dict[str, Any]]:
        """What was recorded of each test that has ended."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return {line["test"]: line for line in map(json.loads, lines) if "outcome" in line}

    def forget(self, tests: Sequence[str]) -> None:
        """Drop what was recorded of some tests."""
        kept = [json.dumps(line) for test, line in self.results().items() if test not in set(tests)]
        self.record.write_text("".join(f"{line}\n" for line in kept))

    def finish(self, wanted: Sequence[str] | None = None) -> None:
        """Run what has not run yet, of all tests or of those wanted."""
        while not (wanted is not None and self.results().keys() >= set(wanted)) and not self._run(wanted or ()):
            pass

    def _run(self, wanted: Sequence[str]) -> bool:
        """One process; whether it came to an end by itself."""
        with tempfile.TemporaryDirectory() as directory:
            environment = self._environment(Path(directory), wanted)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "jax_decorated", "-p", "no:cacheprovider", "--tb=short"]
            command += ["-c", os.devnull, "--rootdir", str(self.file.parent), "--noconftest", "--import-mode=importlib"]
            with self.record.with_suffix(".log").open("w") as log:
                # Not in the source's directory, which holds a package called jax.
                process = subprocess.Popen(
                    [*command, str(self.file)], env=environment, cwd=directory, stdout=log, stderr=log, start_new_session=True
                )
                is_late = self._wait(process)
        running = self._running()
        if running is None and is_late:
            raise TimeoutError(f"{self.file.name} hangs between its tests; see {self.record.with_suffix('.log')}")
        if running is None:
            return True
        outcome = "late" if is_late else "crashed"
        text = "" if is_late else f"exit status {process.returncode}"
        line = {"test": running, "outcome": outcome, "seconds": 0, "calls": 0, "text": text}
        with self.record.open("a") as file:
            print(json.dumps(line), file=file)
        return False

    def _environment(self, directory: Path, wanted: Sequence[str]) -> dict[str, str]:
        """The environment of one process; lists of tests go through files in the directory."""
        environment = {**os.environ, MODE_VARIABLE: self.mode, RECORD_VARIABLE: str(self.record), TILES_VARIABLE: self.tiles}
        for variable, tests in ((DONE_VARIABLE, self.results()), (WANTED_VARIABLE, wanted)):
            path = directory / variable
            path.write_text("\n".join(tests))
            environment[variable] = str(path)
        environment.pop("ASPEN_DISABLE_PASSES", None)
        if self.tiles == "forced":
            environment["ASPEN_DISABLE_PASSES"] = "choice"  # tiles run what XLA would do as fast
        environment[SHARE_VARIABLE] = str(self.limits.share)
        environment["JAX_PLATFORMS"] = "cpu"
        environment["JAX_NUM_GENERATED_CASES"] = str(self.limits.cases)
        environment["JAX_SKIP_SLOW_TESTS"] = "1"
        # XLA computes each shape once, so its code is not optimised: compiling takes longer than running.
        environment["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}"
        environment["ASPEN_CACHE_DIR"] = str(directory)
        # One test at a time, whatever options started us: the record's last line names the test that ends the process.
        environment["PYTEST_ADDOPTS"] = ""
        paths = (os.environ.get("PYTHONPATH"), str(KNOWN_DIFFERENCES.parent))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        return environment

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for a process; whether it had to be killed, because a test took too long."""
        size, since = -1, time.monotonic()
        while True:
            try:
                process.wait(timeout=0.5)
                return False
            except subprocess.TimeoutExpired:
                pass
            now = self.record.stat().st_size if self.record.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > self.limits.test:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True

    def _running(self) -> str | None:
        """The test that has started and not ended."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        last = json.loads(lines[-1]) if lines else {"outcome": None}
        return None if "outcome" in last else last["test"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """A test that passes undecorated and not decorated.

    Attributes:
        test: its name in the file.
        outcome: what became of it decorated.
        text: the end of what pytest said.
        reason: from the list of known differences; "" where it is in none.
    """

    test: str
    outcome: str
    text: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One file, undecorated and decorated.

    Attributes:
        file: the test file.
        passed: tests that pass undecorated.
        tiled: those of them in which a custom call of tiles was compiled.
        alike: those of them that fail decorated, and with `jax.jit` in place of the decorator too.
        differences: those of them that fail decorated, and pass so.
    """

    file: str
    passed: int
    tiled: int
    alike: tuple[str, ...]
    differences: tuple[Difference, ...]

    @property
    def rate(self) -> float:
        """Of the tests that pass undecorated, and not only there, the share that passes decorated."""
        counted = self.passed - len(self.alike)
        return 1 - len(self.differences) / counted if counted else 1.0


def known_differences() -> list[dict[str, str]]:
    """The tables of the list: `tests`, a pattern of names, and `reason`; `jax` where only some versions differ."""
    return tomllib.loads(KNOWN_DIFFERENCES.read_text()).get("difference", [])


def reason_of(test: str, known: Sequence[dict[str, str]]) -> str:
    """Why a test may differ; "" where it may not."""
    for entry in known:
        if fnmatch.fnmatchcase(test, entry["tests"]) and jax.__version__.startswith(entry.get("jax", "")):
            return entry["reason"]
    return ""


def compare(file: Path, record: Path, limits: Limits, *, tiles: Tiles = "forced", again: bool = False) -> Comparison:
    """Run what has not run of a file, and compare."""
    plain, jitted, narrow_jitted = (
        Run(file, mode, record / f"{file.stem}.{mode}.jsonl", limits) for mode in ("plain", "jit", "narrow_jit")
    )
    aspen, narrow = (Run(file, mode, record / f"{file.stem}.{mode}.{tiles}.jsonl", limits, tiles) for mode in ("aspen", "narrow"))
    plain.finish()
    ran = plain.results().items()
    passed = [test for test, line in ran if line["outcome"] == "passed" and is_in_share(test, limits.share)]
    if again:
        aspen.forget([test for test in passed if aspen.results().get(test, {}).get("outcome") != "passed"])
    aspen.finish()
    missing = {"outcome": "missing", "text": "it was not collected", "calls": 0}

    def failing(run: Run, tests: Sequence[str]) -> list[str]:
        results = run.results()
        return [test for test in tests if results.get(test, missing)["outcome"] != "passed"]

    def against(control: Run, tests: Sequence[str]) -> tuple[list[str], list[str]]:
        """Those of the tests that pass in the control, and those that fail there too."""
        if again:
            control.forget(tests)
        control.finish(tests)
        fail = [test for test in failing(control, tests) if test in control.results()]
        return [test for test in tests if test not in fail], fail

    known = known_differences()

    def differences(run: Run, tests: Sequence[str]) -> list[Difference]:
        lines = [(test, run.results().get(test, missing)) for test in tests]
        return [Difference(test, line["outcome"], line["text"], reason_of(test, known)) for test, line in lines]

    ours, rest = against(jitted, failing(aspen, passed))
    if again:
        narrow.forget(rest)
    narrow.finish(rest)
    ours_too, alike = against(narrow_jitted, failing(narrow, rest))
    differ = (*differences(aspen, ours), *differences(narrow, ours_too))
    tiled = sum(1 for test in passed if aspen.results().get(test, missing)["calls"])
    return Comparison(file.stem, len(passed), tiled, tuple(alike), differ)


def total(comparisons: Sequence[Comparison]) -> Comparison:
    """All files as one."""
    return Comparison(
        "all",
        sum(item.passed for item in comparisons),
        sum(item.tiled for item in comparisons),
        tuple(test for item in comparisons for test in item.alike),
        tuple(difference for item in comparisons for difference in item.differences),
    )


def table(comparisons: Sequence[Comparison]) -> str:
    """A Markdown table, one file a row."""
    lines = [
        "| file | pass undecorated | of those with tiles | pass decorated | fail so with jax.jit | differ | known | rate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for item in (*comparisons, total(comparisons)):
        alike, differ = len(item.alike), len(item.differences)
        known = sum(1 for difference in item.differences if difference.reason)
        cells = (item.file, item.passed, item.tiled, item.passed - alike - differ, alike, differ, known, f"{item.rate:.2%}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(
    files: tuple[str, ...] = FILES,
    record: Path = Path("build/jax_own_tests"),
    limits: Limits = Limits(),
    mode: Tiles = "forced",
    again: bool = False,
) -> int:
    """Run JAX's own tests through the decorator.

    Args:
        files: test files of jax/tests, without ".py".
        record: where results are kept, by the version of jax.
        limits: how long and how many.
        mode: "forced" tiles what tiles can compute; "default" leaves to XLA what XLA does as fast.
        again: run what failed decorated once more.

    Returns:
        0, or 1 where a test differs for no known reason, too many differ, or a file did not run, or 2 without JAX's source.
    """
    tests = Path(os.environ.get(SOURCE_VARIABLE, os.devnull), "tests")
    if not tests.is_dir():
        print(f"{SOURCE_VARIABLE} names no directory with JAX's tests; set it to a checkout of JAX's source", file=sys.stderr)
        return 2
    record = record.resolve() / jax.__version__
    record.mkdir(parents=True, exist_ok=True)
    comparisons = []
    for name in files:
        comparison = compare((tests / f"{name}.py").resolve(), record, limits, tiles=mode, again=again)
        comparisons.append(comparison)
        print(f"{name}: {comparison.passed} pass undecorated, {len(comparison.differences)} differ", file=sys.stderr, flush=True)
    print(table(comparisons))
    for comparison in comparisons:
        for difference in comparison.differences:
            reason = difference.reason or (difference.text.strip().splitlines() or [""])[-1]
            print(f"{'known' if difference.reason else 'NEW'}: {difference.test} {difference.outcome}: {reason}")
    unknown = [item for comparison in comparisons for item in comparison.differences if not item.reason]
    empty = [comparison.file for comparison in comparisons if not comparison.passed]
    for name in empty:
        print(f"NOT RUN: {name}: is the source that of jax {jax.__version__}? See {record / name}.plain.log")
    return 1 if unknown or empty or total(comparisons).rate < _LEAST_RATE else 0


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
