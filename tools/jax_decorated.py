"""A pytest plugin for JAX's own tests: what they compile is decorated. `jax_own_tests.py` starts it.

A function is decorated where JAX's test files hand one over or call one:

- to `jax.jit`, which becomes `jax.jit(aspen(f), ...)` with the same options, and to `_CompileAndCheck`, which calls that;
- to `_CheckAgainstNumpy`, `check_grads` and `_CheckBatching`;
- to `jax.grad`, `jax.vmap` and the like;
- a function of `jax.numpy`, `jax.lax` and the like, called outside of `jax.jit`: `jnp.sort(x)`.

What `jax.jit` cannot trace stays as it is at the last three places. `jax.export.export` allows the engine's custom call.
JAX's own code is left alone.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from jax._src import api, core, public_test_util
from jax._src import test_util as jtu
from jax.interpreters import partial_eval as pe

# Set by jax_own_tests.py, which says what the modes are. The lists are files with one test a line.
MODE_VARIABLE = "ASPEN_JAX_TESTS_MODE"
RECORD_VARIABLE = "ASPEN_JAX_TESTS_RECORD"
DONE_VARIABLE = "ASPEN_JAX_TESTS_DONE"
WANTED_VARIABLE = "ASPEN_JAX_TESTS_WANTED"
SHARE_VARIABLE = "ASPEN_JAX_TESTS_SHARE"
TILES_VARIABLE = "ASPEN_JAX_TESTS_TILES"

Tiles = Literal["forced", "default"]

Function = Callable[..., Any]

# Modules whose functions are decorated where a test file calls them, by the name that it gave the module.
_MODULES = (
    "jax.numpy",
    "jax.lax",
    "jax.nn",
    "jax.image",
    "jax.scipy",
    "jax.scipy.special",
    "jax.scipy.linalg",
    "jax.scipy.signal",
)
_TRANSFORMATIONS = ("grad", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "value_and_grad", "vjp", "vmap")

_jit = jax.jit
_FUNCTIONS = (types.FunctionType, type(_jit(abs)), jax.custom_jvp, jnp.ufunc)
_TRACED = (jax.Array, np.ndarray, np.generic, int, float, complex)
_calls = 0  # custom calls of tiles that were compiled so far


def pytest_configure(config: pytest.Config) -> None:
    mode = os.environ[MODE_VARIABLE]
    if mode != "plain":
        late = _Late(_run_jitted if mode in ("jit", "narrow_jit") else _run_decorated(_aspen()))
        _decorate_checks(late)
        if mode in ("aspen", "jit"):
            config.pluginmanager.register(_Calls(late))
            _decorate_transformations(late, config.rootpath)
        if mode in ("aspen", "narrow"):
            _decorate_jit(_aspen(), config.rootpath)
            _allow_export(config.rootpath)
    config.pluginmanager.register(_Recorder(Path(os.environ[RECORD_VARIABLE])))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = set(_lines(DONE_VARIABLE))
    wanted = set(_lines(WANTED_VARIABLE))
    share = float(os.environ[SHARE_VARIABLE])

    def is_kept(test: str) -> bool:
        return test not in done and (test in wanted if wanted else is_in_share(test, share))

    kept = [item for item in items if is_kept(item.nodeid)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def is_in_share(test: str, share: float) -> bool:
    """Whether a test belongs to a part of all tests that is chosen by their names."""
    return zlib.crc32(test.encode()) < share * 2**32


def _lines(variable: str) -> Sequence[str]:
    return Path(os.environ[variable]).read_text().splitlines() if variable in os.environ else ()


@functools.cache
def _aspen() -> Function:
    """The decorator. Forced, it leaves nothing to XLA for its size: the arrays of JAX's tests are small."""
    from aspen_jax import aspen, runtime
    from aspen_jax.cost import equations as cost

    if os.environ[TILES_VARIABLE] == "forced":
        assert hasattr(cost, "_LEAST_WORK")
        setattr(cost, "_LEAST_WORK", 1)  # noqa: B010
    engine_call = runtime.engine_call

    @functools.wraps(engine_call)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _calls
        _calls += 1
        return engine_call(*args, **kwargs)

    setattr(runtime, "engine_call", counted)  # noqa: B010
    return aspen


def _run_decorated(decorate: Function) -> Function:
    known = functools.cache(decorate)

    def run(fun: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_of_jax = getattr(fun, "__module__", "").startswith("jax.")  # others may close over tracers
        return (known if is_of_jax else decorate)(fun)(*args, **kwargs)

    return run


def _run_jitted(fun: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    fixed, traced = _split(fun, args, kwargs)
    return _jit(fixed)(traced)


def _decorate_jit(decorate: Function, tests: Path) -> None:
    def decorated(*args: Any, **options: Any) -> Any:
        if not args:
            return functools.partial(decorated, **options)
        if not callable(args[0]) or inspect.isgeneratorfunction(args[0]):
            return _jit(*args, **options)  # refuses it
        return _jit(decorate(args[0]), *args[1:], **options)

    jit = _for_tests(_jit, decorated, tests)

    class Api:
        """`jax._src.api` as JAX's test utilities see it."""

        def __getattr__(self, name: str) -> Any:
            return jit if name == "jit" else getattr(api, name)

    jax.jit = jit
    setattr(jtu, "api", Api())  # noqa: B010


def _allow_export(tests: Path) -> None:
    """What test files export may call the engine, as a user says who exports a decorated function."""
    from aspen_jax.runtime import CUSTOM_CALL_TARGET

    export = jax.export.export
    engine = jax.export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)

    def allowed(*args: Any, disabled_checks: Sequence[Any] = (), **options: Any) -> Any:
        return export(*args, disabled_checks=(*disabled_checks, engine), **options)

    jax.export.export = _for_tests(export, allowed, tests)


def _decorate_transformations(late: Function, tests: Path) -> None:
    """Decorates what test files hand to `jax.grad` and the like."""

    def decorated(transform: Function, fun: Any, *args: Any, **options: Any) -> Any:
        return transform(late(fun) if callable(fun) else fun, *args, **options)

    for name in _TRANSFORMATIONS:
        transform = getattr(jax, name)
        setattr(jax, name, _for_tests(transform, functools.partial(decorated, transform), tests))


def _for_tests(original: Function, replacement: Function, tests: Path) -> Function:
    """What test files and JAX's test utilities call is the replacement, what everybody else calls the original."""
    files = (f"{tests}{os.sep}", inspect.getfile(jtu))

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_called_by_test = sys._getframe(1).f_code.co_filename.startswith(files)
        return (replacement if is_called_by_test else original)(*args, **kwargs)

    return call


def _decorate_checks(late: Function) -> None:
    """Decorates what tests hand to JAX's test utilities."""
    against_numpy = jtu.JaxTestCase._CheckAgainstNumpy

    @functools.wraps(against_numpy)
    def check_against_numpy(self: Any, reference: Function, fun: Function, *args: Any, **kwargs: Any) -> None:
        against_numpy(self, reference, late(fun), *args, **kwargs)

    setattr(jtu.JaxTestCase, "_CheckAgainstNumpy", check_against_numpy)  # noqa: B010
    grads = public_test_util.check_grads

    @functools.wraps(grads)
    def check_grads(fun: Function, *args: Any, **kwargs: Any) -> None:
        grads(late(fun), *args, **kwargs)

    for module in (jax.test_util, public_test_util, jtu):
        setattr(module, "check_grads", check_grads)  # noqa: B010


class _Late:
    """Makes functions that are decorated when they are called, if `jax.jit` can trace them."""

    def __init__(self, run: Callable[[Function, tuple[Any, ...], dict[str, Any]], Any]):
        self._run = run

    def __call__(self, fun: Function) -> Function:
        @functools.wraps(fun, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _is_traceable(fun, args, kwargs):
                return fun(*args, **kwargs)
            return self._run(fun, args, kwargs)

        return call


def _is_traceable(fun: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the arrays and numbers among the arguments may be tracers, and something is computed of them."""
    fixed, traced = _split(fun, args, kwargs)
    try:
        hash(fixed.args)
        return bool(jax.make_jaxpr(fixed)(traced).eqns)
    except Exception:  # whatever it is, jax.jit would raise it too
        return False


def _split(fun: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[functools.partial[Any], list[Any]]:
    """The function with all arguments given that are no arrays and no numbers, and those that are."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    is_traced = [(isinstance(leaf, _TRACED) and not isinstance(leaf, bool)) or core.is_symbolic_dim(leaf) for leaf in leaves]
    static = tuple(leaf for leaf, traced in zip(leaves, is_traced, strict=True) if not traced)
    return functools.partial(_joined, fun, tree, tuple(is_traced), static), list(compress(leaves, is_traced))


def _joined(fun: Function, tree: Any, is_traced: Sequence[bool], static: Sequence[Any], traced: Sequence[Any]) -> Any:
    parts = iter(static), iter(traced)
    args, kwargs = jax.tree.unflatten(tree, [next(parts[which]) for which in is_traced])
    return fun(*args, **kwargs)


class _Calls:
    """Decorates what test files call, once they are collected."""

    def __init__(self, late: Function):
        self._late = late
        self._functions: dict[Any, Function] = {}

    def pytest_itemcollected(self, item: Any) -> None:
        for owner in getattr(item.cls, "__mro__", ()):
            batching = vars(owner).get("_CheckBatching")
            if batching is not None and not hasattr(batching, "__wrapped__"):
                setattr(owner, "_CheckBatching", self._check_batching(batching))  # noqa: B010
        for name, value in vars(item.module).items():
            if isinstance(value, types.ModuleType) and value.__name__ in _MODULES:
                vars(item.module)[name] = _Module(value, self)

    def _check_batching(self, batching: Function) -> Function:
        @functools.wraps(batching)
        def check(case: Any, fun: Function, *args: Any, **kwargs: Any) -> None:
            batching(case, self._late(fun), *args, **kwargs)

        return check

    def function(self, fun: Function) -> Function:
        """A function of a module of JAX. It is decorated outside of `jax.jit`, where XLA would run op by op."""
        if fun not in self._functions:
            late = self._late(fun)

            @functools.wraps(fun, updated=())
            def call(*args: Any, **kwargs: Any) -> Any:
                is_staged = any(isinstance(leaf, pe.DynamicJaxprTracer) for leaf in jax.tree.leaves((args, kwargs)))
                return (fun if is_staged else late)(*args, **kwargs)

            self._functions[fun] = call
        return self._functions[fun]


class _Module:
    """A module of JAX as a test file sees it."""

    def __init__(self, module: types.ModuleType, calls: _Calls):
        vars(self).update(_module=module, _calls=calls)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return self._calls.function(value) if isinstance(value, _FUNCTIONS) else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


class _Recorder:
    """Writes a line of JSON when a test starts, and another when it has ended."""

    def __init__(self, path: Path):
        self._file = path.open("a")

    def _write(self, **line: Any) -> None:
        print(json.dumps(line), file=self._file, flush=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._reports: list[pytest.TestReport] = []
        before, start = _calls, time.monotonic()
        self._write(test=item.nodeid)
        result = yield
        failed = [report for report in self._reports if report.failed]
        if failed:
            outcome, text = "failed", failed[0].longreprtext
        else:
            outcome, text = ("skipped" if any(report.skipped for report in self._reports) else "passed"), ""
        seconds = round(time.monotonic() - start, 2)
        self._write(test=item.nodeid, outcome=outcome, seconds=seconds, calls=_calls - before, text=text[-4000:])
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)
