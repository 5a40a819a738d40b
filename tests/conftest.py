"""Set before JAX is imported: two CPU devices, so that sharding is real, and Keras on JAX; a cache directory of our own.

What XLA would do as fast is tiled all the same, so that small functions test kernels. The fixture `choosing` turns that off.

XLA computes what to compare with, mostly once for each shape, so its code is not optimised: compiling takes longer than running.

ASPEN_TEST_MODE=default does neither (`modes.py`); `test_default_mode.py` runs files so.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

# A shell's job in the background ignores Ctrl-C, and so would all that it starts: tests that interrupt themselves would not end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Last, so that `benchmarks` is found and the checkout does not shadow the installed package, which has the extension module.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from tests.content import begin, content, seed_of
from tests.modes import IS_DEFAULT, DefaultMode

_FLAGS = "--xla_force_host_platform_device_count=2"
if not IS_DEFAULT:
    _FLAGS += " --xla_backend_optimization_level=0"
    os.environ["ASPEN_DISABLE_PASSES"] = "choice"
os.environ["XLA_FLAGS"] = f"{_FLAGS} {os.environ.get('XLA_FLAGS', '')}"  # what is set wins
os.environ["KERAS_BACKEND"] = "jax"
os.environ["ASPEN_TIME_CHOICES"] = "off"  # what was timed differs from run to run
_cache = tempfile.TemporaryDirectory()  # removed at exit
os.environ["ASPEN_CACHE_DIR"] = _cache.name

os.environ["ASPEN_TEST_CONTENT"] = content()  # one for all processes, though somebody edits a file


@pytest.hookimpl(tryfirst=True)  # before the plugin of Hypothesis reads it
def pytest_configure(config):
    """Examples of Hypothesis follow from the content too."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(seed_of("hypothesis"))
    if IS_DEFAULT:
        config.pluginmanager.register(DefaultMode())


def pytest_terminal_summary(terminalreporter):
    """Prints what tests have to say though they passed."""
    for report in terminalreporter.stats.get("passed", []):
        for name, text in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(text)


def pytest_report_header():
    from tests.rotation import SWEEPS_ALL

    return f"content {content()}, {'all' if SWEEPS_ALL else 'a quarter'} of the sweeps"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """A test draws the same numbers whatever ran before it, and says how when it fails."""
    begin(item.nodeid)
    item.add_report_section("setup", "seed", f"ASPEN_TEST_CONTENT={content()} draws the same again")


# They build programs, or run other tests in one process: a minute or two each.
LONGEST = {"test_cpp.py", "test_default_mode.py", "test_gpu_check.py", "test_targets.py"}


def pytest_collection_modifyitems(config, items):
    """Leaves out what is swept by turns, and puts the longest first, so that no core waits."""
    from tests.rotation import left_out

    others = left_out(items)
    config.hook.pytest_deselected(items=list(others))
    items[:] = sorted((item for item in items if item not in others), key=lambda item: item.path.name not in LONGEST)


@pytest.fixture
def choosing(monkeypatch):
    """What XLA does as fast is left to it, as outside of tests."""
    monkeypatch.delenv("ASPEN_DISABLE_PASSES", raising=False)


@pytest.fixture(params=["forced", "default"])
def either_mode(request):
    """The mode of the tests, in which all is tiled, and that of users, by name."""
    if request.param == "default":
        request.getfixturevalue("choosing")
    return request.param


def _workers_as_before():
    """Results may differ in their last bits with the number of workers, and children of this process begin with the usual one."""
    from aspen_jax import runtime

    workers = runtime.num_workers()
    yield
    if runtime.num_workers() != workers:
        runtime.set_num_workers(workers)


# Of what a test changes, and of what fixtures of a module do.
workers_of_each_test = pytest.fixture(autouse=True)(_workers_as_before)
workers_of_each_module = pytest.fixture(autouse=True, scope="module")(_workers_as_before)


@pytest.fixture
def record(tmp_path, monkeypatch):
    """A file for a benchmark's figures; this process is left on its cores."""
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    return tmp_path / "figures.json"
