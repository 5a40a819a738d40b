"""What a client's program is, and the register of all of them."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aspen_jax.report.comparison import TOLERANCE

# The tolerance of programs in bfloat16 or float16, where another order of operations rounds otherwise.
NARROW = 3e-2

Program = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Client:
    """A program of somebody who uses JAX.

    Attributes:
        name: as the command takes it.
        make: from the size of the batch, the function and its arguments.
        needs: names of the modules that it is written against.
        is_faster: tiles were measured to be faster than XLA at it, and have to stay so.
        tolerance: largest difference of the results allowed, as a share of the largest number of an array.
    """

    name: str
    make: Callable[[int], Program]
    needs: tuple[str, ...] = ()
    is_faster: bool = False
    tolerance: float = TOLERANCE

    @property
    def missing(self) -> tuple[str, ...]:
        """Modules that are not installed here."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)


CLIENTS: dict[str, Client] = {}


def client(
    *needs: str, is_faster: bool = False, tolerance: float = TOLERANCE
) -> Callable[[Callable[[int], Program]], Callable[[int], Program]]:
    """Registers a program under its function's name, with hyphens."""

    def register(make: Callable[[int], Program]) -> Callable[[int], Program]:
        name = make.__name__.replace("_", "-")
        add(Client(name, make, needs, is_faster, tolerance))
        return make

    return register


def add(program: Client) -> None:
    """Registers a program."""
    assert program.name not in CLIENTS, program.name
    CLIENTS[program.name] = program


def library(name: str) -> Any:
    """A module that may be absent; types of those that are not installed cannot be checked."""
    return importlib.import_module(name)


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> jax.Array:
    """Random numbers of mean 0 and variance 1."""
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def weights(seed: int, inputs: int, outputs: int) -> jax.Array:
    """A matrix that keeps the variance of what it is applied to."""
    return normal(seed, inputs, outputs) * inputs**-0.5


def integers(seed: int, limit: int, *shape: int) -> jax.Array:
    """Random int32 numbers from 0 to below the limit."""
    return jax.random.randint(jax.random.key(seed), shape, 0, limit)


def cast(tree: Any, dtype: Any) -> Any:
    """The same arrays, those of floats in another dtype."""
    return jax.tree.map(lambda array: array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array, tree)
