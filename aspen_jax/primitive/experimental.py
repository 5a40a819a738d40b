"""Rules of `aspen_call` for transformations of `jax.experimental`, which keep their tables in modules of their own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from jax.experimental import jet
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from aspen_jax.primitive.choices import Choices
from aspen_jax.primitive.primitive import aspen_call_p, call


def register_loaded() -> None:
    """Adds the rule for `jax.experimental.sparse` where the program has imported that; it takes a third of a second."""
    sparse = sys.modules.get("jax.experimental.sparse.transform")
    if sparse is not None:
        sparse.sparse_rules_bcoo.setdefault(aspen_call_p, _sparsify)


def _jet(primals: Sequence[Any], series: Sequence[Any], *, call_jaxpr: ClosedJaxpr, choices: Choices) -> tuple[Any, Any]:
    return call(
        lambda *terms: jet.jet(jaxpr_as_fun(call_jaxpr), *terms, factorial_scaled=False), (primals, series), {}, choices=choices
    )


jet.jet_rules[aspen_call_p] = _jet


def _sparsify(buffers: Any, *values: Any, call_jaxpr: ClosedJaxpr, choices: Choices) -> Any:
    from jax.experimental.sparse import transform

    arrays = transform.spvalues_to_arrays(buffers, values)
    outs = call(transform.sparsify(jaxpr_as_fun(call_jaxpr)), arrays, {}, choices=choices)
    return transform.arrays_to_spvalues(buffers, outs)
