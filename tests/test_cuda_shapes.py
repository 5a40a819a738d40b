"""Shapes of CUDA kernels: what Python decides of them, and that C++ has the same fields."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.cuda import concatenate, cumulative, elementwise, gather, pad, pool
from aspen_jax.cuda.kernel import Strides, constant
from tests.cuda_check import ops_of

HEADERS = Path(__file__).parents[1] / "cuda" / "kernels"

SHAPES = [
    Strides,
    concatenate.ConcatenateShape,
    cumulative.CumulativeShape,
    elementwise.ElementwiseShape,
    gather.GatherShape,
    pad.PadShape,
    pool.PoolShape,
]


def arrays(*shapes, dtype: Any = np.float32):
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


def test_padding_counts_the_places_between_elements():
    def function(x):
        return lax.pad(x, np.float32(0), ((1, 2, 0), (-3, 1, 2)))

    assert pad.PadShape.of(op_of(function, arrays((300, 70)), "pad")) == pad.PadShape(2, (1, -3), (1, 3), (300, 208))


def test_runs_of_a_concatenation_lie_in_one_piece():
    def shape(axis, *shapes):
        operands = arrays(*shapes)
        return concatenate.ConcatenateShape.of(op_of(lambda *x: jnp.concatenate(x, axis), operands, "concatenate"))

    assert shape(0, (30, 64), (7, 64)) == concatenate.ConcatenateShape(0, 4)
    assert shape(1, (300, 64), (300, 32)) == concatenate.ConcatenateShape(1, 4)
    assert shape(1, (300, 62), (300, 34)) == concatenate.ConcatenateShape(1, 2)
    assert shape(1, (300, 63), (300, 33)) == concatenate.ConcatenateShape(1, 1)


def test_gathering():
    def function(x, i):
        return x.at[:, i].get(mode="fill", fill_value=-1.0)

    operands = [*arrays((30, 40, 64)), *arrays((50,), dtype=np.int32)]
    bits = int(np.float32(-1).view(np.uint32))
    expected = gather.GatherShape(3, 1, (0, -1, 2), (0, 39, 0), (1,), fills=True, fill=bits, run=4)
    assert gather.GatherShape.of(op_of(function, operands, "gather")) == expected


def test_running_results():
    op = op_of(lambda x: lax.cumsum(x, 1, reverse=True), arrays((300, 70)), "cumulative")
    assert cumulative.CumulativeShape.of(op) == cumulative.CumulativeShape(1, 70, reverse=True)
