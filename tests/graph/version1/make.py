"""Wrote the files of this folder, on 2026-11-28, by a build that wrote version 1, with jax 0.10.2. Kept to show what they hold.

Each graph comes with its inputs and its results: NAME.aspen and NAME.npz. NAME.export is the same function from jax.export.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

from aspen_jax import CUSTOM_CALL_TARGET, aspen

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


_FILTERS, _LAYER = normal(3, 3, 4, 8), normal(8 * 25, 10)


def images(x):
    x = lax.conv_general_dilated(x, _FILTERS, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.softmax(x.reshape(len(x), -1) @ _LAYER)


def tokens(x, w):
    q, k, v = jnp.split(jax.nn.standardize(x) @ w, 3, axis=-1)
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), q @ k.swapaxes(1, 2) / 4, -jnp.inf)
    return x + jax.nn.softmax(scores) @ v, jnp.argmax(x, -1)


def indices(table, at, rows):
    table = jnp.asarray(table).at[at].add(rows)
    return table, jnp.sort(table, axis=0), jnp.cumsum(table[::2], axis=1), jnp.pad(table, ((1, 2), (0, 3)))


CASES = {
    "images": (images, (normal(2, 10, 10, 4),)),
    "tokens": (tokens, (normal(2, 12, 16), normal(16, 48))),
    "indices": (indices, (normal(9, 20), np.array([3, 0, 3], np.int32), normal(3, 20))),
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, (function, arguments) in CASES.items():
        decorated = aspen(function, strict=True)
        decorated.graph(*arguments).save(folder / f"{name}.aspen")
        results = jax.tree.leaves(jax.jit(function)(*arguments))
        np.savez(folder / f"{name}.npz", *arguments, **{f"result{k}": result for k, result in enumerate(results)})
        checks = [export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)]
        exported = export.export(jax.jit(decorated), disabled_checks=checks)(*arguments)
        (folder / f"{name}.export").write_bytes(exported.serialize())
