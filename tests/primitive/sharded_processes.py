"""What tests/primitive/test_sharding.py runs in child processes: functions on shards, compared with the whole on one device."""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from aspen_jax import aspen

RANDOM = np.random.default_rng(0)
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def dense(params, x):
    return jax.nn.gelu(x @ params["w"] + params["b"]) @ params["w"].T


def image(params, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, params["kernel"], (2, 1), "SAME", dimension_numbers=numbers)
    y = lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.softmax(y.mean((1, 2)) @ params["head"])


def volume(params, x):
    y = lax.conv_general_dilated(x, params["kernel"], (1, 2, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))
    return jax.nn.relu(y).mean((1, 2, 3))


def attention(params, x):
    batch, length, width = x.shape
    q, k, v = jnp.split(x @ params["qkv"], 3, -1)
    heads = (item.reshape(batch, length, 2, width // 2) for item in (q, k, v))
    x = x + jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape)
    return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) + jnp.arange(length)[:, None]


def chosen(params, x):
    at = jnp.argmax(x, 1)
    greatest = jax.vmap(lambda row, place: row[place])(x, at)
    window = jax.vmap(lambda row, place: lax.dynamic_slice(row, (place,), (2,)))(x, at)
    columns = jax.vmap(lambda row: row[params["at"]])(x)
    return greatest[:, None] + window[:, :1] + columns + lax.top_k(x, 3)[0]


def with_fallback(params, x):
    return jnp.tanh(jax.lax.bessel_i0e(x @ params["w"]) * 2)


def looped(params, x):
    return lax.scan(lambda c, _: (jnp.tanh(c @ params["w"]), None), x, None, length=3)[0]


DENSE = {"w": normal(16, 16), "b": normal(16)}
CASES = {
    "dense": (dense, DENSE, normal(8, 16)),
    "image": (image, {"kernel": normal(3, 3, 3, 8), "head": normal(8, 5)}, normal(8, 9, 8, 3)),
    "volume": (volume, {"kernel": normal(3, 3, 2, 3, 8)}, normal(8, 4, 6, 5, 3)),
    "attention": (attention, {"qkv": normal(8, 24)}, normal(8, 6, 8)),
    "chosen": (chosen, {"at": np.array([5, 1, 5], np.int32)}, normal(8, 16)),
    "with_fallback": (with_fallback, {"w": normal(256, 256) / 16}, normal(8, 256)),
    "looped": (looped, {"w": normal(64, 64) / 8}, normal(8, 64)),
}


def compare(got, want) -> None:
    """The shards that this process holds, with the whole."""
    for shard in got.addressable_shards:
        np.testing.assert_allclose(shard.data, np.asarray(want)[shard.index], rtol=0, atol=2e-5 * np.abs(want).max())


def put(mesh, value, spec):
    return jax.make_array_from_callback(value.shape, NamedSharding(mesh, spec), lambda index: value[index])


def check(name: str, axis_type: AxisType) -> None:
    fun, params, x = CASES[name]
    with jax.default_device(jax.local_devices()[0]):
        want = np.asarray(jax.jit(fun)(params, x))
    mesh = jax.make_mesh((len(jax.devices()),), ("batch",), axis_types=(axis_type,))
    with jax.set_mesh(mesh):
        on_all = jax.tree.map(lambda leaf: put(mesh, leaf, P()), params)
        cut = put(mesh, x, P("batch"))
        compiled = jax.jit(aspen(fun)).lower(on_all, cut).compile()
        text = compiled.as_text() or ""
        assert 'custom_call_target="aspen_run"' in text, (name, axis_type)
        assert not any(collective in text for collective in COLLECTIVES), (name, axis_type)
        result = compiled(on_all, cut)
        assert result.sharding.spec[0] == "batch", (name, axis_type, result.sharding)
        compare(result, want)
        compare(aspen(fun)(on_all, cut), want)


def check_what_is_no_batch() -> None:
    """Entries that depend on each other, and results that are no batch: right, with collectives."""
    mesh = jax.make_mesh((len(jax.devices()),), ("batch",), axis_types=(AxisType.Auto,))
    x = normal(8, 16)
    for fun in (
        lambda x: x - x.mean(0),
        lambda x: jnp.tanh(x)[::-1] * 2,
        lambda x: jnp.concatenate([x[4:], x[:4]]) * 2,
        lambda x: x.at[3].set(0.5) * 2,
        lambda x: x * jnp.arange(8.0)[:, None],
        lambda x: (x * 2, jnp.tanh(x).sum()),
        lambda x: (x @ x.T) * 2,
        lambda x: jnp.tanh(x.reshape(4, 32)).reshape(8, 16),
        lambda x: jnp.tanh(x).reshape(-1)[::17] * 2,  # a diagonal
    ):
        with jax.default_device(jax.local_devices()[0]):
            want = jax.jit(fun)(x)
        got = jax.jit(aspen(fun))(put(mesh, x, P("batch")))
        jax.tree.map(compare, got, jax.tree.map(np.asarray, want))


def check_gradients() -> None:
    """Of weights: one all-reduce at most for each, and no all-gather."""
    mesh = jax.make_mesh((len(jax.devices()),), ("batch",), axis_types=(AxisType.Auto,))

    def loss(fun, params, x):
        return (fun(params, x) ** 2).sum()

    params, x = DENSE, normal(8, 16)
    with jax.default_device(jax.local_devices()[0]):
        want = jax.jit(jax.grad(lambda *args: loss(dense, *args)))(params, x)
    arguments = jax.tree.map(lambda leaf: put(mesh, leaf, P()), params), put(mesh, x, P("batch"))
    compiled = jax.jit(jax.grad(lambda *args: loss(aspen(dense), *args))).lower(*arguments).compile()
    assert "all-gather" not in (compiled.as_text() or "")
    jax.tree.map(compare, compiled(*arguments), want)


def check_shard_map() -> None:
    mesh = jax.make_mesh((len(jax.devices()),), ("batch",), axis_types=(AxisType.Auto,))
    specs: dict = {"mesh": mesh, "in_specs": (P(), P("batch")), "out_specs": P("batch")}
    fun, params, x = CASES["attention"]
    with jax.default_device(jax.local_devices()[0]):
        want = np.asarray(jax.jit(fun)(params, x))
    arguments = jax.tree.map(lambda leaf: put(mesh, leaf, P()), params), put(mesh, x, P("batch"))
    for mapped in (jax.shard_map(aspen(fun), **specs), aspen(jax.shard_map(fun, **specs))):
        compiled = jax.jit(mapped).lower(*arguments).compile()
        assert "all-gather" not in (compiled.as_text() or "")
        compare(compiled(*arguments), want)


def check_replicated() -> None:
    """Equations between custom calls in shard_map, of operands that are the same on all devices."""
    mesh = jax.make_mesh((len(jax.devices()),), ("batch",), axis_types=(AxisType.Auto,))
    w, x = normal(32, 32) / 8, normal(8, 32)
    for fun in (
        lambda w, x: jnp.tanh(x @ w),
        lambda w, x: jnp.abs(jnp.fft.fft(x @ w)) @ w,
        lambda w, x: x @ jnp.linalg.inv(w + jnp.eye(32)),
        lambda w, x: jax.lax.cond(x.sum() > 0, lambda: jnp.tanh(x @ w), lambda: x @ w),
        lambda w, x: jnp.tanh(x @ w) + jnp.fft.fft(jnp.arange(32.0)).real.sum() + jnp.arange(32),
    ):
        specs: dict = {"mesh": mesh, "in_specs": (P(), P("batch")), "out_specs": P("batch")}

        def total(fun, w, x, specs=specs):
            return (jax.shard_map(fun, **specs)(w, x) ** 2).sum()

        arguments = put(mesh, w, P()), put(mesh, x, P("batch"))
        for transformed in (lambda fun, specs=specs: jax.shard_map(fun, **specs), lambda fun: jax.grad(partial(total, fun))):
            want = np.asarray(jax.jit(transformed(fun))(*arguments))
            compare(jax.jit(transformed(aspen(fun)))(*arguments), want)


def check_two_axes() -> None:
    """A batch cut along both axes of a mesh, in both orders, or along one of them."""
    devices = np.array(jax.devices())
    with jax.default_device(jax.local_devices()[0]):
        want = np.asarray(jax.jit(dense)(DENSE, CASES["dense"][2]))
    for order in (devices, devices[::-1]):
        mesh = jax.sharding.Mesh(order.reshape(2, -1), ("a", "b"))
        for axes in (("a", "b"), ("b", "a"), "a", "b"):
            arguments = jax.tree.map(lambda leaf, mesh=mesh: put(mesh, leaf, P()), DENSE), put(mesh, CASES["dense"][2], P(axes))
            compiled = jax.jit(aspen(dense)).lower(*arguments).compile()
            assert "all-gather" not in (compiled.as_text() or ""), axes
            result = compiled(*arguments)
            assert result.sharding.is_equivalent_to(arguments[1].sharding, 2), (axes, result.sharding)
            compare(result, want)


def check_two_meshes() -> None:
    """Arguments that lie on two meshes of the same devices."""
    devices = np.array(jax.devices())
    weights, batch = jax.sharding.Mesh(devices, "w"), jax.sharding.Mesh(devices.reshape(2, -1), ("a", "b"))
    with jax.default_device(jax.local_devices()[0]):
        want = np.asarray(jax.jit(dense)(DENSE, CASES["dense"][2]))
    for spec in (P(("a", "b")), P("b"), P("a", "b")):
        arguments = jax.tree.map(lambda leaf: put(weights, leaf, P("w")), DENSE), put(batch, CASES["dense"][2], spec)
        # JAX finds the sharding of results on one of the meshes only, with the decorator or without.
        compiled = jax.jit(aspen(dense), out_shardings=NamedSharding(batch, spec)).lower(*arguments).compile()
        assert 'custom_call_target="aspen_run"' in (compiled.as_text() or ""), spec
        compare(compiled(*arguments), want)


def main() -> None:
    if sys.argv[1:] == ["replicated"]:
        check_replicated()
        print("all is well")
        return
    if len(sys.argv) > 1:
        address, number = sys.argv[1:]
        jax.distributed.initialize(address, num_processes=2, process_id=int(number))
        assert len(jax.devices()) == 2
        assert len(jax.local_devices()) == 1
        names = ["dense", "attention"]
    else:
        names = list(CASES)
        check_what_is_no_batch()
        check_two_axes()
        check_two_meshes()
        check_gradients()
        check_replicated()
    for name in names:
        check(name, AxisType.Auto)
        check(name, AxisType.Explicit)
    check_shard_map()
    print("all is well")


if __name__ == "__main__":
    main()
