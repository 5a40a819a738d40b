"""Networks that tests/split/test_split_cut.py cuts, and the process that runs one half of them."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from aspen_jax import aspen
from aspen_jax.split import cut
from benchmarks import zoo
from benchmarks.zoo.model import Size

# Small enough to be cut in a test; the smallest image that each takes.
SHALLOW = {"squeezenet1_1": 48, "resnet18": 40, "alexnet": 64, "vgg11_bn": 40}
ZOO = {
    **SHALLOW,
    "repvgg_a0": 40,
    "mobilenet_v2": 40,
    "efficientnet_b0": 40,
    "resnet50": 40,
    "densenet121": 40,
    "inception_v3": 96,
}


def branches(random: np.random.Generator) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Convolutions side by side, joined, twice."""
    kernels = [[normal(random, side, side, 6 if block else 3, 3) for side in (1, 3)] for block in range(2)]

    def fun(x: jax.Array) -> Any:
        for block in kernels:
            sides = [lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) for k in block]
            x = jax.nn.relu(jnp.concatenate(sides, -1))
        return {"sum": x.sum((1, 2)), "largest": x.max()}

    return aspen(fun), (normal(random, 2, 7, 9, 3),)


def skips(random: np.random.Generator) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Layers whose outputs are read soon, much later and by nobody; weights are an argument, and so is a number."""
    params = [{"w": normal(random, 12, 12), "b": normal(random, 12)} for _ in range(3)]

    def fun(params: Any, x: jax.Array, scale: float) -> Any:
        kept = first = jnp.tanh(x @ params[0]["w"])
        for layer in params[1:]:
            _ = jnp.sin(kept)
            kept = kept + jax.nn.relu(kept @ layer["w"] + layer["b"])
        return kept + first, x, scale * first[0, 0]

    return aspen(fun, weights="params"), (params, normal(random, 5, 12), 0.75)


def recurrent(random: np.random.Generator) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A scan forward and a scan back over what it gave, with a key and integers beside."""
    w, u = normal(random, 4, 8), normal(random, 8, 8)

    def fun(xs: jax.Array, key: jax.Array, steps: jax.Array) -> Any:
        def forward(carry: Any, x: jax.Array) -> Any:
            h, n = carry
            h = jnp.tanh(x @ w + h @ u)
            return (h, n + steps[0]), h

        def back(carry: jax.Array, pair: Any) -> Any:
            h, x = pair
            carry = 0.5 * carry + h * x.sum()
            return carry, carry.max()

        start = jax.random.bits(key, (8,), np.uint32) * np.float32(2**-32)
        (last, count), states = lax.scan(forward, (start, jnp.int32(0)), xs)
        total, peaks = lax.scan(back, last, (states, xs), reverse=True)
        return total, peaks, count, states[0]

    return fun, (normal(random, 6, 4), jax.random.key(int(random.integers(1 << 30))), np.array([3, 1], np.int32))


SMALL = {"branches": branches, "skips": skips, "recurrent": recurrent}


def normal(random: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(random.normal(size=shape).astype(np.float32))


def build(name: str, seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A network and its arguments; the same in every process."""
    if name in SMALL:
        return SMALL[name](np.random.default_rng((seed, zlib.crc32(name.encode()))))
    model = zoo.build(name, Size(image_size=ZOO[name]))
    random = np.random.default_rng(seed)
    inputs = [jnp.asarray(random.normal(size=item.shape).astype(item.dtype)) for item in model.inputs]
    return aspen(model.apply, weights="params"), (model.params, *inputs)


def serve(connection: Connection, half: int) -> None:
    """Runs one half of networks, the head (0) or the tail (1), until None comes in.

    Requests are (name, seed, cut, arrays); the head makes its own arguments. Answers are arrays of numpy, or a string that says
    what went wrong.
    """
    built: dict[Any, Any] = {}
    for name, seed, k, arrays in iter(connection.recv, None):
        try:
            if (name, seed) not in built:
                built[name, seed] = build(name, seed)
            fun, arguments = built[name, seed]
            part = cut(fun, k, *arguments)[half]
            results = part(*(arrays if half else arguments))
            connection.send([np.asarray(leaf) for leaf in jax.tree.leaves(results)])
        except Exception as error:  # the test that asked says so
            connection.send(repr(error))
