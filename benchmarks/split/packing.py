"""DynO's figures 6 and 7: how small outputs of ReLUs get, beside the entropy of their codes, and how long that takes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from aspen_jax.api.decorator import flat_call
from aspen_jax.cost.timing import Timing, interleaved
from aspen_jax.split.accuracy import relu_outputs
from aspen_jax.split.codec import pack, unpack
from aspen_jax.split.equations import flatten
from aspen_jax.split.measure import crossing_values
from aspen_jax.split.payload import CODECS, CodecName
from aspen_jax.split.quantise import RAW, quantise
from benchmarks.split.trained import Trained

BITS = (3, 4, 6, 8, RAW)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Geometric means over outputs of ReLUs and images: how many times smaller than float32.

    Attributes:
        tensors: how many outputs of ReLUs the network has.
        smallest: bytes of the smallest of them.
        largest: bytes of the largest.
        zeros: the share of zeros.
        entropy: by bits, for the Shannon entropy of the codes, each for itself; of values where they go as they are.
        ratios: by bits, then by codec, for the whole message.
    """

    tensors: int
    smallest: int
    largest: int
    zeros: float
    entropy: dict[int, float]
    ratios: dict[int, dict[CodecName, float]]


def relu_batches(trained: Trained, images: int) -> list[np.ndarray]:
    """The outputs of a network's ReLUs, each [images, ...]; what is moved of them is left out."""
    x = trained.images[:images]
    flat = flatten(flat_call(trained.apply, (x,), {}))
    sparse = relu_outputs(flat)
    computed = [var for equation in flat.equations for var in equation.outvars if var in sparse and _is_relu(equation)]
    return list(crossing_values(flat, [x], [computed]).values())


def relu_values(trained: Trained, images: int) -> list[list[np.ndarray]]:
    """The outputs of a network's ReLUs for one image after the other, each [1, ...]."""
    values = relu_batches(trained, images)
    return [[value[number : number + 1] for value in values] for number in range(len(values[0]))]


def _is_relu(equation: Any) -> bool:
    return equation.primitive.name in ("max", "clamp", "min") or equation.primitive.name.startswith("custom_jvp")


def sizes(trained: Trained, images: int) -> Sizes:
    """Measures a network."""
    values = relu_values(trained, images)
    flat = [value for of_image in values for value in of_image]
    entropy = {bits: _mean([value.nbytes / max(_entropy_bytes(value, bits), 1) for value in flat]) for bits in BITS}
    ratios: dict[int, dict[CodecName, float]] = {
        bits: {codec: _mean([value.nbytes / len(pack([value], bits, codec)) for value in flat]) for codec in CODECS}
        for bits in BITS
    }
    nbytes = [value.nbytes for value in values[0]]
    zeros = float(np.mean([(value == 0).mean() for value in flat]))
    return Sizes(len(values[0]), min(nbytes), max(nbytes), zeros, entropy, ratios)


def together(parts: Sequence[Sizes]) -> Sizes:
    """Join the sizes of several networks' tensors, of as many images each."""
    counts = np.array([part.tensors for part in parts])

    def mean(ratios: Sequence[float]) -> float:
        return float(np.exp(np.average(np.log(ratios), weights=counts)))

    return Sizes(
        int(counts.sum()),
        min(part.smallest for part in parts),
        max(part.largest for part in parts),
        float(np.average([part.zeros for part in parts], weights=counts)),
        {bits: mean([part.entropy[bits] for part in parts]) for bits in BITS},
        {bits: {codec: mean([part.ratios[bits][codec] for part in parts]) for codec in CODECS} for bits in BITS},
    )


def _mean(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def _entropy_bytes(value: np.ndarray, bits: int) -> float:
    """What no code of single elements can go below."""
    _, counts = np.unique(quantise(value, bits).codes, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum() * value.size / 8)


def times(value: np.ndarray, rounds: int) -> dict[tuple[int, CodecName], tuple[int, Timing, Timing]]:
    """Measure each number of bits and codec: bytes of the message, times to pack it and to unpack it, taken in turns."""
    messages: dict[tuple[int, CodecName], bytes] = {
        (bits, codec): pack([value], bits, codec) for bits in BITS for codec in CODECS
    }
    packing = {f"pack {bits} {codec}": functools.partial(pack, [value], bits, codec) for bits, codec in messages}
    unpacking = {
        f"unpack {bits} {codec}": functools.partial(unpack, message, [value]) for (bits, codec), message in messages.items()
    }
    found = interleaved(packing | unpacking, rounds)
    return {
        (bits, codec): (len(message), found[f"pack {bits} {codec}"], found[f"unpack {bits} {codec}"])
        for (bits, codec), message in messages.items()
    }
