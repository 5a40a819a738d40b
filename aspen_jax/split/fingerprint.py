"""The fingerprint of a function: what a device and a server compare before they run two halves of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core

from aspen_jax.api.flat import FlatCall
from aspen_jax.errors import InputError
from aspen_jax.split.contents import Contents, Unknown
from aspen_jax.split.equations import WITH_RULES, FlatJaxpr


def fingerprint(call: FlatCall, flat: FlatJaxpr) -> bytes:
    """SHA-256 of a call: its equations, the bytes of constants and weights that they read, and what callbacks hold.

    Two processes get the same one for the same source, weights, argument shapes and version of JAX, and with callbacks of Python.
    Another version of JAX may trace other equations, and then a cut would mean another place. Rules for derivatives do not count:
    no half runs them.

    Args:
        call: the call.
        flat: its equations.

    Returns:
        32 bytes.

    Raises:
        InputError: a callback or a static argument holds what no fingerprint can cover.
    """
    contents = Contents(_add_jaxpr)
    try:
        contents.add(call.structure.tree, "arguments")
        contents.add(jax.tree.structure(call.result), "result")
        contents.add(call.structure.static, "static arguments")
        _add_equations(contents, tuple(flat.constants), flat.inputs, flat.equations, flat.outputs)
        contents.add([*flat.constants.values(), *flat.weights.values()], "constants")
    except Unknown as error:
        raise InputError(
            f"{call.function.__name__} cannot be told from others: {error.where} is {_described(error.value)}, and no "
            "fingerprint covers what that holds; let callbacks and static arguments hold arrays, numbers, text and what pickle "
            "takes"
        ) from None
    except RecursionError:
        raise InputError(
            f"{call.function.__name__} cannot be told from others: a callback or a static argument holds objects too deep inside "
            "of each other; let it hold arrays and numbers"
        ) from None
    return contents.digest()


def _described(value: Any) -> str:
    kind = type(value)
    name = getattr(value, "__name__", "")
    return f"of type {kind.__module__}.{kind.__qualname__}" + (f" ({name})" if isinstance(name, str) and name else "")


def _add_jaxpr(contents: Contents, value: Any) -> bool:
    if isinstance(value, core.ClosedJaxpr):  # asked first: newer versions of JAX make it a kind of Jaxpr
        contents.add(list(value.consts), "constants")
        value = value.jaxpr
    elif not isinstance(value, core.Jaxpr):
        return False
    _add_equations(contents, value.constvars, value.invars, value.eqns, value.outvars)
    return True


def _add_equations(
    contents: Contents,
    constants: Sequence[Any],
    inputs: Sequence[Any],
    equations: Sequence[core.JaxprEqn],
    outputs: Sequence[Any],
) -> None:
    numbers: dict[Any, int] = {}

    def add(atoms: Sequence[Any]) -> None:
        for atom in atoms:
            if isinstance(atom, core.Literal):
                contents.add(atom.val)
            else:
                contents.text(f"{numbers.setdefault(atom, len(numbers))}:{atom.aval}")

    add(constants)
    add(inputs)
    for equation in equations:
        primitive = equation.primitive.name
        contents.text(primitive)
        add(equation.invars)
        for name, value in sorted(equation.params.items()):
            if primitive in WITH_RULES and not isinstance(value, core.ClosedJaxpr | core.Jaxpr):
                continue
            contents.text(name)
            contents.add(value, f"{primitive}.{name}")
        add(equation.outvars)
    contents.text("return")
    add(outputs)
