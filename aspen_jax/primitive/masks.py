"""Bools that leave a call as numbers: XLA is shown what they were, so that a product with one selects (ops/masks.py)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core

from aspen_jax.frontend.trace import called_jaxpr


def as_mask(array: Any) -> jax.Array:
    """The same ones and zeros, in sight of XLA as a converted bool."""
    return lax.convert_element_type(array != 0, array.dtype)


def masks(jaxpr: core.Jaxpr) -> set[Any]:
    """The variables of a jaxpr that are bools converted to floats."""
    found: set[Any] = set()
    for equation in jaxpr.eqns:
        called = called_jaxpr(equation)
        if called is not None:
            inner = masks(called.jaxpr)
            pairs = zip(equation.outvars, called.jaxpr.outvars, strict=True)
            found.update(outvar for outvar, var in pairs if isinstance(var, core.Var) and var in inner)
        elif equation.primitive.name == "convert_element_type":
            source, target = (getattr(atom.aval, "dtype", None) for atom in (equation.invars[0], equation.outvars[0]))
            if source == np.bool_ and target is not None and jax.dtypes.issubdtype(target, np.floating):
                found.update(equation.outvars)
    return found
