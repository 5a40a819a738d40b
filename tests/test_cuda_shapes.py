"""Shapes of CUDA kernels: what Python decides of them, and that C++ has the same fields."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.cuda import pool
from aspen_jax.cuda.kernel import Strides, constant
from tests.cuda_check import ops_of

HEADERS = Path(__file__).parents[1] / "cuda" / "kernels"

SHAPES = [Strides, pool.PoolShape]


def arrays(*shapes, dtype=np.float32):
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def op_of(function, operands, family):
    """The only op of a family in a function."""
    (op,) = (op for op in ops_of(function, operands) if op.family.name == family)
    return op


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_fields_are_those_of_the_struct_in_their_order(shape):
    text = "\n".join(file.read_text() for file in sorted(HEADERS.glob("*.h")))
    (body,) = re.findall(rf"^struct {shape.__name__} {{\n(.*?)^}};", text, re.MULTILINE | re.DOTALL)
    declarations = [line.split("//")[0].strip() for line in body.splitlines()]
    fields = [
        re.sub(r"\[.*?\]", "", name).strip()
        for line in declarations
        if line
        for name in line.rstrip(";").split(" ", 1)[1].split(",")
    ]
    assert fields == [field.name for field in dataclasses.fields(shape)]


def test_constants_are_initializers():
    assert constant(Strides(2, (-7, 1))) == "Strides{.rank = 2, .of = {-7, 1}}"
    assert constant((True, (), 1 << 40)) == "{true, {}, 1099511627776}"


def test_pooling_counts_the_places_between_elements():
    def function(x):
        padding = ((0, 0), (1, 2))
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 2), padding, base_dilation=(1, 2), window_dilation=(1, 4))

    shape = pool.PoolShape.of(op_of(function, arrays((300, 70)), "pool"), start=5)
    assert shape == pool.PoolShape(2, (1, 3), (1, 2), (0, 1), (1, 4), (1, 2), (300, 139), 5)
