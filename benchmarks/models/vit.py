"""ViT, a vision transformer: patches of an image as tokens, norms before each half of a block, exact GELU, no mask."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from aspen_jax.errors import InputError
from benchmarks.models.model import Model, Size
from benchmarks.models.transformer import Config, Params, Seeded, attention, dense, feed_forward, layer_norm

PATCH = 16
CLASSES = 1000
BASE = Config(layers=12, width=768, heads=12, hidden=3072, tokens=(224 // PATCH) ** 2, vocabulary=CLASSES)

_EPSILON = 1e-6
_gelu = functools.partial(jax.nn.gelu, approximate=False)


def classify(params: Params, images: jax.Array, *, heads: int) -> jax.Array:
    """Logits of classes, float32 [batch, classes], of images, float32 [batch, height, width, 3]."""
    patches = jax.lax.conv_general_dilated(
        images, params["patches"]["weight"], (PATCH, PATCH), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    batch, width = len(images), patches.shape[-1]
    x = (patches + params["patches"]["bias"]).reshape(batch, -1, width)
    first = jnp.broadcast_to(params["class"], (batch, 1, width))
    x = jnp.concatenate([first, x], axis=1) + params["positions"]
    for block in params["blocks"]:
        x = x + attention(block, layer_norm(block["attention_norm"], x, _EPSILON), heads, None)
        x = x + feed_forward(block, layer_norm(block["hidden_norm"], x, _EPSILON), _gelu)
    return dense(params["head"], layer_norm(params["norm"], x[:, 0], _EPSILON))


def draw(config: Config, seeded: Seeded) -> Params:
    """Seeded parameters."""
    pixels = PATCH * PATCH * 3
    return {
        "patches": {
            "weight": seeded.matrix(pixels, config.width).reshape(PATCH, PATCH, 3, config.width),
            "bias": seeded.around(0, config.width),
        },
        "class": seeded.around(0, config.width),
        "positions": seeded.table(config.tokens + 1, config.width),
        "blocks": [seeded.block(config) for _ in range(config.layers)],
        "norm": seeded.norm(config.width),
        "head": seeded.dense(config.width, config.vocabulary),
    }


def build(name: str, config: Config, batch: int = 1) -> Model:
    """A ViT of these measures; `config.tokens` is the number of patches, a square."""
    seeded = Seeded()
    extent = PATCH * round(config.tokens**0.5)
    images = seeded.normal(batch, extent, extent, 3)
    return Model(name, functools.partial(classify, heads=config.heads), draw(config, seeded), (images,))


def _build_sized(size: Size) -> Model:
    extent = size.image_size or 224
    if extent < PATCH or extent % PATCH:
        raise InputError(
            f"vit-b16 cuts images into squares of {PATCH} pixels, which {extent} is no multiple of; take another size"
        )
    return build("vit-b16", dataclasses.replace(BASE, tokens=(extent // PATCH) ** 2), size.batch)


MODELS = {"vit-b16": _build_sized}
