"""Seeded parameters and inputs for a network, with which its outputs tell inputs apart."""

from __future__ import annotations

import math
import zlib

import jax
import numpy as np

from benchmarks.zoo.network.in_jax import Params, in_jax
from benchmarks.zoo.network.layers import BatchNorm, Shape
from benchmarks.zoo.network.network import Input, Network

_SEED = 0
_BLOBS = 8  # along each side of a random image
_CALIBRATION_PIXELS = 96  # of the smallest maps; few make statistics that amplify rounding errors


def draw(network: Network) -> Params:
    """Parameters as they are before training: float32 numpy arrays, always the same.

    Weights keep the size of what they multiply, through a ReLU where one may follow, so that deep layers see something and every
    one counts in the output. Scales and shifts are drawn too, because ones and zeros would hide mistakes.
    """
    params = {
        node: {name: _draw(f"{node}/{name}", name, shape) for name, shape in of_node.items()}
        for node, of_node in network.parameter_shapes().items()
    }
    for node in network.nodes:
        if isinstance(node.layer, BatchNorm):
            params[node.name]["scale"] *= np.float32(node.layer.typical_scale)
    return params


def calibrated(network: Network, params: Params) -> Params:
    """The parameters with the statistics of batch normalisation measured on seeded images, as training leaves them.

    With any others the activations of deep networks die out or explode, and comparing outputs would prove nothing.
    """
    maps = [node.shape[1] * node.shape[2] for node in network.nodes if isinstance(node.layer, BatchNorm)]
    if not maps:
        return params

    @jax.jit
    def measure(params: Params, *inputs: jax.Array) -> Params:
        measured: Params = {}

        def on_norm(name: str, own: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
            measured[name] = {"mean": x.mean((0, 1, 2)), "variance": x.var((0, 1, 2))}
            return {**own, **measured[name]}

        in_jax(network, on_norm)(params, *inputs)
        return measured

    images = (draw_input(what, -(-_CALIBRATION_PIXELS // min(maps))) for what in network.inputs.values())
    measured = measure(params, *images)
    return {node: {**own, **jax.tree.map(np.asarray, measured.get(node, {}))} for node, own in params.items()}


def draw_inputs(network: Network) -> tuple[np.ndarray, ...]:
    """Seeded inputs."""
    return tuple(draw_input(what, what.shape[0]) for what in network.inputs.values())


def draw_input(what: Input, batch: int) -> np.ndarray:
    """One input of another batch.

    Images are of coloured blobs. Noise would not do: deep layers see the same in all of it, and what normalisation then amplifies
    is rounding errors. Texts are two sentences, and their last eighth is padding.
    """
    shape = (batch, *what.shape[1:])
    random = _random(what.kind)
    place = np.broadcast_to(np.arange(shape[1]), shape[:2])
    if what.kind == "image":
        coarse = random.standard_normal((batch, _BLOBS, _BLOBS, shape[3]), np.float32)
        return np.array(jax.image.resize(coarse, shape, "linear"))
    if what.kind == "rows":
        return random.standard_normal(shape, np.float32)
    if what.kind == "token ids":
        return random.integers(0, what.below, shape).astype(np.int32)
    if what.kind == "segments":
        return (place >= shape[1] // 2).astype(np.int32)
    return place < shape[1] - shape[1] // 8


def _draw(path: str, name: str, shape: Shape) -> np.ndarray:
    random = _random(path)
    if name.endswith(("bias", "shift", "mean")):
        return random.normal(0, 0.1, shape).astype(np.float32)
    if name.endswith("scale"):
        return random.normal(1, 0.1, shape).astype(np.float32)
    if name.endswith("variance"):
        return np.ones(shape, np.float32)
    if name in ("table", "first"):
        scale = shape[-1] ** -0.5  # a row's length is 1, or GPT-2's logits would be huge where a word meets itself
    else:
        scale = math.sqrt((2 if len(shape) == 4 else 1) / math.prod(shape[:-1]))
    return random.standard_normal(shape, np.float32) * np.float32(scale)


def _random(path: str) -> np.random.Generator:
    return np.random.default_rng([_SEED, zlib.crc32(path.encode())])
