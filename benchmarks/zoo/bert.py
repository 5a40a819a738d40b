"""BERT, an encoder: norms behind each half of a block, exact GELU, a padding mask."""

from __future__ import annotations

import functools

from aspen_jax.errors import InputError
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.layers import Activation, Attention, Embedding, First, LayerNorm, Linear, Positions
from benchmarks.zoo.network.network import Network
from benchmarks.zoo.transformer import Config

BASE = Config(layers=12, width=768, heads=12, hidden=3072, tokens=128, vocabulary=30522)
LARGE = Config(layers=24, width=1024, heads=16, hidden=4096, tokens=128, vocabulary=30522)

_NORM = LayerNorm(1e-12)
_POSITIONS = 512


def bert(size: Size, *, config: Config) -> Network:
    """The last hidden states, [batch, tokens, width], and the first token's through one more layer, [batch, width].

    Raises:
        InputError: the text is longer than there are positions.
    """
    tokens = size.tokens or config.tokens
    if tokens > _POSITIONS:
        raise InputError(f"BERT has positions for {_POSITIONS} tokens, not {tokens}; take a shorter text")
    net = Network()
    shape = (size.batch, tokens)
    ids, segments, mask = (
        net.input("token ids", shape, config.vocabulary),
        net.input("segments", shape, 2),
        net.input("mask", shape),
    )
    words = net(ids, Embedding(config.vocabulary, config.width))
    x = net(net.add(words, net(segments, Embedding(2, config.width))), Positions(_POSITIONS), _NORM)
    for _ in range(config.layers):
        x = net(net.add(x, net.with_mask(Attention(config.heads), x, mask)), _NORM)
        x = net(net.add(x, net(x, Linear(config.hidden), Activation("gelu"), Linear(config.width))), _NORM)
    return net.returns(x, net(x, First(), Linear(config.width), Activation("tanh")))


NETWORKS = {
    "bert-base": functools.partial(bert, config=BASE),
    "bert-large": functools.partial(bert, config=LARGE),
}
