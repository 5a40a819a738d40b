"""Programs that are cut along their batch: each part gives its own entries, or the program is not cut."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.frontend import trace
from aspen_jax.ops.reference import evaluate
from aspen_jax.primitive.batch import Batched

NUMBERS = ("NHWC", "HWIO", "NHWC")


def _rows(x, at):
    return jax.vmap(lambda row, place: row[place])(x, at[:, 0])


def _windows(x, at):
    return jax.vmap(lambda row, place: lax.dynamic_slice(row, place[:1], (2,)))(x, at)


def _spread(x, at):
    """Windows at both ends of two entries: each reads its own, but the padding lies on different sides."""
    return lax.conv_general_dilated(x.reshape(1, 2, 1, -1), at, (2, 1), ((1, 1), (0, 0)), dimension_numbers=NUMBERS)


X = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
AT = np.random.default_rng(1).integers(0, 6, (8, 2)).astype(np.int32)
KERNEL = np.random.default_rng(2).normal(size=(2, 1, 3, 4)).astype(np.float32)
PAIR = np.random.default_rng(3).normal(size=(2, 3)).astype(np.float32)

CUT = {
    "an element of each row": (_rows, X, AT),
    "a window of each row": (_windows, X, AT),
    "the largest of each row": (lambda x, at: lax.top_k(x, 3)[0] + at[:, :1], X, AT),
    "columns": (lambda x, at: x[:, at[0]], X, AT[:1]),
    "entries of a period": (lambda x, at: jnp.tanh(x).reshape(-1)[3::8] + at[:, 0], X, AT),
    "a reversed row": (lambda x, at: jnp.tanh(x)[:, ::-1] + at[:, :1], X, AT),
}

WHOLE = {
    "a diagonal": (lambda x, at: jnp.tanh(x).reshape(-1)[::9] + at[:, 0], X, AT),
    "the other diagonal": (lambda x, at: jnp.tanh(x).reshape(-1)[7:-1:7] + at[:, 0], X, AT),
    "a convolution with padding at both ends": (lambda x, at: _spread(x, at).reshape(2, -1), PAIR, KERNEL),
    "padding at both ends": (lambda x, at: lax.pad(jnp.tanh(x), at[0, 0], ((1, 1, 0), (0, 0, 0)))[:3:2], PAIR, PAIR),
}


def _program(fun, *arguments):
    """The program of a function, without constants, and an array for each of its inputs."""
    traced = trace.trace(jax.make_jaxpr(fun)(*arguments))
    (program,) = traced.parts
    arrays = dict(zip(traced.inputs, arguments, strict=True)) | dict(program.constants)
    inputs = (*program.inputs, *(value for value, _ in program.constants))
    return program.replace(inputs=inputs, constants=()), [arrays[value] for value in inputs]


@pytest.mark.one_mode("nothing is compiled")
@pytest.mark.parametrize("name", [*CUT, *WHOLE])
def test_each_part_gives_its_own_entries(name):
    function, *arguments = {**CUT, **WHOLE}[name]
    program, arrays = _program(function, *arguments)
    (whole,) = evaluate(program, *arrays)
    np.testing.assert_allclose(whole, function(*arguments), rtol=1e-5, atol=1e-6)
    batched = Batched.of(program)
    parts = None if batched is None else batched.part(2)
    assert (parts is not None) == (name in CUT)
    if batched is None or parts is None:
        return
    for half in range(2):
        own = [
            np.split(np.asarray(array), 2)[half] if value in batched.values else array
            for value, array in zip(program.inputs, arrays, strict=True)
        ]
        (got,) = evaluate(parts, *own)
        np.testing.assert_allclose(got, np.split(np.asarray(whole), 2)[half], rtol=1e-5, atol=1e-6)
