"""CUDA code for whole networks: every op has some, and blocks of networks come out right from the schedule of a GPU."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.ops.reference import evaluate
from aspen_jax.targets.cuda.code.kernel import UnsupportedOp
from aspen_jax.targets.cuda.code.source import translation_unit
from aspen_jax.targets.cuda.passes.fit import fitted
from benchmarks import zoo
from benchmarks.zoo.network.in_jax import in_jax
from tests.random_programs import random_program
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check, exactly, ops_of, random
from tests.tile_graphs import build_with_random_tiles

needs_compiler = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")

DTYPES = {"image": np.float32, "token ids": np.int32, "segments": np.int32, "mask": np.bool_}


@pytest.mark.parametrize("name", zoo.NETWORKS)
@pytest.mark.sweep
def test_every_op_of_every_network_has_a_kernel(name):
    network = zoo.describe(name)
    shapes = {
        node: {key: jax.ShapeDtypeStruct(shape, np.float32) for key, shape in own.items()}
        for node, own in network.parameter_shapes().items()
    }
    inputs = [jax.ShapeDtypeStruct(what.shape, DTYPES[what.kind]) for what in network.inputs.values()]
    ops = ops_of(in_jax(network), (shapes, *inputs))
    translation_unit(ops, "")  # raises where an op has none
    # Nothing that multiplies is left to a thread an element.
    products = [op for op in ops if op.family.name in ("conv2d", "matmul")]
    assert products
    for op in products:
        assert "ByElement<" not in translation_unit([op], ""), op


@needs_compiler
@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sweep
def test_random_programs_over_random_views_and_boxes(seed):
    program = random_program(seed)
    program = fitted(program.replace(ops=tuple(dataclasses.replace(op, exact=True) for op in program.ops)))
    rng = np.random.default_rng(seed)
    inputs = [(3 * rng.standard_normal(value.shape)).astype(value.dtype) for value in program.inputs]
    try:
        graph = build_with_random_tiles(program, seed, reuse=True)
        results, of_own = (cuda_host.run(program, graph, *inputs, seed=seed, shares=shares) for shares in (True, False))
    except UnsupportedOp as error:
        pytest.skip(str(error))  # weights in panels, which are the CPU's
    for result, own, expected in zip(results, of_own, evaluate(program, *inputs), strict=True):
        np.testing.assert_array_equal(result, own)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(expected).max(initial=0))))


@needs_compiler
@pytest.mark.parametrize("exact", [True, False])
def test_a_transformer_block(exact):
    heads, width, length = 4, 64, 45

    def norm(x, scale, bias):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + 1e-5) * scale + bias

    def function(p, tokens):
        x = p["tokens"][tokens] + p["places"]
        q, k, v = (jnp.einsum("bsd,dhe->bhse", norm(x, *p["norm1"]), w) for w in p["qkv"])
        scores = jnp.einsum("bhqe,bhke->bhqk", q, k) / 4
        scores = jnp.where(jnp.tri(length, dtype=bool), scores, -jnp.inf)
        attended = jnp.einsum("bhqk,bhke->bqhe", jax.nn.softmax(scores, -1), v)
        x = x + jnp.einsum("bqhe,hed->bqd", attended, p["out"])
        x = x + jax.nn.gelu(norm(x, *p["norm2"]) @ p["up"] + p["bias"]) @ p["down"]
        return (norm(x, *p["norm1"]) @ p["tokens"].T)[:, -1], jnp.argmax(x, -1)

    rng = np.random.default_rng(0)
    shapes = {
        "tokens": (50, width),
        "places": (length, width),
        "norm1": [(width,)] * 2,
        "norm2": [(width,)] * 2,
        "qkv": [(width, heads, width // heads)] * 3,
        "out": (heads, width // heads, width),
        "up": (width, 4 * width),
        "bias": (4 * width,),
        "down": (4 * width, width),
    }
    is_shape = {"is_leaf": lambda item: isinstance(item, tuple)}
    parameters = jax.tree.map(lambda shape: rng.standard_normal(shape).astype(np.float32) / 8, shapes, **is_shape)
    tokens = rng.integers(0, 50, (2, length)).astype(np.int32)
    if exact:
        check(exactly(function), parameters, tokens, tolerance=2e-5)
    else:
        check(lambda *arguments: function(*arguments)[0], parameters, tokens, tolerance=1e-2)


@needs_compiler
def test_inverted_residuals():
    def conv(x, w, step=1, groups=1):
        numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": groups}
        return lax.conv_general_dilated(x, w, (step, step), "SAME", **numbers)

    def block(x, weights, step):
        up, depthwise, squeeze, excite, down = weights
        y = jax.nn.silu(conv(x, up))
        y = jax.nn.silu(conv(y, depthwise, step, y.shape[3]))
        scale = jax.nn.sigmoid(jax.nn.relu(y.mean((1, 2)) @ squeeze) @ excite)
        y = conv(y * scale[:, None, None], down)
        return x + y if y.shape == x.shape else y

    def function(p, x):
        x = jax.nn.silu(conv(x, p[0], 2))
        for weights, step in ((p[1], 1), (p[2], 2), (p[3], 1)):
            x = block(x, weights, step)
        return jax.nn.softmax(x.mean((1, 2)) @ p[4])

    def weights(seed, before, after, window):
        wide = 4 * before
        shapes = ((1, 1, before, wide), (window, window, 1, wide), (wide, 8), (8, wide), (1, 1, wide, after))
        return [random(seed + i, *shape) / 4 for i, shape in enumerate(shapes)]

    p = [random(0, 3, 3, 3, 8) / 4, weights(10, 8, 8, 3), weights(20, 8, 12, 5), weights(30, 12, 12, 3), random(9, 12, 10)]
    check(exactly(function), p, random(1, 2, 21, 18, 3), tolerance=2e-5)
