"""Functions as the Programs that passes and the APU see."""

from __future__ import annotations

import jax
import numpy as np
from jax.extend import core

from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Program


def traced(function, *arguments) -> tuple[Program, list[np.ndarray]]:
    """The one part of a function, and its inputs in order."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    assert not trace.fallbacks, trace.fallbacks
    (program,) = trace.parts
    arrays = dict(zip(trace.inputs, jax.tree.leaves(arguments), strict=True))
    return program, [arrays[value] for value in program.inputs]
