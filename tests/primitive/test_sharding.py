"""Batches that are spread over devices and processes run where they lie: nothing is gathered."""

from __future__ import annotations

import itertools
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from aspen_jax import CUSTOM_CALL_TARGET, UnsupportedError, aspen
from aspen_jax.primitive.sharding import digits

SHARDED = Path(__file__).parent / "sharded_processes.py"
COLLECTIVES = Path(__file__).parent / "collective_processes.py"


def start(directory: Path, flags: str, *arguments: str, script: Path = SHARDED, mode: str = "choice") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        env=dict(os.environ, XLA_FLAGS=flags, JAX_PLATFORMS="cpu", ASPEN_DISABLE_PASSES=mode),
    )


def finish(process: subprocess.Popen[str]) -> None:
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert output.strip().endswith("all is well")


@pytest.mark.one_mode("its processes set their own mode")
def test_four_devices(tmp_path):
    finish(start(tmp_path, "--xla_force_host_platform_device_count=4"))


@pytest.mark.one_mode("its processes set their own mode")
def test_four_devices_by_default(tmp_path):
    finish(start(tmp_path, "--xla_force_host_platform_device_count=4", "replicated", mode=""))


@pytest.mark.one_mode("its processes set their own mode")
def test_two_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [start(tmp_path, "", address, number) for number in ("0", "1")]
    for process in processes:
        finish(process)


@pytest.mark.parametrize("mode", ["", "choice"], ids=["default", "forced"])
@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.one_mode("its processes set their own mode")
def test_collectives_of_more_devices_than_cores_end(devices, mode, tmp_path):
    """XLA goes on from our call to a collective, which waits for the other devices' calls."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    finish(start(tmp_path, flags, "20", script=COLLECTIVES, mode=mode))


@pytest.mark.one_mode("a function with such sums is left to XLA")
@pytest.mark.parametrize("mode", ["forced", "default"])
def test_sums_that_devices_have_not_added_up_yet_are_returned(mode, request):
    if mode == "default":
        request.getfixturevalue("choosing")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))

    def product(a, b):
        return jnp.einsum("ij,jk->ik", jnp.sin(a), b, out_sharding=P(None, None, unreduced={"x"}))

    with jax.set_mesh(mesh):
        a = jax.device_put(np.arange(512 * 256, dtype=np.float32).reshape(512, 256), P(None, "x"))
        b = jax.device_put(np.ones((256, 128), np.float32), P("x", None))
        ours, theirs = aspen(product)(a, b), jax.jit(product)(a, b)
        assert jax.typeof(ours) == jax.typeof(theirs)
        ours, theirs = (np.asarray(jax.sharding.reshard(item, P())) for item in (ours, theirs))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.one_mode("a function with such types is left to XLA")
@pytest.mark.parametrize("mode", ["forced", "default"])
def test_sums_that_devices_add_up_later_may_come_in_between(mode, request):
    """Their types are what JAX goes by behind a call: in shard_map, in a constraint, and in gradients."""
    if mode == "default":
        request.getfixturevalue("choosing")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    x, y = (np.random.default_rng(seed).normal(size=(256, 256)).astype(np.float32) for seed in (0, 1))

    @jax.shard_map(in_specs=P(), out_specs=P(reduced={"x"}))
    def reduced(x):
        return lax.pcast(x, "x", to="reduced")

    @jax.shard_map(in_specs=P(unreduced={"x"}), out_specs=P())
    def added_up(z):
        return lax.psum(z, "x")

    @jax.shard_map(in_specs=(P("x", None), P(None, None, reduced={"x"})), out_specs=P("x", None))
    def product(x, y):
        return jnp.tanh(x @ y.T)

    def between(x, y):
        return added_up(jnp.einsum("ij,jk->ik", jnp.sin(x), y, out_sharding=P(unreduced={"x"}))).sum()

    with jax.set_mesh(mesh):
        columns, rows = jax.device_put(x, P(None, "x")), jax.device_put(y, P("x", None))
        on_all = jax.device_put(y, P(None, None, reduced={"x"}))
        for fun, args in (
            (lambda x, y: jnp.einsum("ij,jk->ik", reduced(x), jnp.sin(y)).sum(), (jax.device_put(x, P()), columns)),
            (between, (columns, rows)),
            (lambda x, y: product(x, y).sum(), (rows, on_all)),
        ):
            for transformed in (lambda fun: fun, lambda fun: jax.grad(fun, argnums=(0, 1))):
                want = jax.jit(transformed(fun))(*args)
                for got in (aspen(transformed(fun))(*args), jax.jit(transformed(aspen(fun)))(*args)):
                    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
                    got, expected = (
                        jax.tree.map(lambda item: np.asarray(jax.sharding.reshard(item, P())), item) for item in (got, want)
                    )
                    jax.tree.map(
                        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max()), got, expected
                    )


def _of_xla(x):
    """No tile computes it."""
    return lax.bessel_i0e(jnp.abs(x) + 1)


def _itself(fun):
    return fun


def _auto(fun, axes=None):
    return jax.sharding.auto_axes(fun, axes=axes, out_sharding=P("x"))


def _in_shard_map(fun):
    return jax.shard_map(fun, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})


def _updated(rows):
    """A constant, some rows of which are others; tiles hold no complex numbers."""
    ones = jnp.ones((256, 8), np.complex64, out_sharding=P("x"))
    return lax.dynamic_update_slice(ones, lax.complex(rows, rows), (3, 0)).real


def _thrice(fun, x):
    return lax.scan(lambda carry, _: (fun(carry), None), x, None, length=3)[0]


# Where tiles and what stays with XLA meet, and where the kinds of axes change.
OF_EXPLICIT_AXES = {
    "beside tiles": lambda x: _of_xla(jnp.tanh(x)) * 2,
    "inside auto axes": lambda x: _auto(lambda x: _of_xla(x @ x))(jnp.tanh(x)),
    "inside one auto axis": lambda x: _auto(lambda x: _of_xla(x), "y")(jnp.tanh(x) * 2),
    "a loop inside auto axes": lambda x: _auto(lambda x: _thrice(lambda c: _of_xla(jnp.tanh(c @ x)), x))(jnp.sin(x)),
    "auto axes inside a loop": lambda x: _thrice(lambda c: _auto(_of_xla)(jnp.tanh(c)), jnp.sin(x)),
    "a choice inside auto axes": lambda x: _auto(
        lambda x: lax.cond(x.sum() > 0, lambda v: _of_xla(v) + jnp.tanh(v), lambda v: jnp.sin(v) * 2, x)
    )(jnp.sin(x)),
    "manual along one axis": lambda x: _in_shard_map(lambda v: _of_xla(jnp.tanh(v)) * 2)(jnp.sin(x)),
    "auto axes inside shard_map": lambda x: _in_shard_map(
        lambda v: jax.sharding.auto_axes(lambda u: _of_xla(jnp.tanh(u)) * 2, axes="y", out_sharding=P())(jnp.sin(v))
    )(jnp.sin(x)),
    "auto axes first in shard_map": lambda x: _in_shard_map(
        lambda v: jax.sharding.auto_axes(lambda u: _of_xla(jnp.tanh(u)) * 2, axes="y", out_sharding=P())(v) * 3
    )(x),
    "repeats in shard_map": lambda x: _in_shard_map(lambda v: jnp.repeat(v, 2, axis=1))(jnp.sin(x)),
    "an update of a constant": lambda x: _updated(jnp.tanh(x)[:128, :8]).sum() * jnp.sin(x),
    "random numbers": lambda x: jax.random.gamma(jax.random.key(3), jnp.abs(jnp.tanh(x)) + 1, out_sharding=P("x")),
}


@pytest.mark.one_mode("both modes are its cases")
@pytest.mark.parametrize("mode", ["forced", "default"])
@pytest.mark.parametrize("name", OF_EXPLICIT_AXES)
def test_what_stays_with_xla_gets_the_types_that_it_was_traced_with(name, mode, request):
    if mode == "default":
        request.getfixturevalue("choosing")
    mesh = jax.make_mesh((2, 1), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    x = np.random.default_rng(3).normal(size=(256, 256)).astype(np.float32)
    function = OF_EXPLICIT_AXES[name]
    with jax.set_mesh(mesh):
        given = jax.device_put(x, P("x"))
        for transform in (_itself, lambda fun: jax.grad(lambda x: fun(x).sum())):
            if transform is not _itself and name in ("auto axes inside shard_map", "auto axes first in shard_map"):
                continue  # JAX has no gradient of it
            want, got = jax.jit(transform(function))(given), jax.jit(transform(aspen(function)))(given)
            assert jax.typeof(got) == jax.typeof(want)
            np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-3, atol=1e-3 * np.abs(want).max())
        assert mode == "default" or CUSTOM_CALL_TARGET in (jax.jit(aspen(function)).lower(given).compile().as_text() or "")


@pytest.mark.one_mode("both modes are its cases")
@pytest.mark.parametrize("mode", ["forced", "default"])
def test_results_lie_where_their_types_say(mode, request):
    """Where some axes are automatic JAX does not say so to XLA once more, outside of the call."""
    if mode == "default":
        request.getfixturevalue("choosing")
    mesh = jax.make_mesh((1, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Explicit))

    def numbered():
        return jnp.tanh(lax.broadcasted_iota(np.float32, (256, 256), 1, out_sharding=P("y", None)))

    with jax.set_mesh(mesh):
        got, want = jax.jit(aspen(numbered))(), jax.jit(numbered)()
        assert got.sharding == want.sharding == NamedSharding(mesh, P("y", None))
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5)


@pytest.mark.one_mode("both modes are its cases")
@pytest.mark.parametrize("mode", ["forced", "default"])
def test_jits_inside_say_how_devices_share_the_work(mode, request):
    if mode == "default":
        request.getfixturevalue("choosing")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    rows, columns = NamedSharding(mesh, P("x", None)), NamedSharding(mesh, P(None, "x"))
    x = np.random.default_rng(3).normal(size=(512, 512)).astype(np.float32)
    given = jax.jit(lambda x: jnp.tanh(x) - x.mean(1, keepdims=True), in_shardings=rows)
    returned = jax.jit(lambda x: jnp.tanh(x) - x.mean(1, keepdims=True), out_shardings=columns)
    for fun, argument in (
        (given, x),
        (returned, x),
        (lambda x: returned(jnp.sin(x)), x),
        (jax.vmap(returned), np.stack([x, -x])),
        (jax.grad(lambda x: given(x).sum()), x),
    ):
        want, got = jax.jit(fun)(argument), aspen(fun, strict=True)(argument)
        assert got.sharding.is_equivalent_to(want.sharding, want.ndim)
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-3, atol=1e-3)
        text = jax.jit(aspen(fun, strict=True)).lower(argument).compile().as_text() or ""
        assert CUSTOM_CALL_TARGET in text


@pytest.fixture
def checking():
    """JAX checks the types of what it traces, as its own tests do."""
    with jax.enable_checks(True):
        yield


def test_types_with_shardings_are_no_error_where_jax_checks_types(checking):
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))

    def function(x):
        return lax.bessel_i1e(jnp.sin(x) + 2) * 2

    with jax.set_mesh(mesh):
        x = jax.device_put(np.linspace(-1, 1, 512 * 512, dtype=np.float32).reshape(512, 512), P("x", None))
        np.testing.assert_allclose(aspen(function)(x), jax.jit(function)(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["forced", "default"])
def test_sharded_functions_are_exported(mode, request):
    """A file cannot hold the Python that cuts a call along the batch, so XLA runs them."""
    if mode == "default":
        request.getfixturevalue("choosing")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, P("x", None))
    x, w = (np.random.default_rng(seed).normal(size=(512, 512)).astype(np.float32) for seed in (0, 1))
    allowed = [export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)]

    def layer(x):
        return jnp.tanh(x @ w / 16).reshape(-1, 64, 8).sum(1)

    def gradient(x):
        return jax.grad(lambda x: layer(x).sum())(x)

    for fun in (layer, gradient):
        jitted = jax.jit(aspen(fun), in_shardings=rows, out_shardings=rows)
        exported = export.export(jitted, disabled_checks=allowed)(x)
        again = export.deserialize(exported.serialize())
        for call in (jitted, jax.jit(again.call, in_shardings=rows)):
            np.testing.assert_allclose(call(x), jax.jit(fun)(x), rtol=1e-4, atol=1e-4)
        assert CUSTOM_CALL_TARGET in jitted.lower(x).compile().as_text()
        with pytest.raises(UnsupportedError, match="exported for several devices"):
            export.export(jax.jit(aspen(fun, strict=True), in_shardings=rows), disabled_checks=allowed)(x)
        # Inside of jax.shard_map each device's call is whole.
        local = jax.jit(jax.shard_map(aspen(fun), mesh=mesh, in_specs=P("x", None), out_specs=P("x", None)))
        assert CUSTOM_CALL_TARGET in export.export(local, disabled_checks=allowed)(x).mlir_module()


@pytest.mark.parametrize("mode", ["forced", "default"])
def test_functions_are_exported_for_devices_that_nobody_has_named(mode, request):
    """An abstract mesh has no devices. Nor has the gradient of what is exported, which JAX derives."""
    if mode == "default":
        request.getfixturevalue("choosing")
    abstract, concrete = (NamedSharding(mesh, P("x", None)) for mesh in (AbstractMesh((2,), ("x",)), jax.make_mesh((2,), ("x",))))
    x, w = (np.random.default_rng(seed).normal(size=(512, 512)).astype(np.float32) for seed in (0, 1))

    def layer(x):
        return jnp.tanh(x @ w / 16)

    def gradient(x):
        return jax.vjp(layer, x)[1](x)[0]

    def exported(fun, sharding):
        return export.export(jax.jit(fun, in_shardings=sharding, out_shardings=sharding), platforms=["cpu"])(x)

    cut = jax.device_put(x, concrete)
    for fun in (layer, gradient):
        again = export.deserialize(exported(aspen(fun), abstract).serialize())
        np.testing.assert_allclose(jax.jit(again.call)(cut), jax.jit(fun)(x), rtol=1e-4, atol=1e-4)
    with_gradient = export.deserialize(exported(aspen(layer), concrete).serialize(vjp_order=1))
    (got,) = jax.jit(with_gradient.vjp().call)(cut, cut)
    np.testing.assert_allclose(got, jax.jit(gradient)(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(UnsupportedError, match="exported for several devices"):
        exported(aspen(layer, strict=True), abstract)


def test_a_program_for_more_devices_than_there_are_is_xlas(caplog):
    many = NamedSharding(AbstractMesh((256,), ("x",)), P("x"))
    x = np.ones((512, 512), np.float32)

    def lowered(fun):
        return jax.jit(fun, in_shardings=many).trace(x).lower(lowering_platforms=("cpu",)).as_text() or ""

    text = lowered(aspen(lambda x: jnp.tanh(x @ x)))
    assert "more devices than this process knows" in caplog.text
    assert "stablehlo.tanh" in text
    assert CUSTOM_CALL_TARGET not in text
    with pytest.raises(UnsupportedError, match="more devices than this process knows"):
        lowered(aspen(lambda x: jnp.tanh(x @ x), strict=True))


def test_a_program_for_gpus_is_lowered_where_there_are_none(monkeypatch):
    """XLA runs it over a mesh: nobody asks for devices of a platform that is elsewhere."""
    monkeypatch.setenv("ASPEN_CUDA_ARCH", "sm_80")
    mesh = NamedSharding(AbstractMesh((2,), ("x",)), P("x"))
    argument = jax.ShapeDtypeStruct((8, 16), np.float32, sharding=mesh)
    function = jax.jit(aspen(lambda x: jnp.tanh(x) * 2, device="cuda"))
    assert "tanh" in function.trace(argument).lower(lowering_platforms=("cuda",)).as_text()
    exported = jax.export.export(function, platforms=["cuda"])(argument)
    assert exported.platforms == ("cuda",)


@pytest.mark.parametrize("mode", ["forced", "default"])
def test_one_program_may_have_two_meshes(mode, request):
    if mode == "default":
        request.getfixturevalue("choosing")
    devices = np.array(jax.devices()[:2])
    rows = NamedSharding(Mesh(devices.reshape(2, 1), ("x", "y")), P("x", "y"))
    columns = NamedSharding(Mesh(devices.reshape(1, 2), ("a", "b")), P("a", "b"))
    x, w = (np.random.default_rng(seed).normal(size=(512, 512)).astype(np.float32) for seed in (0, 1))

    def layer(x, w):
        return jnp.tanh(x @ w / 16)

    for fun in (layer, jax.grad(lambda x, w: layer(x, w).sum())):
        compiled = jax.jit(aspen(fun), in_shardings=(rows, columns)).lower(x, w).compile()
        assert CUSTOM_CALL_TARGET in (compiled.as_text() or "")
        np.testing.assert_allclose(compiled(x, w), jax.jit(fun)(x, w), rtol=1e-4, atol=1e-4)
        exported = export.export(jax.jit(aspen(fun), in_shardings=(rows, columns)))(x, w)
        np.testing.assert_allclose(
            jax.jit(exported.call, in_shardings=(rows, columns))(x, w), jax.jit(fun)(x, w), rtol=1e-4, atol=1e-4
        )


@pytest.mark.one_mode("nothing is compiled")
def test_any_mesh_is_told_from_where_its_devices_lie():
    for sizes in ((1,), (8,), (2, 4), (3, 2, 4), (2, 2, 2, 3), (5, 1, 3)):
        places = np.indices(sizes).reshape(len(sizes), -1)
        for axes in itertools.permutations(range(len(sizes)), min(2, len(sizes))):
            numbers = np.asarray(np.ravel_multi_index(places[list(axes)], [sizes[axis] for axis in axes]))
            found, weights = digits(numbers.tolist()) or ((), ())
            assert np.prod(found) == np.prod(sizes)
            np.testing.assert_array_equal(np.tensordot(weights, np.indices(found), 1).ravel(), numbers)
    for numbers in ([0, 1, 1, 0], [1, 0], [0, 1, 2, 0, 1, 3], [0, 0, 1]):
        assert digits(numbers) is None


@pytest.mark.parametrize("mode", ["forced", "default"])
def test_the_program_of_a_mesh_says_what_it_computes(mode, request):
    """JAX's cache on disk takes programs of one text for one program, and addresses of Python objects come again."""
    if mode == "default":
        request.getfixturevalue("choosing")
    rows = NamedSharding(jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,)), P("x", None))
    x = jax.device_put(np.ones((512, 512), np.float32), rows)

    def text(factor: float, function=jnp.tanh) -> str:
        def layer(x, w):
            return function(x @ w) * factor

        lowered = jax.jit(aspen(layer)).lower(x, np.ones((512, 512), np.float32)).as_text()
        assert "CustomSPMDPartitioning" in lowered
        return re.sub(r'backend_config = "\d+"', "", lowered)

    assert text(0.5) == text(0.5)
    assert len({text(0.5), text(0.25), text(0.5, jnp.sin)}) == 3
