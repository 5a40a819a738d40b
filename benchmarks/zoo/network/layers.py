"""The layers that networks are made of, as plain data: what each is, its output's shape and its parameters' shapes.

Shapes are those of JAX: images are [batch, height, width, channels], texts [batch, tokens, width].
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

Shape = tuple[int, ...]
ActivationKind = Literal["relu", "relu6", "leaky_relu", "silu", "hardswish", "softplus", "sigmoid", "gelu", "gelu_tanh", "tanh"]


class Layer:
    """What is computed from one value or more. A subclass overrides what differs from element-wise."""

    def output(self, *inputs: Shape) -> Shape:
        """The shape of the result."""
        return inputs[0]

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        """The shapes of what is learned, by name."""
        return {}


@dataclasses.dataclass(frozen=True)
class Window:
    """What a convolution or pooling sees of an image at once: height and width, stride, and padding before and behind."""

    kernel: tuple[int, int]
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    ceil: bool = False  # the last window may reach over the padded image

    def extents(self, image: Shape) -> tuple[int, int]:
        """Height and width of the result."""
        return tuple(self._extent(image[1 + axis], axis) for axis in (0, 1))  # type: ignore[return-value]

    def pads(self, image: Shape) -> tuple[tuple[int, int], tuple[int, int]]:
        """Padding before and behind each dimension, with what the last window reaches over."""
        pairs = []
        for axis, extent in enumerate(self.extents(image)):
            needed = (extent - 1) * self.stride + self.kernel[axis]
            pad = self.padding[axis]
            pairs.append((pad, max(pad, needed - image[1 + axis] - pad) if self.ceil else pad))
        return pairs[0], pairs[1]

    def _extent(self, extent: int, axis: int) -> int:
        room = extent + 2 * self.padding[axis] - self.kernel[axis]
        steps = -(-room // self.stride) if self.ceil else room // self.stride
        if self.ceil and steps * self.stride >= extent + self.padding[axis]:
            steps -= 1  # a window must begin in the image
        return steps + 1


@dataclasses.dataclass(frozen=True)
class Conv(Layer):
    """A convolution, HWIO; `groups` of channels see only their own."""

    channels: int
    window: Window
    groups: int = 1
    bias: bool = True

    def output(self, *inputs: Shape) -> Shape:
        (image,) = inputs
        return (image[0], *self.window.extents(image), self.channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        (image,) = inputs
        weight = (*self.window.kernel, image[3] // self.groups, self.channels)
        return {"weight": weight, "bias": (self.channels,)} if self.bias else {"weight": weight}


@dataclasses.dataclass(frozen=True)
class BatchNorm(Layer):
    """Batch normalisation of images, as it is after training; `mean` and `variance` are not learned but measured.

    Attributes:
        epsilon: added to the variance.
        typical_scale: what the learned scales are around.
    """

    epsilon: float = 1e-5
    typical_scale: float = 1.0

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return dict.fromkeys(("scale", "shift", "mean", "variance"), inputs[0][3:])


@dataclasses.dataclass(frozen=True)
class Activation(Layer):
    """An element-wise function; a leaky ReLU keeps a tenth."""

    kind: ActivationKind


@dataclasses.dataclass(frozen=True)
class Pool(Layer):
    """The largest or the mean of each window; padding counts in a mean, as a zero."""

    kind: Literal["max", "mean"]
    window: Window

    def output(self, *inputs: Shape) -> Shape:
        (image,) = inputs
        return (image[0], *self.window.extents(image), image[3])


@dataclasses.dataclass(frozen=True)
class GlobalMean(Layer):
    """The mean of each channel, as an image of one pixel."""

    def output(self, *inputs: Shape) -> Shape:
        return (inputs[0][0], 1, 1, inputs[0][3])


@dataclasses.dataclass(frozen=True)
class Flatten(Layer):
    """An image of one pixel as a vector."""

    def output(self, *inputs: Shape) -> Shape:
        batch, height, width, channels = inputs[0]
        assert height == width == 1, "of larger images the order would depend on the layout"
        return (batch, channels)


@dataclasses.dataclass(frozen=True)
class Upsample(Layer):
    """Each pixel `factor` times in both directions."""

    factor: int

    def output(self, *inputs: Shape) -> Shape:
        batch, height, width, channels = inputs[0]
        return (batch, height * self.factor, width * self.factor, channels)


@dataclasses.dataclass(frozen=True)
class Add(Layer):
    """The sum of values of the same shape."""


@dataclasses.dataclass(frozen=True)
class Multiply(Layer):
    """The product of an image and a gate for each channel."""


@dataclasses.dataclass(frozen=True)
class Concat(Layer):
    """Images with their channels one behind the other."""

    def output(self, *inputs: Shape) -> Shape:
        return (*inputs[0][:3], sum(image[3] for image in inputs))


@dataclasses.dataclass(frozen=True)
class Linear(Layer):
    """A linear layer on the last dimension, or on all of an image."""

    outputs: int

    def output(self, *inputs: Shape) -> Shape:
        (x,) = inputs
        return (x[0], self.outputs) if len(x) == 4 else (*x[:-1], self.outputs)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        (x,) = inputs
        return {"weight": (math.prod(x[1:]) if len(x) == 4 else x[-1], self.outputs), "bias": (self.outputs,)}


@dataclasses.dataclass(frozen=True)
class LayerNorm(Layer):
    """Mean 0 and variance 1 along the last dimension, then scale and shift."""

    epsilon: float

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return dict.fromkeys(("scale", "shift"), inputs[0][-1:])


@dataclasses.dataclass(frozen=True)
class Embedding(Layer):
    """A row of a table for each number."""

    rows: int
    width: int

    def output(self, *inputs: Shape) -> Shape:
        return (*inputs[0], self.width)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"table": (self.rows, self.width)}


@dataclasses.dataclass(frozen=True)
class Logits(Layer):
    """A score for each row of an embedding's table, whose parameters it shares."""

    rows: int

    def output(self, *inputs: Shape) -> Shape:
        return (*inputs[0][:-1], self.rows)


@dataclasses.dataclass(frozen=True)
class Positions(Layer):
    """Adds a learned vector to each token; there are `rows` of them."""

    rows: int

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"table": (self.rows, inputs[0][-1])}


@dataclasses.dataclass(frozen=True)
class Tokens(Layer):
    """The pixels of an image as the tokens of a text, behind a learned first one."""

    def output(self, *inputs: Shape) -> Shape:
        batch, height, width, channels = inputs[0]
        return (batch, 1 + height * width, channels)

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        return {"first": inputs[0][3:]}


@dataclasses.dataclass(frozen=True)
class First(Layer):
    """The first token of a text."""

    def output(self, *inputs: Shape) -> Shape:
        return (inputs[0][0], inputs[0][2])


@dataclasses.dataclass(frozen=True)
class Attention(Layer):
    """Self-attention with four linear layers; a second value, [batch, tokens], is false where a text is over."""

    heads: int
    causal: bool = False

    def parameters(self, *inputs: Shape) -> dict[str, Shape]:
        width = inputs[0][-1]
        parts = ("query", "key", "value", "mix")
        return {f"{part}_{name}": shape for part in parts for name, shape in (("weight", (width, width)), ("bias", (width,)))}
