"""RepVGG as it is trained, with branches, and how they fold into the plain convolutions of `benchmarks/zoo/repvgg.py`."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.zoo.network.in_jax import ACTIVATIONS, Params
from benchmarks.zoo.network.layers import ActivationKind
from benchmarks.zoo.repvgg import Shape, convolutions


class Branch(nnx.Module):
    """A convolution, or nothing, and a batch norm behind it."""

    def __init__(self, channels: int, outputs: int, kernel: int, stride: int, rngs: nnx.Rngs) -> None:
        """Draw the weights; a kernel of 0 is the identity."""
        self.channels = channels
        conv = functools.partial(nnx.Conv, strides=stride, padding=kernel // 2, use_bias=False, rngs=rngs)
        self.conv = conv(channels, outputs, (kernel, kernel)) if kernel else None
        self.norm = nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(self.conv(x) if self.conv else x)

    def folded(self, kernel: int) -> tuple[jax.Array, jax.Array]:
        """One convolution's weights [kernel, kernel, inputs, outputs] and shift [outputs] that give what the branch gives."""
        factor = _array(self.norm.scale) * jax.lax.rsqrt(self.norm.var[...] + self.norm.epsilon)
        weight = self.conv.kernel[...] if self.conv else jnp.eye(self.channels)[None, None]
        pad = (kernel - weight.shape[0]) // 2  # a smaller kernel stands in the middle of zeros
        weight = jnp.pad(weight, ((pad, pad), (pad, pad), (0, 0), (0, 0)))
        return weight * factor, _array(self.norm.bias) - self.norm.mean[...] * factor


class Block(nnx.Module):
    """The sum of branches, then the activation."""

    def __init__(self, channels: int, outputs: int, kernel: int, stride: int, activation: ActivationKind, rngs: nnx.Rngs) -> None:
        """Make the branches: 3x3, 1x1 and the identity where the shape stays; of a deepening 1x1 that one alone."""
        kernels = [kernel]
        if kernel > 1:
            kernels += [1, *([0] if stride == 1 and channels == outputs else [])]
        self.kernel = kernel
        self.branches = nnx.List(Branch(channels, outputs, size, stride, rngs) for size in kernels)
        self.activation: Callable[[jax.Array], jax.Array] = ACTIVATIONS[activation]

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.activation(functools.reduce(jnp.add, (branch(x) for branch in self.branches)))

    def folded(self) -> dict[str, jax.Array]:
        """The parameters of the one convolution."""
        weights, biases = zip(*(branch.folded(self.kernel) for branch in self.branches), strict=True)
        return {"weight": functools.reduce(jnp.add, weights), "bias": functools.reduce(jnp.add, biases)}


class Branches(nnx.Module):
    """The network: blocks, the mean of each channel, a linear layer."""

    def __init__(
        self, shape: Shape, activation: ActivationKind, rngs: nnx.Rngs, *, deepened: bool, channels: int, classes: int
    ) -> None:
        """Draw all weights."""
        blocks = []
        for outputs, kernel, stride in convolutions(shape, deepened=deepened):
            blocks.append(Block(channels, outputs, kernel, stride, activation, rngs))
            channels = outputs
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(channels, classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))

    def folded(self) -> Params:
        """The parameters of `benchmarks.zoo.repvgg.deployed`."""
        params: Params = {f"Conv{number}": block.folded() for number, block in enumerate(self.blocks)}
        return {**params, "Linear0": {"weight": self.head.kernel[...], "bias": _array(self.head.bias)}}


def _array(variable: nnx.Variable | None) -> jax.Array:
    """What a layer that was told to have it holds; by its type it might not."""
    assert variable is not None
    return variable[...]
