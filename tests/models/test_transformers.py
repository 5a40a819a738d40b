"""The zoo's transformers at small sizes: one custom call each, forward and backward as the undecorated function."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from aspen_jax import CUSTOM_CALL_TARGET, aspen
from aspen_jax.report.difference import largest_difference
from benchmarks.zoo import bert, gpt2, llama, vit
from benchmarks.zoo.model import Model, Size, of_network
from benchmarks.zoo.transformer import Config

SMALL = Config(layers=2, width=48, heads=4, hidden=80, tokens=13, vocabulary=57)
LLAMA = llama.LlamaConfig(**{**dataclasses.asdict(SMALL), "heads": 6, "key_heads": 2})
IMAGES = dataclasses.replace(SMALL, tokens=9, vocabulary=11)

BUILDS = {
    "bert": lambda batch: of_network("bert", bert.bert(Size(batch), config=SMALL)),
    "gpt2": lambda batch: of_network("gpt2", gpt2.gpt2(Size(batch), config=SMALL)),
    "gpt2-decode": lambda batch: gpt2.build_decode(SMALL, batch),
    "vit": lambda batch: of_network("vit", vit.vit(Size(batch), config=IMAGES)),
    "llama": lambda batch: llama.build("llama", LLAMA, batch),
}


@pytest.fixture(params=BUILDS)
def model(request) -> Model:
    return BUILDS[request.param](3)


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(expected)), "zeros would compare equal whatever was computed"
    assert largest_difference(actual, expected) <= tolerance


def test_forward_is_one_custom_call_and_as_undecorated(model):
    compiled = jax.jit(aspen(model.apply, weights=0, strict=True)).lower(*model.arguments).compile()
    assert compiled.as_text().count(f'custom_call_target="{CUSTOM_CALL_TARGET}"') == 1
    assert " dot(" not in compiled.as_text()
    assert_same(compiled(*model.arguments), jax.jit(model.apply)(*model.arguments))


@pytest.mark.sweep
def test_gradient_is_as_undecorated(model):
    def gradient(apply):
        def loss(params):
            outputs = jax.tree.leaves(apply(params, *model.inputs))
            return sum((output**2).mean() for output in outputs)

        return jax.jit(jax.grad(loss))(model.params)

    expected = jax.tree.leaves(gradient(model.apply))
    for actual, wanted in zip(jax.tree.leaves(gradient(aspen(model.apply, weights=0))), expected, strict=True):
        scale = max(
            np.abs(wanted).max(), 1e-3 * max(np.abs(leaf).max() for leaf in expected)
        )  # of some biases it is all rounding
        assert np.abs(actual - wanted).max() <= 1e-4 * scale


def test_decoding_continues_what_was_read():
    read = BUILDS["gpt2"](2)
    (token_ids,) = read.inputs
    head_width = SMALL.width // SMALL.heads
    empty = jax.numpy.zeros((2, SMALL.heads, SMALL.tokens, head_width))
    cache = [(empty, empty) for _ in range(SMALL.layers)]
    decode = jax.jit(aspen(gpt2.decode, weights=0))
    steps = []
    for position in range(SMALL.tokens):
        step, cache = decode(read.params, token_ids[:, position], cache, jax.numpy.int32(position))
        steps.append(step)
    assert_same(np.stack(steps, axis=1), np.asarray(read.apply(*read.arguments)), 1e-4)


def test_padding_has_no_say():
    model = BUILDS["bert"](2)
    token_ids, segments, mask = model.inputs
    encode = aspen(model.apply, weights=0)
    hidden, pooled = encode(model.params, token_ids, segments, mask)
    other_hidden, other_pooled = encode(model.params, jax.numpy.where(mask, token_ids, 5), segments, mask)
    np.testing.assert_allclose(np.asarray(hidden)[np.asarray(mask)], np.asarray(other_hidden)[np.asarray(mask)], atol=1e-5)
    np.testing.assert_allclose(pooled, other_pooled, atol=1e-5)
