"""jaxpr -> custom calls and what stays with XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from aspen_jax.errors import UnsupportedError
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.primitive.choices import Choices


def closed(function, *arguments) -> core.ClosedJaxpr:
    jaxpr = jax.make_jaxpr(function)(*arguments)
    return core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts)


def test_a_jaxpr_is_compiled_once():
    jaxpr = closed(jnp.exp, np.ones(3, np.float32))
    assert compile_jaxpr(jaxpr, Options()) is compile_jaxpr(jaxpr, Options())


def test_one_jaxpr_closed_over_other_constants_is_another_function():
    table, x = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    jaxpr = closed(lambda x: x + table, x)
    assert jaxpr.consts, "the table is closed over"
    for factor in (1, 2, 3):
        other = core.ClosedJaxpr(jaxpr.jaxpr, [factor * np.asarray(const) for const in jaxpr.consts])
        (result,) = jax.jit(compile_jaxpr(other, Options()).call)(x)
        np.testing.assert_array_equal(result, x + factor * table)


def test_parts_and_fallbacks_run_in_order():
    x = np.random.default_rng(0).standard_normal((100, 500), np.float32)

    def function(x):
        return jax.lax.lgamma(jnp.exp(x))[:, ::2] * 2 + jnp.argmax(x, axis=1)[:, None]

    compiled = compile_jaxpr(closed(function, x), Options())
    assert len(compiled.parts) == 2
    (result,) = jax.jit(compiled.call)(x)
    np.testing.assert_allclose(result, jax.jit(function)(x), rtol=1e-6)


def test_strict_names_primitive_shapes_line_and_remedy():
    with pytest.raises(UnsupportedError, match=r"(?s)lgamma\(float32\[4\]\) at .*test_compile.py:\d+: .*strict=False"):
        compile_jaxpr(closed(lambda x: jax.lax.lgamma(x) + 1, np.ones(4, np.float32)), Options(Choices(strict=True)))
