"""The script that runs JAX's own tests: what differs decorated is found, whatever way it fails."""

import importlib.util
import os
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "jax_own_tests.py"
SAMPLE = """
    import os

    import jax
    import jax.export
    import jax.numpy as jnp
    import numpy as np
    from jax._src import test_util as jtu
    from jax.test_util import check_grads

    np_sin = jnp.sin
    mode = os.environ["ASPEN_JAX_TESTS_MODE"]
    decorated = mode == "aspen"


    def has_call(fun, *args):
        return "aspen_call" in str(jax.make_jaxpr(fun)(*args))


    class SampleTest(jtu.JaxTestCase):
        def test_jit(self):
            self.assertEqual(has_call(jax.jit(lambda x: x + 1), 1.0), decorated)

        def test_jit_with_options(self):
            add = jax.jit(static_argnums=0)(lambda n, x: sum([x] * n))
            self.assertEqual(add(3, 2.0), 6)
            self.assertEqual(add.__wrapped__(3, 2.0), 6)

        def test_export(self):
            exported = jax.export.export(jax.jit(lambda x: jnp.sin(x) @ x))(jnp.ones((3, 3)))
            self.assertEqual("aspen_run" in exported.mlir_module(), decorated)
            (size,) = jax.export.symbolic_shape("size")
            counted = jax.jit(lambda x: x + jnp.arange(x.shape[0], dtype=x.dtype))
            jax.export.export(counted)(jax.ShapeDtypeStruct((size,), np.float32))

        def test_operations(self):
            self._CompileAndCheck(jnp.sin, lambda: [jnp.ones(3)])
            self._CheckAgainstNumpy(abs, jnp.abs, lambda: [-jnp.ones(3)])
            self._CheckAgainstNumpy(np.sort, lambda x: jnp.array(sorted(x.tolist())), lambda: [jnp.ones(3)])
            check_grads(jnp.sin, [1.0], 1)

        def test_fails_undecorated(self):
            self.assertTrue(decorated)

        def test_differs(self):
            self.assertEqual(1 + decorated, 1)

        def test_differs_alike(self):
            self.assertEqual(mode, "plain")

        def test_differs_where_it_calls_jax(self):
            self.assertIs(jnp.sin, np_sin)

        def test_differs_where_it_calls_jit(self):
            self.assertNotIn(mode, ("aspen", "jit", "narrow"))

        def test_dies(self):
            if decorated:
                os._exit(3)

        def test_hangs(self):
            while decorated:
                pass

        def test_skipped(self):
            self.skipTest("undecorated too")
"""


@pytest.fixture
def script(monkeypatch):
    """The script as a module: as a program it has its own directory on the path."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("jax_own_tests", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "jax_own_tests", module)
    spec.loader.exec_module(module)
    return module


def test_each_way_to_differ_is_found_and_ends_nothing(script, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PYTEST_ADDOPTS", "--numprocesses 2")
    file = tmp_path / "tests" / "sample_test.py"
    file.parent.mkdir()
    file.write_text(textwrap.dedent(SAMPLE))
    known = tmp_path / "known.toml"
    known.write_text('[[difference]]\ntests = "*::test_differs"\nreason = "counts"\n')
    monkeypatch.setattr(script, "KNOWN_DIFFERENCES", known)
    monkeypatch.setenv("ASPEN_JAX_SOURCE", str(tmp_path))
    found = script.compare(file, tmp_path, script.Limits(test=15), again=False)
    assert found.passed == 10
    assert [name.rpartition("::")[2] for name in found.alike] == ["test_differs_alike"]
    outcomes = {item.test.rpartition("::")[2]: (item.outcome, item.reason) for item in found.differences}
    assert outcomes == {
        "test_differs": ("failed", "counts"),
        "test_differs_where_it_calls_jit": ("failed", ""),
        "test_dies": ("crashed", ""),
        "test_hangs": ("late", ""),
    }
    assert found.tiled == 3
    assert found.rate == pytest.approx(5 / 9)
    assert "| sample_test | 10 | 3 | 5 | 1 | 4 | 1 | 55.56% |" in script.table([found])
    # A second run takes all of it from the record.
    monkeypatch.setattr(script.Run, "finish", lambda *_: None)
    assert script.compare(file, tmp_path, script.Limits(), again=False) == found


def test_only_the_forced_mode_switches_the_choice_off(script, tmp_path, monkeypatch):
    monkeypatch.setenv("ASPEN_DISABLE_PASSES", "choice")
    runs = {
        tiles: script.Run(tmp_path / "a_test.py", "aspen", tmp_path / "record", script.Limits(), tiles)
        for tiles in ("forced", "default")
    }
    environments = {tiles: run._environment(tmp_path, ()) for tiles, run in runs.items()}
    assert environments["forced"]["ASPEN_DISABLE_PASSES"] == "choice"
    assert "ASPEN_DISABLE_PASSES" not in environments["default"]


def test_the_status_says_whether_a_test_differs(script, tmp_path, monkeypatch, capsys):
    (tmp_path / "tests").mkdir()
    monkeypatch.setenv("ASPEN_JAX_SOURCE", str(tmp_path))
    known = script.Difference("a_test.py::test_known", "failed", "", "counts")
    new = script.Difference("a_test.py::test_new", "failed", "E   1 != 2", "")
    for passed, differences, status in ((500, (known,), 0), (100, (known,), 1), (500, (new,), 1), (0, (), 1)):
        found = script.Comparison("a_test", passed, 1, (), differences)
        monkeypatch.setattr(script, "compare", lambda *_, found=found, **__: found)
        assert script.main(("a_test",), tmp_path / "record") == status
    printed = capsys.readouterr().out
    assert "NEW: a_test.py::test_new failed: E   1 != 2" in printed
    assert "known: a_test.py::test_known failed: counts" in printed
    assert "NOT RUN: a_test" in printed


def test_without_the_source_the_status_is_2(script, monkeypatch, capsys):
    monkeypatch.delenv("ASPEN_JAX_SOURCE", raising=False)
    assert script.main() == 2
    assert "ASPEN_JAX_SOURCE" in capsys.readouterr().err
