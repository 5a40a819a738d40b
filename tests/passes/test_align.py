"""Channels that are no whole vectors: padded once, by whom, at what price, and with the same results (Bolt, section 3.2.3)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import aspen
from aspen_jax.ops.stack import STACK, parts_of
from aspen_jax.passes import run_passes, storage
from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.products.alignment import advice
from aspen_jax.targets.cuda.products.matrices import Matrices
from benchmarks.in_float64 import all_in_float64
from tests.targets.cuda import cuda_check
from tests.targets.cuda.cuda_check import ops_of, trace_of

RNG = np.random.default_rng(0)
GPU = Gpu(places=1)


def weights(*shape):
    return jnp.asarray(RNG.standard_normal(shape) / np.sqrt(np.prod(shape[:-1])), jnp.bfloat16)


FIRST, SECOND, THIRD = weights(3, 3, 64, 46), weights(3, 3, 46, 46), weights(1, 1, 46, 64)
BIAS = weights(46)
IMAGE = RNG.standard_normal((2, 9, 11, 64)).astype(jnp.bfloat16)


def conv(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def known(x):
    """Three convolutions of 46 channels between them, with a bias and a residual."""
    y = jax.nn.relu(conv(x, FIRST) + BIAS)
    y = jax.nn.silu(conv(y, SECOND) + y)
    return conv(y, THIRD)


def given(x, first, second, bias):
    return conv(jax.nn.relu(conv(x, first) + bias), second)


def apart(ops):
    """The ops, with the parts of chains instead of the chains."""
    return [part for op in ops for part in (parts_of(op) if op.family is STACK else [op])]


def shapes(ops, family="conv2d"):
    return [(op.inputs[0].shape[-1], op.output.shape[-1]) for op in apart(ops) if op.family.name == family]


def test_known_weights_are_padded_once_and_convolutions_write_the_padding():
    ops = ops_of(known, [IMAGE], GPU)
    assert shapes(ops) == [(64, 48), (48, 48), (48, 64)]
    assert [op.family.name for op in apart(ops)] == ["conv2d"] * 3


def test_what_is_given_is_padded_by_ops_of_its_own():
    ops = ops_of(given, [IMAGE, FIRST, SECOND, BIAS], GPU)
    assert shapes(ops)[0] == (64, 48)
    pads = [op for op in ops if op.family.name == "pad"]
    assert sorted(op.output.shape for op in pads) == [(3, 3, 48, 46), (3, 3, 64, 48), (48,)]
    assert all(op.name.endswith(storage.PADDED) for op in pads)


def test_an_input_of_odd_channels_is_padded_by_an_op():
    ops = ops_of(lambda x: conv(x, SECOND), [IMAGE[..., :46]], GPU)
    assert [op.family.name for op in ops] == ["pad", "conv2d"]
    assert shapes(ops) == [(48, 46)]  # the result is the caller's


@pytest.mark.parametrize("places", [1, 264])
@pytest.mark.sweep
def test_results_are_the_same(places):
    gpu = Gpu(places=places)
    for function, operands in ((known, [IMAGE]), (given, [IMAGE, FIRST, SECOND, BIAS])):
        cuda_check.check(function, *operands, gpu=gpu, tolerance=2e-2)


def test_what_other_ops_read_has_the_channels_that_it_had():
    def function(x):
        y = jax.nn.relu(conv(x, FIRST))
        return conv(y, THIRD), y.max((1, 2)), jnp.cumsum(y, 3)

    ops = ops_of(function, [IMAGE], GPU)
    assert shapes(ops) == [(64, 48), (48, 64)]
    assert all(op.inputs[0].shape[-1] == 46 for op in ops if op.family.name in ("reduce", "cumulative"))
    cuda_check.check(function, IMAGE, gpu=GPU, tolerance=2e-2)


def test_padding_that_would_not_stay_finite_is_not_written():
    ops = ops_of(lambda x: conv(jnp.log(conv(x, FIRST)), THIRD), [IMAGE], GPU)
    assert shapes(ops) == [(64, 46), (48, 64)]

    def towers(x):
        """Behind the channels are 1, e, 15 and 3e6, and then nothing finite."""
        y = jnp.exp(conv(x, FIRST))
        for _ in range(4):
            y = jnp.exp(conv(y, SECOND) + y)
        return conv(y, THIRD)

    assert shapes(ops_of(towers, [IMAGE], GPU)) == [(64, 48), (48, 48), (48, 48), (48, 48), (48, 46), (48, 64)]


def test_few_channels_float32_and_cpus_are_left_alone():
    few = weights(3, 3, 3, 64)
    assert shapes(ops_of(lambda x: conv(x, few), [IMAGE[..., :3]], GPU)) == [(3, 64)]  # more than a third more to multiply
    exact = jax.ShapeDtypeStruct(IMAGE.shape, np.float32)
    assert shapes(ops_of(lambda x: conv(x, FIRST.astype(np.float32)), [exact], GPU)) == [(64, 46)]
    (part,) = trace_of(known, [IMAGE]).parts
    assert not any(op.name.endswith(storage.PADDED) for op in run_passes(part).ops)


def test_explain_prints_what_padding_takes_and_advises():
    text = str(aspen(given, device="cuda").explain(IMAGE, FIRST, SECOND, BIAS))
    assert "padding to whole vectors: " in text
    dense = jax.ShapeDtypeStruct((46, 1000), jnp.bfloat16), jax.ShapeDtypeStruct((128, 46), jnp.bfloat16)
    text = str(aspen(lambda w, x: x @ w, device="cuda").explain(*dense))
    assert "46 elements summed: 48 would do" in text
    assert "blocks of products:" in text
    assert "default; nothing like it was timed" in text
    text = str(aspen(lambda w, x: x @ w).explain(*dense))
    assert "advice" not in text
    assert "blocks of products" not in text


# Products of odd columns

TABLE, MATRIX, ODD_BOTH = weights(203, 64), weights(64, 203), weights(63, 203)


def by_table(x, token):
    """The logits of a language model whose words are embedded by the same table."""
    return (x + TABLE[token]) @ TABLE.T


def product_and_program(function, *operands):
    (part,) = trace_of(function, operands).parts
    program = cuda_check.prepared(part, GPU)
    (op,) = (op for op in program.ops if op.family.name == "matmul")
    return op, program


@pytest.mark.parametrize("rows", [1, 8, 40])
def test_known_weights_of_odd_columns_lie_along_the_depth(rows):
    x = RNG.standard_normal((rows, 64)).astype(jnp.bfloat16)
    for function, operands in ((by_table, (x, np.int32(3))), (lambda x: x @ MATRIX, (x,))):
        op, program = product_and_program(function, *operands)
        assert op.output.shape == (rows, 203), "nothing is padded"
        assert op.inputs[1].value in dict(program.constants)
        assert op.inputs[1].value.shape == (203, 64)
        matrices = Matrices.of(op)
        assert matrices is not None
        assert (matrices.right.step, matrices.right.vector_along(64), matrices.columns_vector(op)) == (1, 8, None)
        assert advice(op) is None


def test_other_weights_lie_as_they_did():
    def lies(function, *operands):
        op, _ = product_and_program(function, *operands)
        return op.inputs[1].view.strides()

    x, even, wide = RNG.standard_normal((40, 64)).astype(jnp.bfloat16), weights(64, 200), MATRIX.astype(np.float32)
    assert lies(lambda x: x @ ODD_BOTH, x[:, :63]) == (203, 1)
    assert lies(lambda x: x @ wide, x.astype(np.float32)) == (203, 1)
    assert lies(lambda x: x @ even, x) == (200, 1)
    assert lies(lambda x, w: x @ w, x, MATRIX) == (203, 1), "arguments would be copied in each call"
    assert lies(lambda x, table: x @ table.T, x, TABLE) == (1, 64)
    assert lies(lambda x: x.T @ MATRIX, x.T.copy()) == (203, 1), "rows are read in single elements"


@pytest.mark.parametrize(("rows", "warpgroups"), [(1, False), (40, False), (40, True)])
def test_exactly_the_odd_columns_are_stored(rows, warpgroups):
    x = RNG.standard_normal((rows, 64)).astype(jnp.bfloat16)
    (expected,) = all_in_float64(by_table, x, np.int32(5))
    (found,) = cuda_check.run_on_host(by_table, (x, np.int32(5)), gpu=GPU, warpgroups=warpgroups)
    assert found.shape == expected.shape
    assert np.abs(found.astype(np.float64) - expected).max() <= 1e-2 * np.abs(expected).max()
