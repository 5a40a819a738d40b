"""Small operations of geometry, molecules and control, much of it on rows of three numbers; and operations on large arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.clients.program import Program, client, normal


def _lennard_jones(positions: Any) -> Any:
    """Energy of particles in a periodic box of side 4."""
    apart = jnp.mod(positions[:, None] - positions[None] + 2, 4.0) - 2
    squared = (apart * apart).sum(-1) + jnp.eye(len(positions))
    attraction = 1 / squared**3
    return (attraction * attraction - attraction).sum()


@client()
def lennard_jones(batch: int) -> Program:
    return _lennard_jones, (normal(0, 512 * batch, 3),)


@client()
def lennard_jones_force(batch: int) -> Program:
    return jax.grad(_lennard_jones), (normal(0, 512 * batch, 3),)


@client()
def cross_products(batch: int) -> Program:
    return lambda x: jnp.cross(x, x[::-1]), (normal(1, 512 * batch, 512, 3),)


@client()
def quaternion_rotation(batch: int) -> Program:
    def rotate(quaternion: Any, vector: Any) -> Any:
        axis, angle = quaternion[..., 1:], quaternion[..., :1]
        return vector + 2 * jnp.cross(axis, jnp.cross(axis, vector) + angle * vector)

    return rotate, (normal(2, 65536 * batch, 4), normal(3, 65536 * batch, 3))


@client()
def products_of_3x3(batch: int) -> Program:
    return jnp.matmul, (normal(4, 16384 * batch, 3, 3), normal(5, 16384 * batch, 3, 3))


@client()
def products_of_slices(batch: int) -> Program:
    return lambda a: a[..., 0] * a[..., 1] - a[..., 2] * a[..., 0], (normal(6, 262144 * batch, 3),)


@client(is_faster=True)
def remainder(batch: int) -> Program:
    return lambda x: jnp.mod(x, 1.7), (normal(7, 1048576 * batch),)


@client(is_faster=True)
def cumulative_sum(batch: int) -> Program:
    return jnp.cumsum, (normal(8, 4_000_000 * batch),)


@client(is_faster=True)
def cumulative_logsumexp(batch: int) -> Program:
    return lax.cumlogsumexp, (normal(9, 1_000_000 * batch),)


@client(is_faster=True)
def products_by_4x4(batch: int) -> Program:
    return lambda x, w: jnp.tanh(x @ w), (normal(10, 10_000 * batch, 4, 4), normal(11, 10_000 * batch, 4, 4))


@client()
def roll_stencil(batch: int) -> Program:
    def diffuse(x: Any) -> Any:
        for _ in range(4):
            around = sum(jnp.roll(x, shift, axis) for axis in (0, 1) for shift in (1, -1))
            x = x + 0.1 * (around - 4 * x)
        return x

    return diffuse, (normal(12, 1024, 1024 * batch),)


@client(is_faster=True)
def element_wise_operations(batch: int) -> Program:
    def many(x: Any, y: Any) -> Any:
        for step in range(1000):
            x = x * 0.999 + y * (step % 7) - x * y * 0.001
        return x

    return many, (normal(13, 20_000 * batch), normal(14, 20_000 * batch))
