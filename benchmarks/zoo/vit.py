"""ViT, a vision transformer: patches of an image as tokens, norms before each half of a block, exact GELU, no mask."""

from __future__ import annotations

import functools

from aspen_jax.errors import InputError
from benchmarks.zoo.blocks import CLASSES, conv
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import Activation, Attention, First, LayerNorm, Linear, Positions, Tokens
from benchmarks.zoo.network.network import Network
from benchmarks.zoo.transformer import Config

PATCH = 16
BASE = Config(layers=12, width=768, heads=12, hidden=3072, tokens=(224 // PATCH) ** 2, vocabulary=CLASSES)

_NORM = LayerNorm(1e-6)


def vit(size: Size, *, config: Config) -> Network:
    """Logits of `config.vocabulary` classes; `config.tokens` is the usual number of patches, a square.

    Raises:
        InputError: the image cannot be cut into patches.
    """
    extent = size.image_size or PATCH * round(config.tokens**0.5)
    if extent < PATCH or extent % PATCH:
        raise InputError(f"ViT cuts images into squares of {PATCH} pixels, which {extent} is no multiple of; take another size")
    net = Network()
    patches = net(net.image(size.batch, extent), conv(config.width, PATCH, PATCH, pad=0))
    x = net(patches, Tokens(), Positions(1 + (extent // PATCH) ** 2))
    for _ in range(config.layers):
        x = net.add(x, net(x, _NORM, Attention(config.heads)))
        x = net.add(x, net(x, _NORM, Linear(config.hidden), Activation("gelu"), Linear(config.width)))
    return net.returns(net(x, _NORM, First(), Linear(config.vocabulary)))


NETWORKS = {"vit-b16": functools.partial(vit, config=BASE)}
