"""One training of one variant: accuracy on images that it has not seen, with branches and folded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from aspen_jax import aspen
from aspen_jax.report.difference import largest_difference
from benchmarks.codesign.branches import Branches
from benchmarks.codesign.design import Recipe, Variant
from benchmarks.codesign.images import CLASSES, Images
from benchmarks.zoo.network.in_jax import in_jax

_WEIGHT_DECAY = 1e-2
_WARM_UP = 0.1  # of all steps


def train(images: Images, variant: Variant, recipe: Recipe, seed: int, on_epoch: Callable[[], object]) -> dict[str, Any]:
    """Train by aspen, with the seed for weights, order and shifts.

    Returns:
        `accuracy` of the branches, `folded_accuracy`, the `difference` of the folded outputs as a share of the largest, and
        `loss` of the last epoch.
    """
    model = Branches(
        recipe.shape, variant.activation, nnx.Rngs(seed), deepened=variant.deepened, channels=images.x.shape[-1], classes=CLASSES
    )
    steps = images.trained // recipe.step_images
    optimizer = nnx.Optimizer(model, _adamw(recipe.rate, recipe.epochs * steps), wrt=nnx.Param)
    model.train()
    losses: list[jax.Array] = []
    random = np.random.default_rng(seed)
    for _ in range(recipe.epochs):
        losses = [_step(model, optimizer, x, y) for x, y in _batches(images, recipe, random)]
        on_epoch()
    model.eval()
    x, y = jnp.asarray(images.x[images.trained :]), images.y[images.trained :]
    branches = np.asarray(nnx.jit(Branches.__call__)(model, x))
    apply = jax.jit(in_jax(variant.describe(recipe.shape, x.shape)))
    folded = np.asarray(apply(model.folded(), x))
    return {
        "accuracy": float((branches.argmax(1) == y).mean()),
        "folded_accuracy": float((folded.argmax(1) == y).mean()),
        "difference": largest_difference(folded, branches),
        "loss": float(np.mean(losses)),
    }


@functools.cache  # the same object for every seed, so that JAX compiles a variant's step once
def _adamw(rate: float, steps: int) -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(0, rate, int(_WARM_UP * steps), steps)
    return optax.adamw(schedule, weight_decay=_WEIGHT_DECAY)


def _batches(images: Images, recipe: Recipe, random: np.random.Generator) -> Iterator[tuple[jax.Array, jax.Array]]:
    """An epoch; the last images are left out where they fill no batch."""
    shift = recipe.shift
    order = random.permutation(images.trained)
    for start in range(0, images.trained - recipe.step_images + 1, recipe.step_images):
        chosen = order[start : start + recipe.step_images]
        background = images.x.min()
        padded = np.pad(images.x[chosen], ((0, 0), (shift, shift), (shift, shift), (0, 0)), constant_values=background)
        height, width = images.x.shape[1:3]
        moved = [
            image[top : top + height, left : left + width]
            for image, (top, left) in zip(padded, random.integers(0, 2 * shift + 1, (recipe.step_images, 2)), strict=True)
        ]
        yield jnp.asarray(np.stack(moved)), jnp.asarray(images.y[chosen])


@aspen
def _step(model: Branches, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    def loss(model: Branches) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value
