"""Networks on images, rendering and image processing."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.clients.program import NARROW, Client, Program, add, cast, client, integers, library, normal, weights

_IMAGES = ("NHWC", "HWIO", "NHWC")


def _unet(dtype: Any, batch: int) -> Program:
    """The denoiser of a diffusion model on images of 32x32."""
    nn = library("flax.linen")
    norm = functools.partial(nn.GroupNorm, 8, dtype=dtype)
    conv = functools.partial(nn.Conv, kernel_size=(3, 3), dtype=dtype)

    class Residual(nn.Module):
        channels: int

        @nn.compact
        def __call__(self, x: Any, time: Any) -> Any:
            y = conv(self.channels)(nn.silu(norm()(x)))
            y = y + nn.Dense(self.channels, dtype=dtype)(nn.silu(time))[:, None, None, :]
            y = conv(self.channels)(nn.silu(norm()(y)))
            if x.shape[-1] != self.channels:
                x = nn.Conv(self.channels, (1, 1), dtype=dtype)(x)
            return x + y

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            pixels = norm()(x).reshape(len(x), -1, x.shape[-1])
            return x + nn.MultiHeadDotProductAttention(4, dtype=dtype)(pixels, pixels).reshape(x.shape)

    class Denoiser(nn.Module):
        @nn.compact
        def __call__(self, x: Any, time: Any) -> Any:
            residual: Any = Residual
            attention: Any = Attention
            frequencies = jnp.exp(-jnp.log(10000.0) * jnp.arange(64) / 64)
            angles = time[:, None] * frequencies
            time = nn.Dense(256, dtype=dtype)(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))
            time = nn.Dense(256, dtype=dtype)(nn.silu(time))
            x = conv(64)(x)
            skips = [x]
            widths = (64, 128, 192)
            for level, channels in enumerate(widths):
                for _ in range(2):
                    x = residual(channels)(x, time)
                    if level == 2:
                        x = attention()(x)
                    skips.append(x)
                if level < 2:
                    x = conv(channels, strides=(2, 2))(x)
                    skips.append(x)
            x = residual(192)(attention()(residual(192)(x, time)), time)
            for level, channels in reversed(list(enumerate(widths))):
                for _ in range(3):
                    x = residual(channels)(jnp.concatenate([x, skips.pop()], -1), time)
                if level > 0:
                    size = (len(x), 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
                    x = conv(channels)(jax.image.resize(x, size, "nearest"))
            return conv(3)(nn.silu(norm()(x)))

    model: Any = Denoiser()
    x, time = normal(0, batch, 32, 32, 3), jnp.full((batch,), 500.0)
    params = model.init(jax.random.key(1), x, time)
    if dtype is not None:
        params, x = cast((params, x), dtype)
    return model.apply, (params, x, time)


add(Client("unet", functools.partial(_unet, None), ("flax",), is_faster=True))
add(Client("unet-bfloat16", functools.partial(_unet, jnp.bfloat16), ("flax",), is_faster=True, tolerance=NARROW))
add(Client("unet-float16", functools.partial(_unet, jnp.float16), ("flax",), is_faster=True, tolerance=NARROW))


def _mixer(dtype: Any, batch: int) -> Program:
    """An MLP-Mixer on images of 224x224."""
    nn = library("flax.linen")

    class Mlp(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dense(x.shape[-1], dtype=dtype)(nn.gelu(nn.Dense(self.width, dtype=dtype)(x)))

    class Mixer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            mlp: Any = Mlp
            x = nn.Conv(384, (16, 16), (16, 16), dtype=dtype)(x).reshape(len(x), -1, 384)
            for _ in range(8):
                x = x + mlp(192)(nn.LayerNorm(dtype=dtype)(x).swapaxes(1, 2)).swapaxes(1, 2)
                x = x + mlp(1536)(nn.LayerNorm(dtype=dtype)(x))
            return nn.Dense(1000, dtype=dtype)(nn.LayerNorm(dtype=dtype)(x).mean(1))

    model: Any = Mixer()
    x = normal(0, batch, 224, 224, 3)
    params = model.init(jax.random.key(1), x)
    if dtype is not None:
        params, x = cast((params, x), dtype)
    return model.apply, (params, x)


add(Client("mixer", functools.partial(_mixer, None), ("flax",), is_faster=True))
add(Client("mixer-bfloat16", functools.partial(_mixer, jnp.bfloat16), ("flax",), is_faster=True, tolerance=NARROW))


@client("flax", is_faster=True)
def convnext(batch: int) -> Program:
    """Two stages of a ConvNeXt: depthwise convolutions of 7x7, norms, wide products."""
    nn = library("flax.linen")

    class Stages(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            x = nn.LayerNorm()(nn.Conv(96, (4, 4), (4, 4))(x))
            for width in (96, 192):
                if x.shape[-1] != width:
                    x = nn.Conv(width, (2, 2), (2, 2))(nn.LayerNorm()(x))
                for _ in range(3):
                    y = nn.LayerNorm()(nn.Conv(width, (7, 7), feature_group_count=width)(x))
                    x = x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(y)))
            return x.mean((1, 2))

    model: Any = Stages()
    x = normal(0, batch, 128, 128, 3)
    return model.apply, (model.init(jax.random.key(1), x), x)


@client("flax", "optax", is_faster=True)
def cnn_training(batch: int) -> Program:
    """A training step of a small network with batch norms, by gradient descent with momentum."""
    nn, optax = library("flax.linen"), library("optax")

    class Cnn(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for channels, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
                x = nn.Conv(channels, (3, 3), (stride, stride), use_bias=False)(x)
                x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
            x = nn.max_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
            return nn.Dense(10)(nn.relu(nn.Dense(256)(x)))

    model: Any = Cnn()
    images, labels = normal(0, 8 * batch, 32, 32, 3), integers(1, 10, 8 * batch)
    variables = model.init(jax.random.key(2), images)
    optimizer = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1, 0.9))

    def loss(params: Any, statistics: Any, images: Any, labels: Any) -> Any:
        logits, new = model.apply({"params": params, "batch_stats": statistics}, images, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new["batch_stats"]

    def step(params: Any, statistics: Any, state: Any, images: Any, labels: Any) -> Any:
        (value, statistics), gradient = jax.value_and_grad(loss, has_aux=True)(params, statistics, images, labels)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), statistics, state, value

    params = variables["params"]
    return step, (params, variables["batch_stats"], optimizer.init(params), images, labels)


@client(is_faster=True)
def nerf(batch: int) -> Program:
    """Volume rendering of rays through a network of positions and directions."""
    encoded, width, samples = 63, 256, 64
    sizes = [encoded, *[width] * 6]
    skip = 4
    layers = [
        (weights(i, inputs + encoded * (i == skip), outputs) * 1.4, jnp.zeros(outputs))
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes))
    ]
    heads = (weights(8, width, 1), weights(9, width, width), weights(10, width + 27, 128), weights(11, 128, 3))

    def encode(x: Any, levels: int) -> Any:
        return jnp.concatenate([x, *(f(2.0**level * x) for level in range(levels) for f in (jnp.sin, jnp.cos))], -1)

    def render(layers: Any, heads: Any, origins: Any, directions: Any, key: Any) -> Any:
        to_density, to_feature, to_hidden, to_colour = heads
        depth = jnp.linspace(2.0, 6.0, samples) + jax.random.uniform(key, (len(origins), samples)) * (4 / samples)
        positions = encode(origins[:, None] + depth[..., None] * directions[:, None], 10)
        x = positions
        for index, (weight, bias) in enumerate(layers):
            if index == skip:
                x = jnp.concatenate([x, positions], -1)
            x = jax.nn.relu(x @ weight + bias)
        density = jax.nn.relu((x @ to_density)[..., 0])
        views = jnp.broadcast_to(encode(directions, 4)[:, None], (*x.shape[:2], 27))
        hidden = jax.nn.relu(jnp.concatenate([x @ to_feature, views], -1) @ to_hidden)
        steps = jnp.concatenate([jnp.diff(depth), jnp.full((len(origins), 1), 1e10)], -1)
        opacity = 1 - jnp.exp(-density * steps)
        clear = jnp.concatenate([jnp.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], -1)
        share = opacity * jnp.cumprod(clear, -1)[:, :-1]
        return (share[..., None] * jax.nn.sigmoid(hidden @ to_colour)).sum(1), (share * depth).sum(-1)

    directions = normal(2, batch * 64, 3)
    directions = directions / jnp.linalg.norm(directions, axis=-1, keepdims=True)
    return render, (layers, heads, jnp.zeros((batch * 64, 3)), directions, jax.random.key(5))


@client("dm_pix", is_faster=True)
def image_pipeline(batch: int) -> Program:
    """Sharpening, colours, edges, a low pass by Fourier transform, similarity, a maximum of neighbours."""
    pix = library("dm_pix")

    def pipeline(images: Any) -> Any:
        blurred = pix.gaussian_blur(images, 3.0, 13)
        sharp = jnp.clip(images + 0.7 * (images - blurred), 0, 1)
        contrast = pix.adjust_contrast(pix.adjust_saturation(sharp, 1.2), 1.1)
        gray = pix.rgb_to_grayscale(contrast)
        sobel = jnp.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1.0]])

        def filtered(kernel: Any) -> Any:
            return lax.conv_general_dilated(gray, kernel[:, :, None, None], (1, 1), "SAME", dimension_numbers=_IMAGES)

        edges = jnp.sqrt(filtered(sobel) ** 2 + filtered(sobel.T) ** 2 + 1e-9)
        spectrum = jnp.fft.rfft2(gray[..., 0])
        squared = jnp.fft.fftfreq(gray.shape[1])[:, None] ** 2 + jnp.fft.rfftfreq(gray.shape[2])[None] ** 2
        low = jnp.fft.irfft2(spectrum * jnp.exp(-squared * 200), s=gray.shape[1:3])
        strongest = lax.reduce_window(edges, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
        return edges, low, pix.ssim(images, contrast), strongest

    return pipeline, (jax.random.uniform(jax.random.key(0), (batch, 256, 256, 3)),)


@client(is_faster=True)
def convolution_3d(batch: int) -> Program:
    def convolve(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1, 1), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))

    return convolve, (normal(0, batch, 16, 32, 32, 16), normal(1, 3, 3, 3, 16, 32))


@client(is_faster=True)
def grouped_convolution(batch: int) -> Program:
    def convolve(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=_IMAGES, feature_group_count=8)

    return convolve, (normal(0, batch, 56, 56, 128), normal(1, 3, 3, 16, 128))


@client(is_faster=True)
def transposed_convolution(batch: int) -> Program:
    def convolve(x: Any, kernel: Any) -> Any:
        return lax.conv_transpose(x, kernel, (2, 2), "SAME", dimension_numbers=_IMAGES)

    return convolve, (normal(0, batch, 32, 32, 64), normal(1, 4, 4, 64, 64))


@client(is_faster=True)
def meta_learning(batch: int) -> Program:
    """MAML: a gradient through two inner steps of a small network."""

    def apply(params: Any, x: Any) -> Any:
        for kernel in params["kernels"]:
            x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=_IMAGES))
        return x.mean((1, 2)) @ params["dense"]

    def entropy(params: Any, x: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(apply(params, x)), labels[:, None], 1).mean()

    def task(params: Any, x: Any, labels: Any, asked: Any, answers: Any) -> Any:
        for _ in range(2):
            gradient = jax.grad(entropy)(params, x, labels)
            params = jax.tree.map(lambda param, change: param - 0.1 * change, params, gradient)
        return entropy(params, asked, answers)

    def step(params: Any, *tasks: Any) -> Any:
        return jax.value_and_grad(lambda params: jax.vmap(functools.partial(task, params))(*tasks).mean())(params)

    kernels = [normal(i, 3, 3, inputs, 32) * (2 / (9 * inputs)) ** 0.5 for i, inputs in enumerate((1, 32, 32))]
    labels = jnp.arange(5)
    return step, (
        {"kernels": kernels, "dense": normal(3, 32, 5) / 6},
        normal(4, batch, 5, 28, 28, 1),
        jnp.tile(labels, (batch, 1)),
        normal(5, batch, 15, 28, 28, 1),
        jnp.tile(labels, (batch, 3)),
    )
