"""What a model of the zoo is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.zoo.network.in_jax import in_jax
from benchmarks.zoo.network.network import Network
from benchmarks.zoo.network.parameters import calibrated, draw, draw_inputs


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a model's inputs are.

    Attributes:
        batch: examples a call.
        image_size: height and width of images; each model's own by default.
        tokens: length of texts; each model's own by default.
    """

    batch: int = 1
    image_size: int | None = None
    tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Model:
    """A model with seeded parameters and inputs.

    Attributes:
        name: its name in the zoo.
        apply: the function (params, *inputs) -> outputs.
        params: a pytree of float32 arrays.
        inputs: what it is called with.
        calibrate: gives parameters with which outputs tell inputs apart, where the drawn ones do not.
    """

    name: str
    apply: Callable[..., Any]
    params: Any
    inputs: tuple[Any, ...]
    calibrate: Callable[[], Any] | None = None

    @property
    def arguments(self) -> tuple[Any, ...]:
        """All that `apply` is called with."""
        return (self.params, *self.inputs)

    def calibrated(self) -> Model:
        """The same model, fit to compare results on."""
        return self if self.calibrate is None else dataclasses.replace(self, params=self.calibrate())

    def cast(self, dtype: Any) -> Model:
        """The same model with parameters and inputs of another dtype of floats, and so with all between them."""

        def converted(array: Any) -> Any:
            return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

        params, inputs = jax.tree.map(converted, (self.params, self.inputs))
        return dataclasses.replace(self, params=params, inputs=inputs, calibrate=None)


Build = Callable[[Size], Model]
Describe = Callable[[Size], Network]


def of_network(name: str, network: Network) -> Model:
    """The model that a description stands for."""
    drawn = draw(network)

    def arrays(params: Any) -> Any:
        return jax.tree.map(jnp.asarray, params)

    return Model(name, in_jax(network), arrays(drawn), arrays(draw_inputs(network)), lambda: arrays(calibrated(network, drawn)))
