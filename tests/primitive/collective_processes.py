"""What test_sharding.py runs in child processes: many calls on more devices than cores, with collectives behind each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from aspen_jax import aspen

DEVICES = len(jax.devices())
RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.normal(size=(3, 3, 8, 16)).astype(np.float32) / 8
IMAGES = RANDOM.normal(size=(2 * DEVICES, 24, 24, 8)).astype(np.float32)


def features(kernel: Any, images: Any) -> Any:
    """An image's features: enough work for the pool, and cumulative sums, which tiles are faster at on any machine."""
    found = lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jnp.cumsum(jax.nn.relu(found), 1) / found.shape[1]


def loss(features: Callable[..., Any], kernel: Any, images: Any) -> Any:
    return (features(kernel, images) ** 2).mean()


def of_mesh(axis_type: AxisType) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The gradient of the weights, where XLA's partitioner adds the all-reduce."""
    mesh = jax.make_mesh((DEVICES,), ("batch",), axis_types=(axis_type,))

    def gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(jax.grad(lambda kernel, images: loss(fun, kernel, images)))

        def call(kernel: Any, images: Any) -> Any:
            with jax.set_mesh(mesh):
                return compiled(kernel, images)

        return call

    return gradient


def mapped(collective: Callable[[Any], Any], spec: P) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A collective of the program itself behind a call on each device."""
    mesh = jax.make_mesh((DEVICES,), ("batch",), axis_types=(AxisType.Auto,))

    def call(fun: Callable[..., Any]) -> Callable[..., Any]:
        def local(kernel: Any, images: Any) -> Any:
            return collective(fun(kernel, images).mean((1, 2)))

        return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P("batch")), out_specs=spec))

    return call


def of_pmap(fun: Callable[..., Any]) -> Callable[..., Any]:
    def local(kernel: Any, images: Any) -> Any:
        return lax.pmean(jax.grad(lambda kernel: loss(fun, kernel, images))(kernel), "batch")

    call = jax.pmap(local, axis_name="batch", in_axes=(None, 0))
    return lambda kernel, images: call(kernel, images.reshape(DEVICES, -1, *images.shape[1:]))[0]


RING = [(device, (device + 1) % DEVICES) for device in range(DEVICES)]
KINDS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "Auto mesh": of_mesh(AxisType.Auto),
    "Explicit mesh": of_mesh(AxisType.Explicit),
    "pmap": of_pmap,
    "psum": mapped(lambda x: lax.psum(x, "batch"), P()),
    "all_gather": mapped(lambda x: lax.all_gather(x, "batch"), P("batch")),
    "ppermute": mapped(lambda x: lax.ppermute(x, "batch", RING), P("batch")),
    "psum_scatter": mapped(lambda x: lax.psum_scatter(jnp.tile(x.mean(0), DEVICES), "batch", tiled=True), P("batch")),
    "all_to_all": mapped(lambda x: lax.all_to_all(jnp.tile(x, (1, DEVICES)), "batch", 1, 0, tiled=True), P("batch")),
}


def main() -> None:
    rounds = int(sys.argv[1])
    for name, kind in KINDS.items():
        axis_type = AxisType.Explicit if name == "Explicit mesh" else AxisType.Auto
        mesh = jax.make_mesh((DEVICES,), ("batch",), axis_types=(axis_type,))
        kernel = jax.device_put(KERNEL, NamedSharding(mesh, P()))
        images = jax.device_put(IMAGES, NamedSharding(mesh, P("batch")))
        if name == "pmap":
            kernel, images = KERNEL, IMAGES
        want = np.asarray(kind(features)(kernel, images))
        decorated = kind(aspen(features))
        if hasattr(decorated, "lower"):
            assert "aspen_run" in decorated.lower(kernel, images).as_text(), name
        for _ in range(rounds):
            got = np.asarray(decorated(kernel, images))
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max(), err_msg=name)
        print(name, flush=True)
    print("all is well")


if __name__ == "__main__":
    main()
