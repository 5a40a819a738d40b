"""The fingerprint of a function: what a device and a server compare before they run two halves of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from aspen_jax.api.flat import FlatCall
from aspen_jax.split.equations import FlatJaxpr

_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


def fingerprint(call: FlatCall, flat: FlatJaxpr) -> bytes:
    """SHA-256 of a call: its equations, and the bytes of the constants and weights that they read.

    Two processes get the same one for the same source, weights, argument shapes and version of JAX. Another version of JAX may
    trace other equations, and then a cut would mean another place.

    Args:
        call: the call.
        flat: its equations.

    Returns:
        32 bytes.
    """
    state = hashlib.sha256(f"{call.structure.tree}{jax.tree.structure(call.result)}".encode())
    _add_value(state, call.structure.static)
    _add_equations(state, tuple(flat.constants), flat.inputs, flat.equations, flat.outputs)
    _add_value(state, [*flat.constants.values(), *(call.leaves[index] for index in sorted(call.weights))])
    return state.digest()


def _add_closed(state: Any, closed: core.ClosedJaxpr) -> None:
    for constant in closed.consts:
        _add_value(state, constant)
    _add_jaxpr(state, closed.jaxpr)


def _add_jaxpr(state: Any, jaxpr: core.Jaxpr) -> None:
    _add_equations(state, jaxpr.constvars, jaxpr.invars, jaxpr.eqns, jaxpr.outvars)


def _add_equations(
    state: Any, constants: Sequence[Any], inputs: Sequence[Any], equations: Sequence[core.JaxprEqn], outputs: Sequence[Any]
) -> None:
    numbers: dict[Any, int] = {}

    def add(atoms: Sequence[Any]) -> None:
        for atom in atoms:
            if isinstance(atom, core.Literal):
                _add_value(state, atom.val)
            else:
                state.update(f"{numbers.setdefault(atom, len(numbers))}:{atom.aval};".encode())

    add(constants)
    add(inputs)
    for equation in equations:
        state.update(f"{equation.primitive.name}(".encode())
        add(equation.invars)
        for name in sorted(equation.params):
            state.update(f"{name}=".encode())
            _add_value(state, equation.params[name])
        add(equation.outvars)
    state.update(b"return ")
    add(outputs)


def _add_value(state: Any, value: Any) -> None:
    if isinstance(value, core.ClosedJaxpr):
        _add_closed(state, value)
    elif isinstance(value, core.Jaxpr):
        _add_jaxpr(state, value)
    elif isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        state.update(str(value.dtype).encode())
        _add_value(state, jax.random.key_data(value))
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        state.update(f"{value.dtype}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    elif isinstance(value, Mapping):
        _add_value(state, sorted(value.items(), key=repr))
    elif isinstance(value, list | tuple):
        state.update(f"{type(value).__name__}[{len(value)}](".encode())
        for item in value:
            _add_value(state, item)
    elif isinstance(value, set | frozenset):  # their order differs between processes
        _add_value(state, sorted(map(repr, value)))
    elif callable(value):
        state.update(getattr(value, "__qualname__", type(value).__qualname__).encode())
    else:
        state.update(_ADDRESS.sub("", repr(value)).encode())
    state.update(b";")
