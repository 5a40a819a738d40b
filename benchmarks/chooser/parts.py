"""Generated parts of functions: what users' programs consist of, in random shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclasses.dataclass(frozen=True)
class GeneratedPart:
    """A function to time.

    Attributes:
        kind: which generator made it.
        function: what is timed; tiles can run all of it, or all that a loop of it repeats.
        arguments: its arrays.
        turns: how often its loop runs; 1 where it has none.
    """

    kind: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    turns: int = 1


class Draw:
    """Random numbers and shapes."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def size(self, low: float, high: float) -> int:
        """A whole number, its logarithm evenly distributed."""
        return int(np.exp(self._random.uniform(np.log(low), np.log(high + 1))))

    def round_size(self, low: float, high: float) -> int:
        """A whole number as `size` gives it, mostly a power of two or a few of them."""
        size = self.size(low, high)
        if self._random.random() < 0.3 or size < 4:
            return size
        step = 1 << (size.bit_length() - 2)
        return size // step * step

    def one_of(self, *items: Any) -> Any:
        return items[self._random.integers(len(items))]

    def array(self, *shape: int, dtype: Any = np.float32) -> Any:
        values = self._random.standard_normal(shape, np.float32)
        return jnp.asarray(values, dtype)

    def weights(self, inputs: int, outputs: int, dtype: Any = np.float32) -> Any:
        return self.array(inputs, outputs, dtype=dtype) * np.asarray(inputs**-0.5, dtype)

    def integers(self, limit: int, *shape: int) -> Any:
        return jnp.asarray(self._random.integers(0, limit, shape), np.int32)

    def chance(self, probability: float) -> bool:
        return bool(self._random.random() < probability)

    def split(self, total: int, count: int) -> tuple[int, ...]:
        """A shape of `count` dimensions of about so many elements."""
        shape = []
        for left in range(count, 1, -1):
            extent = max(1, self.size(1, max(1.0, total ** (1.6 / left))))
            shape.append(extent)
            total = max(1, total // extent)
        return (*shape, total)


_UNARY: tuple[Callable[[Any], Any], ...] = (
    jnp.tanh, jnp.abs, jnp.square, jax.nn.relu, jax.nn.sigmoid, jax.nn.gelu, lambda x: jnp.exp(-jnp.abs(x)), jnp.sin,
    lambda x: jnp.sqrt(jnp.abs(x) + 1), lambda x: 1 / (1 + jnp.abs(x)), lambda x: jnp.log1p(jnp.abs(x)), lambda x: x**3,
    lambda x: x * 0.5 + 1, lambda x: jnp.where(x > 0, x, 0.1 * x), lambda x: jnp.clip(x, -1, 1), lambda x: jnp.mod(x, 1.7),
    jnp.floor,
)  # fmt: skip
_BINARY: tuple[Callable[[Any, Any], Any], ...] = (
    jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, lambda x, y: x / (jnp.abs(y) + 1),
    lambda x, y: jnp.where(x > y, x, y * 0.5),
)  # fmt: skip


def _chain(draw: Draw, length: int) -> Callable[..., Any]:
    steps = [(draw.one_of(*_UNARY), draw.one_of(*_BINARY), draw.chance(0.4)) for _ in range(length)]

    def function(x: Any, y: Any) -> Any:
        for unary, binary, is_binary in steps:
            x = binary(x, y) if is_binary else unary(x)
        return x

    return function


def _long(draw: Draw) -> GeneratedPart:
    shape = (draw.size(1000, 100_000),)
    return GeneratedPart("long", _chain(draw, draw.size(30, 300)), (draw.array(*shape), draw.array(*shape)))


def _small(draw: Draw) -> GeneratedPart:
    shape = draw.split(draw.size(300, 100_000), draw.one_of(1, 2, 3))
    chain = _chain(draw, draw.size(1, 12))
    ending = draw.one_of(lambda x: x, lambda x: x, lambda x: x.sum(-1), lambda x: x.mean(), lambda x: x.max(0))
    return GeneratedPart("small", lambda x, y: ending(chain(x, y)), (draw.array(*shape), draw.array(*shape)))


def _large(draw: Draw) -> GeneratedPart:
    shape = draw.split(draw.size(300_000, 6_000_000), draw.one_of(1, 2, 3))
    chain = _chain(draw, draw.size(1, 12))
    ending = draw.one_of(lambda x: x, lambda x: x.sum(-1), lambda x: x.sum(), lambda x: x.max(0), lambda x: x.var(-1))
    return GeneratedPart("large", lambda x, y: ending(chain(x, y)), (draw.array(*shape), draw.array(*shape)))


def _trailing(draw: Draw) -> GeneratedPart:
    count, last = draw.size(300, 400_000), draw.one_of(3, 3, 3, 2, 4)
    x = draw.array(count, last)

    is_wrapped = draw.chance(0.5)

    def pairs(x: Any) -> Any:
        d = x[:, None] - x[None]
        d = jnp.mod(d + 0.5, 1.0) - 0.5 if is_wrapped else d - jnp.round(d)
        r2 = (d * d).sum(-1) + jnp.eye(len(x))
        return (1 / r2**3).sum()

    rotations = draw.array(count // 4 + 1, 3, 3)
    return GeneratedPart(
        "trailing",
        *draw.one_of(
            (lambda x: jnp.cross(x[..., :3], x[::-1, :3]) if last >= 3 else x[..., 0] * x[..., 1], (x,)),
            (lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), (x,)),
            (lambda x: x[..., 0] * x[..., 1] - x[..., -1] * x[..., 0], (x,)),
            (pairs, (draw.array(draw.size(32, 768), last),)),
            (jax.grad(lambda x: pairs(x)), (draw.array(draw.size(32, 512), last),)),
            (lambda a, b: a @ b, (rotations, rotations[::-1])),
            (lambda a, b: jnp.einsum("nij,nj->ni", a, b), (rotations, rotations[:, 0])),
            (lambda x, w: jnp.tanh(x @ w) * 2, (x, draw.weights(last, last))),
            (lambda x: jnp.stack([x[..., 0] * 2, x[..., 1] + x[..., 0], jnp.sin(x[..., -1])], -1), (x,)),
            (lambda x: (x * x).sum(-1), (x,)),
        ),
    )


def _loop(draw: Draw) -> GeneratedPart:
    rows, width, turns = draw.round_size(1, 64), draw.round_size(16, 512), 60
    x, w = draw.array(rows, width), draw.weights(width, width) * 0.9
    kind = draw.one_of(
        "tanh", "mlp", "lstm", "gru", "chain", "attention", "scan", "points", "gradient", "lstm gradient", "gates", "convolution"
    )
    hidden = draw.round_size(16, 512)
    layers = (draw.weights(width, hidden), draw.weights(hidden, hidden), draw.weights(hidden, width))

    def mlp(x: Any, layers: Any) -> Any:
        y = x
        for layer in layers:
            y = jnp.tanh(y @ layer)
        return x + 0.01 * y

    def lstm(state: Any, x: Any, w: Any, u: Any, b: Any) -> Any:
        c, h = state
        i, f, g, o = jnp.split(x @ w + h @ u + b, 4, -1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    if kind == "tanh":
        return GeneratedPart("loop", lambda c, w: lax.fori_loop(0, turns, lambda _, c: jnp.tanh(c @ w), c), (x, w), turns)
    if kind == "convolution":
        side, channels, turns = draw.size(4, 32), draw.one_of(8, 16, 32, 64), 6
        numbers = draw.one_of(("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"))
        sizes = {"N": draw.size(1, 4), "H": side, "W": side, "C": channels}
        of_kernel = {"H": 3, "W": 3, "I": channels, "O": channels}
        x = draw.array(*(sizes[name] for name in numbers[0]))
        kernel = draw.array(*(of_kernel[name] for name in numbers[1])) * np.float32((9 * channels) ** -0.5)

        def convolved(x: Any, kernel: Any) -> Any:
            return jnp.tanh(lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers))

        return GeneratedPart(
            "loop", lambda x, kernel: lax.fori_loop(0, turns, lambda _, x: convolved(x, kernel), x), (x, kernel), turns
        )
    if kind == "gates":
        gates = [draw.weights(width, width) for _ in range(8)]

        def gated(x: Any, gates: Any) -> Any:
            left, right = ([x @ gate for gate in half] for half in (gates[:4], gates[4:]))
            enter, forget, new, leave = (jnp.tanh(a + b) for a, b in zip(left, right, strict=True))
            return enter * new + forget * leave

        return GeneratedPart("loop", lambda x, gates: lax.fori_loop(0, turns, lambda _, x: gated(x, gates), x), (x, gates), turns)
    if kind == "mlp":
        return GeneratedPart(
            "loop", lambda x, layers: lax.fori_loop(0, turns, lambda _, x: mlp(x, layers), x), (x, layers), turns
        )
    if kind == "gradient":

        def descend(layers: Any, x: Any) -> Any:
            def loss(layers: Any) -> Any:
                return (mlp(x, layers) ** 2).mean()

            return lax.fori_loop(0, turns, lambda _, p: jax.tree.map(lambda a, b: a - 0.01 * b, p, jax.grad(loss)(p)), layers)

        return GeneratedPart("loop", descend, (layers, x), turns)
    if kind in ("lstm", "gru", "scan", "lstm gradient"):
        inputs = draw.array(turns, rows, width)
        kernels = (draw.weights(width, 4 * width), draw.weights(width, 4 * width), jnp.zeros(4 * width))
        step = lstm
        if kind == "scan":

            def step(state: Any, x: Any, w: Any, u: Any, b: Any) -> Any:
                c, h = state
                c = jax.nn.sigmoid(x) * c + jnp.tanh(h @ w[:, : h.shape[1]]) * x
                return (c, jnp.tanh(c)), c

        if kind == "gru":

            def step(state: Any, x: Any, w: Any, u: Any, b: Any) -> Any:
                c, h = state
                n = h.shape[1]
                r, z = jnp.split(jax.nn.sigmoid(x @ w[:, : 2 * n] + h @ u[:, : 2 * n]), 2, -1)
                h = z * h + (1 - z) * jnp.tanh(x @ w[:, 2 * n : 3 * n] + r * (h @ u[:, 2 * n : 3 * n]))
                return (c, h), h

        def run(x: Any, *kernels: Any) -> Any:
            return lax.scan(lambda s, x: step(s, x, *kernels), (jnp.zeros((rows, width)),) * 2, x)[1]

        if kind == "lstm gradient":
            gradient = jax.grad(lambda kernels, x: (run(x, *kernels) ** 2).mean())
            return GeneratedPart("loop", gradient, (kernels, inputs), turns)
        return GeneratedPart("loop", run, (inputs, *kernels), turns)
    if kind == "points":
        count = draw.size(64, 2048)

        def move(state: Any) -> Any:
            p, v = state
            r = jnp.linalg.norm(p, axis=-1, keepdims=True) + 0.1
            v = v - 0.01 * p / r**3
            return p + 0.01 * v, v

        return GeneratedPart(
            "loop",
            lambda p, v: lax.fori_loop(0, turns, lambda _, s: move(s), (p, v)),
            (draw.array(count, 3), draw.array(count, 3)),
            turns,
        )
    if kind == "attention":
        heads, length, depth = draw.one_of(4, 8), draw.round_size(32, 512), draw.one_of(16, 32, 64)
        keys, values = draw.array(heads, length, depth), draw.array(heads, length, depth)

        def attend(q: Any, k: Any, v: Any) -> Any:
            return jnp.einsum("ht,htd->hd", jax.nn.softmax(jnp.einsum("hd,htd->ht", q, k) * depth**-0.5), v)

        return GeneratedPart(
            "loop",
            lambda q, k, v: lax.fori_loop(0, turns, lambda _, q: attend(q, k, v), q),
            (draw.array(heads, depth), keys, values),
            turns,
        )
    size = draw.size(2000, 300_000)
    chain = _chain(draw, draw.size(2, 10))
    return GeneratedPart(
        "loop",
        lambda x, y: lax.fori_loop(0, turns, lambda _, x: jnp.tanh(chain(x, y)), x),
        (draw.array(size), draw.array(size)),
        turns,
    )


def _updates(draw: Draw) -> GeneratedPart:
    count = draw.size(2, 40)
    shapes = [draw.split(draw.size(32, draw.one_of(2_000, 40_000, 600_000)), draw.one_of(1, 2)) for _ in range(count)]
    params, grads = ([draw.array(*shape) for shape in shapes] for _ in range(2))

    def sgd(params: Any, grads: Any) -> Any:
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)]

    def clipped(params: Any, grads: Any) -> Any:
        norm = jnp.sqrt(sum((g * g).sum() for g in grads))
        return [p - 0.1 * g / jnp.maximum(norm, 1.0) for p, g in zip(params, grads, strict=True)]

    def momentum(params: Any, grads: Any, m: Any) -> Any:
        m = [0.9 * a + g for a, g in zip(m, grads, strict=True)]
        return [p - 0.1 * a for p, a in zip(params, m, strict=True)], m

    def adam(params: Any, grads: Any, m: Any, v: Any) -> Any:
        m = [0.9 * a + 0.1 * g for a, g in zip(m, grads, strict=True)]
        v = [0.99 * a + 0.01 * g * g for a, g in zip(v, grads, strict=True)]
        return [p - 0.1 * (a / (jnp.sqrt(b) + 1e-8) + 0.01 * p) for p, a, b in zip(params, m, v, strict=True)], m, v

    update, moments = draw.one_of((sgd, 0), (clipped, 0), (momentum, 1), (adam, 2))
    zeros = [jnp.zeros(shape) for shape in shapes]
    return GeneratedPart("updates", update, (params, grads, *[zeros] * moments))


def _product(draw: Draw) -> GeneratedPart:
    dtype = draw.one_of(np.float32, np.float32, np.float32, jnp.bfloat16)
    kind = draw.one_of("dense", "dense", "batch", "squares", "chain", "vector", "einsum", "transposed")
    m, k, n = (draw.round_size(1, 1024) for _ in range(3))
    activation = draw.one_of(jax.nn.relu, jnp.tanh, jax.nn.gelu, lambda x: x)
    if kind == "batch":
        b, m, k, n = draw.size(2, 512), draw.size(1, 64), draw.size(1, 64), draw.size(1, 64)
        return GeneratedPart("product", lambda x, y: x @ y, (draw.array(b, m, k, dtype=dtype), draw.array(b, k, n, dtype=dtype)))
    if kind == "squares":
        b, side = draw.size(64, 30_000), draw.size(2, 8)
        arrays = (draw.array(b, side, side), draw.array(b, side, side))
        return GeneratedPart("product", lambda x, y: activation(x @ y), arrays)
    if kind == "vector":
        k, n = draw.round_size(64, 4096), draw.round_size(64, 4096)
        return GeneratedPart(
            "product", lambda x, w: activation(x @ w), (draw.array(1, k, dtype=dtype), draw.weights(k, n, dtype))
        )
    if kind == "einsum":
        b, t, h, d = draw.size(1, 8), draw.round_size(8, 256), draw.one_of(2, 4, 8), draw.one_of(16, 32, 64)
        return GeneratedPart(
            "product",
            lambda x, y: jnp.einsum("bqhd,bkhd->bhqk", x, y),
            (draw.array(b, t, h, d, dtype=dtype), draw.array(b, t, h, d, dtype=dtype)),
        )
    if kind == "transposed":
        return GeneratedPart(
            "product", lambda x, w: activation(x.T @ w), (draw.array(k, m, dtype=dtype), draw.weights(k, n, dtype))
        )
    if kind == "chain":
        depth = draw.size(2, 12)
        k = draw.round_size(8, 512)
        layers = [draw.weights(k, k, dtype) for _ in range(depth)]

        def apply(x: Any, layers: Any) -> Any:
            for layer in layers:
                x = activation(x @ layer)
            return x

        return GeneratedPart("product", apply, (draw.array(draw.round_size(1, 256), k, dtype=dtype), layers))
    return GeneratedPart(
        "product",
        lambda x, w, b: activation(x @ w + b),
        (draw.array(m, k, dtype=dtype), draw.weights(k, n, dtype), draw.array(n, dtype=dtype)),
    )


def _convolution(draw: Draw) -> GeneratedPart:
    dtype = draw.one_of(np.float32, np.float32, np.float32, jnp.bfloat16)
    batch, side = draw.size(1, 4), draw.round_size(4, 64)
    inputs, outputs = draw.one_of(1, 3, 16, 32, 64, 128), draw.one_of(4, 16, 32, 64, 128)
    taps, stride = draw.one_of(1, 3, 3, 5, 7), draw.one_of(1, 1, 2)
    kind = draw.one_of("plain", "plain", "plain", "last", "depthwise", "grouped", "line", "transposed", "volume")
    if kind == "last":  # layers of a classifier: few pixels of many channels
        side, taps = min(side, 14), min(taps, 3)
        inputs, outputs = draw.one_of(128, 256, 512), draw.one_of(128, 256, 512)
    activation = draw.one_of(jax.nn.relu, jax.nn.silu, lambda x: x)
    if kind == "depthwise":
        x, w = draw.array(batch, side, side, inputs, dtype=dtype), draw.array(taps, taps, 1, inputs, dtype=dtype)
        groups = inputs
    elif kind == "grouped":
        groups = draw.one_of(2, 4, 8)
        inputs, outputs = max(groups, inputs // groups * groups), max(groups, outputs)
        x = draw.array(batch, side, side, inputs, dtype=dtype)
        w = draw.array(taps, taps, inputs // groups, outputs, dtype=dtype)
    elif kind == "line":
        x, w, groups = draw.array(batch, side * 8, inputs, dtype=dtype), draw.array(taps, inputs, outputs, dtype=dtype), 1
    elif kind == "volume":
        side = min(side, 20)
        inputs, outputs = min(inputs, 16), min(outputs, 32)
        x, w, groups = draw.array(1, side, side, side, inputs), draw.array(3, 3, 3, inputs, outputs), 1
    else:
        x, w, groups = draw.array(batch, side, side, inputs, dtype=dtype), draw.array(taps, taps, inputs, outputs, dtype=dtype), 1
    spatial = "DHW"[-(x.ndim - 2) :]
    numbers = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")

    def convolve(x: Any, w: Any) -> Any:
        if kind == "transposed":
            return activation(lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=numbers))
        strides = (stride,) * (x.ndim - 2)
        return activation(lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=numbers, feature_group_count=groups))

    return GeneratedPart("convolution", convolve, (x, w))


def _norm(x: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _network(draw: Draw) -> GeneratedPart:
    batch, length, width = draw.size(1, 8), draw.round_size(4, 256), draw.one_of(32, 64, 128, 256)
    heads = draw.one_of(2, 4, 8)
    x = draw.array(batch, length, width)
    weights = {name: draw.weights(width, width) for name in "qkvo"}
    weights |= {"up": draw.weights(width, 4 * width), "down": draw.weights(4 * width, width)}
    kind = draw.one_of("attention", "causal", "block", "block gradient", "mlp gradient", "convolutions", "norm")

    def attention(w: Any, x: Any) -> Any:
        q, k, v = ((x @ w[name]).reshape(batch, length, heads, -1).swapaxes(1, 2) for name in "qkv")
        scores = q @ k.swapaxes(2, 3) * (width // heads) ** -0.5
        return (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(batch, length, width) @ w["o"]

    def block(w: Any, x: Any) -> Any:
        x = x + attention(w, _norm(x))
        return x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"]

    def mlp(w: Any, x: Any) -> Any:
        return jax.nn.relu(x @ w["up"]) @ w["down"]

    if kind == "attention":
        return GeneratedPart("network", attention, (weights, x))
    if kind == "causal":
        length, depth = draw.round_size(64, 2048), draw.one_of(32, 64)

        def causal(q: Any, k: Any, v: Any) -> Any:
            scores = q @ k.swapaxes(1, 2) * depth**-0.5
            earlier = jnp.arange(length)[:, None] >= jnp.arange(length)[None]
            return jax.nn.softmax(jnp.where(earlier, scores, -jnp.inf)) @ v

        return GeneratedPart("network", causal, tuple(draw.array(batch, length, depth) for _ in range(3)))
    if kind == "block":
        return GeneratedPart("network", block, (weights, x))
    if kind == "norm":
        return GeneratedPart("network", lambda w, x: _norm(x) @ w["q"], (weights, x))
    if kind == "convolutions":
        side, channels = draw.round_size(8, 40), draw.one_of(8, 16, 32, 64)
        kernels = [draw.array(3, 3, channels, channels) * 0.1 for _ in range(draw.size(2, 6))]

        def convolutions(kernels: Any, x: Any) -> Any:
            for kernel in kernels:
                y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
                x = jax.nn.relu(_norm(y)) + x
            return x.mean((1, 2))

        return GeneratedPart("network", convolutions, (kernels, draw.array(batch, side, side, channels)))
    model = block if kind == "block gradient" else mlp
    loss = jax.grad(lambda w, x: (model(w, x) ** 2).mean())
    return GeneratedPart("network", loss, (weights, x))


def _rows(draw: Draw) -> GeneratedPart:
    rows, width = draw.size(4, 8192), draw.round_size(2, 2048)
    while rows * width > 4_000_000:
        rows //= 2
    x = draw.array(max(1, rows), width)
    labels = draw.integers(width, max(1, rows))

    def entropy(x: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(x), labels[:, None], -1).mean()

    return GeneratedPart(
        "rows",
        *draw.one_of(
            (jax.nn.softmax, (x,)),
            (_norm, (x,)),
            (lambda x: x.argmax(-1), (x,)),
            (lambda x: jax.nn.logsumexp(x, -1), (x,)),
            (entropy, (x, labels)),
            (jax.grad(entropy), (x, labels)),
            (lambda x: jnp.cumsum(x, -1), (x,)),
            (lambda x: jnp.cumsum(x, 0), (x,)),
            (lambda x: x.sum(0) + x.max(0), (x,)),
            (lambda x: x / jnp.sqrt((x * x).sum(0) + 1), (x,)),
        ),
    )


def _cumulative(draw: Draw) -> GeneratedPart:
    operation = draw.one_of(lax.cumsum, lax.cumprod, lax.cummax, lax.cumlogsumexp)
    shape = draw.split(draw.size(200, 2_000_000), draw.one_of(1, 2))
    axis = draw.one_of(*range(len(shape)))
    return GeneratedPart("cumulative", lambda x: operation(x, axis), (draw.array(*shape) * 0.1,))


def _moves(draw: Draw) -> GeneratedPart:
    rows, width = draw.size(16, 2048), draw.round_size(4, 1024)
    steps = draw.one_of(1, 1, 2, 4)

    def diffuse(x: Any) -> Any:
        for _ in range(steps):
            x = x + 0.1 * (sum(jnp.roll(x, shift, axis) for axis in (0, 1) for shift in (1, -1)) - 4 * x)
        return x

    x = draw.array(rows, width)
    points = draw.size(16, 8000)
    indices = draw.integers(rows, points)
    updates = draw.array(points, min(width, 64))
    return GeneratedPart(
        "moves",
        *draw.one_of(
            (lambda x: x.T * 2, (x,)),
            (lambda x: jnp.concatenate([x, x * 2, jnp.tanh(x)], -1), (x,)),
            (lambda x: jnp.pad(x, ((1, 1), (2, 2))) * 2, (x,)),
            (diffuse, (x,)),
            (diffuse, (x,)),
            (lambda x: x[1:-1, 1:-1] * 0.5 + x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2], (x,)),
            (lambda x, i: x[i] * 2, (x, indices)),
            (lambda x, u, i: x[:, : u.shape[1]].at[i].add(u), (x, updates, indices)),
            (lambda u, i: jax.ops.segment_sum(u * 2, i, rows), (updates, indices)),
            (lambda x, i: jax.nn.one_hot(i, 64) @ x[:64], (draw.array(64, width), draw.integers(64, draw.size(4, 2000)))),
            (lambda x, y: lax.dynamic_update_slice(x * 2, y, (3, 1)), (x, x[:4, :3])),
            (lambda x: jnp.flip(x, 0) + x, (x,)),
            (lambda x: x.reshape(rows, -1, 2)[..., 0] * x.reshape(rows, -1, 2)[..., 1], (draw.array(rows, width // 2 * 2),)),
            (lambda x: jnp.repeat(x, 2, 0), (x,)),
            (lambda x: lax.associative_scan(jnp.add, x), (x[:512],)),
        ),
    )


def _states(draw: Draw) -> GeneratedPart:
    length, width = draw.round_size(16, 512), draw.round_size(8, 1024)

    def combine(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return GeneratedPart(
        "state spaces",
        lambda a, b: lax.associative_scan(combine, (jax.nn.sigmoid(a), b))[1],
        (draw.array(length, width), draw.array(length, width)),
    )


def _images(draw: Draw) -> GeneratedPart:
    batch, side, channels = draw.size(1, 8), draw.round_size(8, 128), draw.one_of(1, 3, 8, 32, 64)
    x = draw.array(batch, side, side, channels)
    window = draw.one_of(2, 3)

    def pool(x: Any, init: float, op: Any) -> Any:
        return lax.reduce_window(x, init, op, (1, window, window, 1), (1, 2, 2, 1), "SAME")

    return GeneratedPart(
        "images",
        *draw.one_of(
            (lambda x: pool(x, -jnp.inf, lax.max), (x,)),
            (lambda x: pool(x, 0.0, lax.add) / window**2, (x,)),
            (lambda x: jax.image.resize(x, (batch, 2 * side, 2 * side, channels), "nearest"), (x,)),
            (lambda x: jax.image.resize(x, (batch, side // 2, side // 2, channels), "bilinear"), (x,)),
            (lambda x: x.mean((1, 2)), (x,)),
            (lambda x: (x - x.mean((1, 2), keepdims=True)) / jnp.sqrt(x.var((1, 2), keepdims=True) + 1e-5), (x,)),
            (lambda x: x[:, ::2, ::2] * 0.25 + x[:, 1::2, 1::2] * 0.25, (x[:, : side // 2 * 2, : side // 2 * 2],)),
        ),
    )


def _sorts(draw: Draw) -> GeneratedPart:
    x = draw.array(draw.size(1, 400), draw.size(10, 3000))
    k = min(x.shape[1], draw.size(1, 60))
    return GeneratedPart(
        "sorts",
        *draw.one_of(
            (lambda x: jnp.sort(x, -1), (x,)),
            (lambda x: jnp.sort(x, 0), (x,)),
            (lambda x: jnp.argsort(x, -1), (x,)),
            (lambda x: lax.top_k(x, k), (x,)),
            (lambda x: jnp.median(x, -1), (x,)),
        ),
    )


def _pool_gradients(draw: Draw) -> GeneratedPart:
    batch, side, channels = draw.size(1, 8), draw.round_size(8, 96), draw.one_of(3, 8, 32, 64)
    window, is_last = draw.one_of(2, 3), draw.chance(0.6)
    windows, strides = ((1, window, window, 1), (1, 2, 2, 1)) if is_last else ((1, 1, window, window), (1, 1, 2, 2))

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, windows, strides, "SAME")

    x = draw.array(batch, side, side, channels) if is_last else draw.array(batch, channels, side, side)
    forward, backward = (lambda x, t: jax.jvp(pool, (x,), (t,))), (lambda x, t: jax.vjp(pool, x)[1](t)[0])
    if draw.chance(0.7):
        return GeneratedPart("pool gradients", backward, (x, pool(x)))
    return GeneratedPart("pool gradients", forward, (x, x[::-1]))


def _scatters(draw: Draw) -> GeneratedPart:
    rows, points, columns = draw.size(16, 20_000), draw.size(100, 60_000), draw.one_of(1, 1, 4, 16, 64)
    shape = (columns,) if columns > 1 else ()
    x, updates, index = draw.array(rows, *shape), draw.array(points, *shape), draw.integers(rows, points)
    return GeneratedPart(
        "scatters",
        *draw.one_of(
            (lambda u, i: jax.ops.segment_sum(u, i, rows), (updates, index)),
            (lambda u, i: jax.ops.segment_max(u, i, rows), (updates, index)),
            (lambda x, i, u: x.at[i].set(u), (x, index, updates)),
            (lambda x, i, u: x.at[i].add(jnp.tanh(u)), (x, index, updates)),
        ),
    )


def _weights(draw: Draw) -> GeneratedPart:
    """Few rows through many weights, which come from memory each time."""
    rows, width = draw.one_of(1, 1, 2, 8), draw.round_size(256, 2048)
    total = draw.size(1e7, 6e7)
    weights = tuple(draw.weights(width, width) for _ in range(max(2, min(200, total // width**2))))

    def function(x: Any, *weights: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    return GeneratedPart("weights", function, (draw.array(rows, width), *weights))


def _experts(draw: Draw) -> GeneratedPart:
    """Tokens in groups, each through the weights of its expert."""
    experts, tokens = draw.one_of(4, 8, 16, 64), draw.round_size(8, 2048)
    width, inner = draw.round_size(32, 512), draw.round_size(32, 1024)
    while experts * tokens * width * inner > 1e10:
        tokens = max(1, tokens // 2)
    sizes = np.bincount(np.asarray(draw.integers(experts, tokens)), minlength=experts).astype(np.int32)
    dtype = draw.one_of(np.float32, np.float32, jnp.bfloat16)
    up = draw.array(experts, width, inner, dtype=dtype) * np.asarray(width**-0.5, dtype)
    down = draw.array(experts, inner, width, dtype=dtype) * np.asarray(inner**-0.5, dtype)
    x = draw.array(tokens, width, dtype=dtype)

    def layer(x: Any, up: Any, down: Any, sizes: Any) -> Any:
        return lax.ragged_dot(jax.nn.silu(lax.ragged_dot(x, up, sizes)), down, sizes)

    return GeneratedPart("experts", *draw.one_of((lax.ragged_dot, (x, up, sizes)), (layer, (x, up, down, sizes))))


def _decoding(draw: Draw) -> GeneratedPart:
    """A decoder that writes one row of its caches a turn and reads all of them."""
    turns, depth, heads = 16, draw.size(1, 4), draw.one_of(4, 8)
    width, length, batch = heads * draw.one_of(16, 32, 64), draw.round_size(32, 512), draw.round_size(1, 8)
    words = draw.round_size(200, 4000)
    dtype = draw.one_of(np.float32, np.float32, jnp.bfloat16)
    is_tied = draw.chance(0.5)

    def weights(inputs: int, outputs: int) -> Any:
        return draw.weights(inputs, outputs, dtype=dtype)

    layers = [
        (weights(width, 3 * width), weights(width, width), weights(width, 4 * width), weights(4 * width, width))
        for _ in range(depth)
    ]
    table, last = draw.array(words, width, dtype=dtype), weights(width, words)
    caches = [tuple(jnp.zeros((batch, length, heads, width // heads), dtype) for _ in range(2)) for _ in range(depth)]

    def normal(x: Any) -> Any:
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)

    def step(turn: Any, state: Any, layers: Any, table: Any, last: Any) -> Any:
        tokens, caches = state
        x, written = table[tokens], []
        for (into, out, up, down), cache in zip(layers, caches, strict=True):
            query, *new = (part.reshape(batch, 1, heads, -1) for part in jnp.split(normal(x) @ into, 3, -1))
            keys, values = (lax.dynamic_update_slice_in_dim(old, row, turn, 1) for old, row in zip(cache, new, strict=True))
            scores = jnp.einsum("bqhd,bkhd->bhqk", query, keys) * (width // heads) ** -0.5
            scores = jax.nn.softmax(jnp.where(jnp.arange(length) <= turn, scores, -jnp.inf), -1)
            x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, values).reshape(batch, width) @ out
            x = x + jax.nn.gelu(normal(x) @ up) @ down
            written.append((keys, values))
        words_of = x @ (table.T if is_tied else last)
        # In bfloat16 equal words are many, and the sides would go on with others.
        chosen = jnp.argmax(words_of, -1) if dtype is np.float32 else tokens + (words_of.max(-1) > 0)
        return chosen, written

    def decode(tokens: Any, caches: Any, layers: Any, table: Any, last: Any) -> Any:
        return lax.fori_loop(0, turns, lambda turn, state: step(turn, state, layers, table, last), (tokens, caches))

    return GeneratedPart("decoding", decode, (draw.integers(words, batch), caches, layers, table, last), turns)


GENERATORS: dict[str, Callable[[Draw], GeneratedPart]] = {
    "small": _small,
    "trailing": _trailing,
    "loop": _loop,
    "updates": _updates,
    "large": _large,
    "product": _product,
    "convolution": _convolution,
    "network": _network,
    "rows": _rows,
    "moves": _moves,
    "images": _images,
    "state spaces": _states,
    "cumulative": _cumulative,
    "long": _long,
    "sorts": _sorts,
    "pool gradients": _pool_gradients,
    "scatters": _scatters,
    "weights": _weights,
    "experts": _experts,
    "decoding": _decoding,
}
# Those that the paragraph on losses names come more often.
_OFTEN = ("small", "trailing", "loop", "loop", "updates")


def generated(count: int, seed: int) -> Iterator[GeneratedPart]:
    """Draw `count` parts, the same for the same seed."""
    kinds = (*GENERATORS, *_OFTEN)
    for index in range(count):
        yield GENERATORS[kinds[index % len(kinds)]](Draw(seed * 1_000_003 + index))
