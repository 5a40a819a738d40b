"""NCHW networks: which ops transpose, on CPUs and on GPUs, and that results are right (Bolt, section 3.2.3)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import apu
from aspen_jax.ops.block import BLOCK
from aspen_jax.passes import run_passes
from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.products.conv_tile import ConvTileShape
from tests.targets.cuda import cuda_check
from tests.tracing import traced

RNG = np.random.default_rng(0)
WEIGHTS = [RNG.standard_normal(shape, np.float32) / 8 for shape in ((32, 3, 3, 3), (32, 32, 3, 3), (32, 32, 3, 3))]
DENSE = RNG.standard_normal((32, 10), np.float32)
IMAGE = RNG.standard_normal((2, 3, 20, 24), np.float32)


def conv(x, w, stride=1):
    return lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))


def network(x):
    """A stem, a residual block and a head, as a PyTorch model has them; weights are known."""
    first, second, third = (jnp.asarray(w, x.dtype) for w in WEIGHTS)
    y = jax.nn.relu(conv(x, first, 2))
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    y = jax.nn.relu(conv(jax.nn.relu(conv(y, second)), third) + y)
    return y.mean((2, 3)) @ jnp.asarray(DENSE, x.dtype)


def transposing(ops):
    return [op.output.shape for op in ops if op.family is BLOCK]


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_an_nchw_network_has_no_transposing_launch_on_a_gpu(dtype):
    ops = cuda_check.ops_of(network, [IMAGE.astype(dtype)], Gpu(places=1))
    assert transposing(ops) == []
    first = next(op for op in ops if op.family.name == "conv2d")
    shape = ConvTileShape.of(first)
    assert shape is not None
    if first.inputs[0].shape[3] == 3:
        assert (shape.input.of, shape.input_vector) == ((3 * 20 * 24, 24, 1, 20 * 24), 1)
    else:  # elements of 16 bits are read as whole vectors: one launch writes the image with a fourth channel
        assert (first.inputs[0].dtype, shape.input_vector) == (jnp.bfloat16, 8)
    assert ConvTileShape.of(ops[ops.index(first) + 2]) is not None
    assert all(op.inputs[0].view.strides()[3] == 1 for op in ops if op.family.name == "conv2d" and op is not first)


@pytest.mark.parametrize("places", [1, 264])
def test_an_nchw_network_is_right_on_the_played_gpu(places):
    cuda_check.check(cuda_check.exactly(network), IMAGE, gpu=Gpu(places=places), tolerance=1e-4)


def test_what_a_copy_puts_into_vectors_is_copied_on_a_gpu():
    image = RNG.standard_normal((2, 32, 20, 24), np.float32)
    ops = cuda_check.ops_of(lambda x: conv(x, jnp.asarray(WEIGHTS[1])), [image], Gpu(places=1))
    assert (2, 20, 24, 32) in transposing(ops)


def test_what_is_rewritten_in_place_is_not_read_behind_its_copy():
    def function(x):
        x = jnp.cumsum(x, 0)
        return conv(x, jnp.asarray(WEIGHTS[0])).sum((1, 2, 3)), jnp.cumsum(x.at[0, 1].set(0.0), 1)

    cuda_check.check(cuda_check.exactly(function), IMAGE, tolerance=1e-4)


def test_an_nchw_network_is_transposed_once_on_a_cpu():
    """The stem's input alone: to read it through its view takes longer (docs/results/algorithms.md)."""
    program, _ = traced(network, IMAGE)
    ops = run_passes(program, {"winograd"}).ops
    assert transposing(ops) == [(2, 20, 24, 3)]
    (result,) = apu.build(run_passes(program), 2, apu.Machine()).run(IMAGE)
    np.testing.assert_allclose(result, jax.jit(network)(IMAGE), rtol=1e-3, atol=1e-3)
