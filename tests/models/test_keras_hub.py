"""Backbones of KerasHub at tiny sizes, decorated unchanged."""

from __future__ import annotations

import os
import warnings
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from aspen_jax import CUSTOM_CALL_TARGET, aspen
from aspen_jax.report.difference import largest_difference

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it imports warns of itself
    HUB: Any = pytest.importorskip(
        "keras_hub", reason="pip install --no-deps keras-hub && pip install kagglehub regex", exc_type=ImportError
    )

TOKENS, VOCABULARY = 12, 50
SHARED = {"vocabulary_size": VOCABULARY, "num_layers": 2, "hidden_dim": 32, "intermediate_dim": 48}
LONG = {"max_sequence_length": TOKENS}
GROUPED = {"num_query_heads": 4, "num_key_value_heads": 2}
BACKBONES = {
    "BertBackbone": {**SHARED, **LONG, "num_heads": 4},
    "GPT2Backbone": {**SHARED, **LONG, "num_heads": 4},
    "LlamaBackbone": {**SHARED, **GROUPED},
}


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.sweep
def test_backbone_is_as_undecorated(name):
    keras.utils.set_random_seed(0)
    model = getattr(HUB.models, name)(**BACKBONES[name])
    ids = jnp.asarray(np.random.default_rng(0).integers(0, VOCABULARY, (2, TOKENS)), jnp.int32)
    mask = jnp.ones((2, TOKENS), jnp.int32).at[1, 7:].set(0)
    inputs = {"token_ids": ids, "padding_mask": mask}
    if name == "BertBackbone":
        inputs["segment_ids"] = jnp.zeros_like(ids)
    fixed = [variable.value for variable in model.non_trainable_variables]

    def apply(params, inputs):
        return model.stateless_call(params, fixed, inputs, training=False)[0]

    def gradient(apply):
        return jax.jit(jax.grad(lambda params: sum((leaf**2).mean() for leaf in jax.tree.leaves(apply(params, inputs)))))(params)

    params = [variable.value for variable in model.trainable_variables]
    expected = jax.jit(apply)(params, inputs)
    compiled = jax.jit(aspen(apply, strict=True)).lower(params, inputs).compile()
    assert compiled.as_text().count(f'custom_call_target="{CUSTOM_CALL_TARGET}"') == 1
    assert " dot(" not in compiled.as_text()
    assert largest_difference(compiled(params, inputs), expected) <= 1e-5
    wanted = gradient(apply)
    largest = max(np.abs(leaf).max() for leaf in wanted)
    for actual, leaf in zip(gradient(aspen(apply)), wanted, strict=True):
        assert np.abs(actual - leaf).max() <= 1e-4 * max(np.abs(leaf).max(), 1e-2 * largest)  # of some, all is rounding
