"""What a JAX user tries on day one and no other file tries: processes, flags, leaks, threads, messages."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from aspen_jax import CUSTOM_CALL_TARGET, InputError, UnsupportedError, aspen
from tests.modes import sized

DISABLED = [export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)]


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def layer(params, x):
    return jnp.sin(x @ params["w"]) + params["b"]


ROWS, WIDTH = sized((3, 5), (1024, 64))
PARAMS = {"w": normal(0, WIDTH, WIDTH) * WIDTH**-0.5, "b": normal(1, WIDTH)}


def run_elsewhere(script: str, directory: Path, **environment: str) -> str:
    """Output of a fresh process."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        capture_output=True,
        text=True,
        cwd=directory,
        env=dict(os.environ, XLA_FLAGS="", **environment),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_exported_function_runs_in_a_process_that_only_imports_us(tmp_path):
    def fun(params, x):
        return jax.lax.fori_loop(0, 3, lambda _, x: layer(params, x), x).mean(0)

    x = normal(2, sized(70, ROWS), WIDTH)
    exported = export.export(jax.jit(aspen(fun)), disabled_checks=DISABLED)(PARAMS, x)
    want = jax.jit(fun)(PARAMS, x)
    np.testing.assert_allclose(exported.call(PARAMS, x), want, rtol=1e-5, atol=1e-5)
    (tmp_path / "function").write_bytes(exported.serialize())
    np.savez(tmp_path / "arrays", x=x, want=want, **PARAMS)
    run_elsewhere(
        """
import aspen_jax, jax, numpy
arrays = numpy.load("arrays.npz")
function = jax.export.deserialize(bytearray(open("function", "rb").read()))
got = function.call({"w": arrays["w"], "b": arrays["b"]}, arrays["x"])
numpy.testing.assert_allclose(got, arrays["want"], rtol=1e-5, atol=1e-5)
""".replace("import aspen_jax, jax,", "import aspen_jax, jax.export, jax,"),
        tmp_path,
    )


def test_an_exported_function_can_still_be_differentiated(tmp_path):
    x = normal(2, ROWS, WIDTH)
    exported = export.export(jax.jit(aspen(layer)), disabled_checks=DISABLED)(PARAMS, x)
    again = export.deserialize(bytearray(exported.serialize(vjp_order=1)))
    got = jax.grad(lambda params: again.call(params, x).mean())(PARAMS)
    want = jax.grad(lambda params: layer(params, x).mean())(PARAMS)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)


@pytest.mark.one_mode("a function of symbolic shapes is left to XLA")
def test_symbolic_shapes_are_left_to_xla_and_say_so():
    (batch,) = export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32)
    exported = export.export(jax.jit(aspen(layer)))(PARAMS, shape)
    assert CUSTOM_CALL_TARGET not in exported.mlir_module()
    for rows in (1, 4):
        np.testing.assert_allclose(
            exported.call(PARAMS, normal(3, rows, WIDTH)), layer(PARAMS, normal(3, rows, WIDTH)), rtol=1e-5
        )
    assert "symbolic shape" in str(aspen(layer).explain(PARAMS, shape))
    with pytest.raises(UnsupportedError, match=r"symbolic shape .*; take that out, or drop strict=True"):
        export.export(jax.jit(aspen(layer, strict=True)))(PARAMS, shape)


def test_the_persistent_compilation_cache_hits_in_a_second_process(tmp_path):
    script = f"""
import jax, jax.numpy as jnp
from aspen_jax import aspen
jax.config.update("jax_compilation_cache_dir", "cache")
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
def fun(w, x):
    return jax.lax.lgamma(jnp.sin(x @ w) * 3)
print(float(jax.jit(aspen(fun))(jnp.eye({WIDTH}), jnp.ones(({ROWS}, {WIDTH}))).sum()), file=__import__("sys").stderr)
print(sum(name.endswith("/cache_hits") for name in events), sum(name.endswith("/cache_misses") for name in events))
"""
    _, misses = map(int, run_elsewhere(script, tmp_path).split())
    assert misses > 0
    hits, misses = map(int, run_elsewhere(script, tmp_path).split())
    assert hits > 0
    assert misses == 0


@pytest.mark.one_mode("runs nothing")
def test_a_thousand_traces_keep_memory_and_files_steady():
    """Functions that are dropped take their traces, graphs and plans with them."""

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), PARAMS)

    def trace(times: int) -> None:
        for _ in range(times):
            aspen(lambda params, x: layer(params, x)).graph(params, x)
        gc.collect()

    trace(100)
    open_files, threads, before = files(), threading.active_count(), resident()
    trace(900)
    assert files() <= open_files
    assert threading.active_count() <= threads
    assert resident() - before < 16 << 20


def test_calls_that_end_in_errors_leave_nothing_behind():
    decorated = aspen(layer)
    for _ in range(20):
        with pytest.raises(TypeError, match="dot_general"):
            decorated(PARAMS, normal(0, 3, 4))
    x = normal(0, ROWS, WIDTH)
    np.testing.assert_allclose(decorated(PARAMS, x), layer(PARAMS, x), rtol=1e-5, atol=1e-5)


def test_the_keyboard_interrupts_at_the_end_of_a_call_at_the_latest():
    decorated = aspen(lambda x: jax.lax.fori_loop(0, 2000, lambda _, x: jnp.sin(x @ x * 1e-3), x))
    x = normal(0, 128, 128)
    decorated(x).block_until_ready()

    def is_interrupted():
        timer = threading.Timer(0.05, lambda: signal.raise_signal(signal.SIGINT))
        timer.start()
        end = time.monotonic() + 10
        try:
            while time.monotonic() < end:
                decorated(x).block_until_ready()
        except KeyboardInterrupt:
            return True
        finally:
            timer.join()
        return False

    # A shell without job control lets what it starts in the background ignore the signal, and Python with it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # One was lost once, in a loaded run of all tests, and why is not known. Python itself drops one that falls into a callback of
    # its garbage collector. A call that swallows interrupts loses all three.
    try:
        assert any(is_interrupted() for _ in range(3))
    finally:
        signal.signal(signal.SIGINT, before)
    assert np.isfinite(decorated(x)).all()


def test_deleted_and_donated_arguments_are_refused_by_name():
    x = normal(0, ROWS, WIDTH)
    params = dict(PARAMS, b=normal(1, WIDTH))
    decorated = aspen(layer)
    decorated(params, x)
    params["b"].delete()
    with pytest.raises(InputError, match=r"^layer: argument params\['b'\] is an array that has been deleted or donated .*; pass"):
        decorated(params, x)
    y = normal(0, ROWS, WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a donation that cannot be used
        jax.jit(aspen(layer), donate_argnums=1)(PARAMS, y)
    with pytest.raises(InputError, match=r"^layer: argument x is an array that has been deleted or donated"):
        aspen(layer)(PARAMS, y)


def test_arguments_on_different_devices_are_refused_by_name():
    first, second = jax.devices()[:2]
    params = jax.device_put(PARAMS, first)
    with pytest.raises(
        InputError, match=r"^layer: arguments are on different devices: params\['b'\] is on .*0.*; x is on .*1.*; move"
    ):
        aspen(layer)(params, jax.device_put(normal(0, ROWS, WIDTH), second))
    on_second = aspen(layer)(jax.device_put(PARAMS, second), jax.device_put(normal(0, ROWS, WIDTH), second))
    assert on_second.devices() == {second}


def test_strict_promotion_refuses_as_without_us():
    mixed = normal(0, ROWS, WIDTH), jnp.ones(WIDTH, jnp.int32)
    with jax.numpy_dtype_promotion("strict"):
        for add in (jax.jit(jnp.add), aspen(jnp.add)):
            with pytest.raises((TypeError, ValueError), match=r"dtypes .*strict"):
                add(*mixed)
        x = normal(0, ROWS, WIDTH)
        np.testing.assert_allclose(aspen(layer)(PARAMS, x), jax.jit(layer)(PARAMS, x), rtol=1e-5, atol=1e-5)


def test_a_tracer_that_leaks_is_jaxs_error():
    leaked = []

    def fun(x):
        leaked.append(x)
        return jnp.sin(x) * 2

    aspen(fun)(normal(0, ROWS, WIDTH))
    with pytest.raises(jax.errors.UnexpectedTracerError, match="fun"):
        aspen(jnp.sin)(leaked[0])
    with pytest.raises(jax.errors.UnexpectedTracerError):
        jnp.sin(leaked[0])


@pytest.mark.one_mode("asserts that shapes are tiled which XLA does as fast")
def test_named_scopes_reach_the_metadata_of_the_custom_call():
    def fun(x):
        with jax.named_scope("attic"):
            x = jnp.tanh(x @ x)
        with jax.named_scope("cellar"):
            return x @ x

    compiled = jax.jit(aspen(fun)).lower(normal(0, 5, 5)).compile().as_text() or ""
    (line,) = [line for line in compiled.splitlines() if f'custom_call_target="{CUSTOM_CALL_TARGET}"' in line]
    assert "/attic+cellar/" in line
    names = [op.name for op in aspen(fun).explain(normal(0, 5, 5)).parts[0].ops]
    assert names[0].startswith("attic/dot_general")
    assert any(name.startswith("cellar/dot_general") for name in names)
