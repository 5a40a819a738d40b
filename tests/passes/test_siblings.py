"""Products of the same rows as one (passes/siblings.py): which are joined, which are not, and that results stay the same."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax.passes import run_passes
from aspen_jax.targets.cuda.passes import siblings
from aspen_jax.targets.cuda.passes.stages import UNPLANNED
from aspen_jax.targets.cuda.price import Gpu
from benchmarks.in_float64 import all_in_float64
from benchmarks.zoo import bert, gpt2
from benchmarks.zoo.model import Size
from benchmarks.zoo.network.in_jax import in_jax
from benchmarks.zoo.network.parameters import draw, draw_inputs
from benchmarks.zoo.transformer import Config
from tests.content import generator
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import exactly, ops_of, prepared, run_on_host, trace_of

RNG = generator(__name__)

needs_compiler = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")

WHOLE = Gpu(places=1)  # no sum is cut, so that a product of more columns adds up as those of fewer
SMALL = Config(layers=2, width=64, heads=4, hidden=128, tokens=24, vocabulary=203)
HEADS, WIDTH = 4, 64


def normal(*shape, dtype=np.float32):
    return (RNG.standard_normal(shape, np.float32) / np.sqrt(shape[0])).astype(dtype)


def widths(ops):
    """Columns of the products."""
    return [op.output.shape[-1] for op in ops if op.family.name == "matmul"]


def attention(x, weights, biases=None, memory=None):
    """Attention with known weights; keys and values are those of `memory`, if there is one."""
    sources = (x, x if memory is None else memory, x if memory is None else memory)
    parts = [source @ w for source, w in zip(sources, weights[:3], strict=True)]
    if biases is not None:
        parts = [part + bias for part, bias in zip(parts, biases, strict=True)]
    q, k, v = (part.reshape(*part.shape[:-1], HEADS, -1) for part in parts)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(4).astype(x.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v).reshape(*x.shape[:-1], -1) @ weights[3]


def attends(dtype, *, with_biases=True):
    """Attention as a function of x alone, or of x and what keys and values are made of."""
    weights = [normal(WIDTH, WIDTH, dtype=dtype) for _ in range(4)]
    biases = [normal(WIDTH, dtype=dtype) for _ in range(3)] if with_biases else None
    return lambda *sources: attention(sources[0], weights, biases, *sources[1:])


def error(found, expected):
    """The largest difference, as a share of the largest value."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    return np.abs(found - expected).max() / np.abs(expected).max()


# What is joined


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("with_biases", [True, False])
def test_queries_keys_and_values_are_one_product_that_attention_reads(dtype, with_biases):
    x, function = normal(2, 40, WIDTH, dtype=dtype), attends(dtype, with_biases=with_biases)
    together, apart = ops_of(function, [x]), ops_of(function, [x], disabled={"siblings"})
    assert (widths(together), widths(apart)) == ([3 * WIDTH, WIDTH], 4 * [WIDTH])
    assert len(together) == len(apart) - 2, "nothing is copied"
    (own,) = (op for op in together if op.family.name == "attention")
    assert sum(item.value is together[0].output for item in own.inputs) == 3


def test_keys_and_values_of_cross_attention_are_one():
    x, memory, function = normal(2, 16, WIDTH), normal(2, 40, WIDTH), attends(np.float32)
    assert sorted(widths(ops_of(function, [x, memory]))) == [WIDTH, WIDTH, 2 * WIDTH]


def test_heads_as_an_axis_of_their_own_and_fewer_heads_of_keys():
    wq, wk, wv = normal(WIDTH, 4, 16), normal(WIDTH, 2, 16), normal(WIDTH, 2, 16)

    def function(x):
        q, k, v = (jnp.einsum("bsd,dhe->bhse", x, w) for w in (wq, wk, wv))
        scores = jnp.einsum("bgrqe,bgke->bgrqk", q.reshape(q.shape[0], 2, 2, *q.shape[2:]), k)
        return jnp.einsum("bgrqk,bgke->bgrqe", jax.nn.softmax(scores, -1), v)

    # Keys are written in another order, so they stay apart.
    sizes = [op.output.size for op in ops_of(function, [normal(2, 24, WIDTH)]) if op.family.name == "matmul"]
    assert sorted(sizes) == [2 * 24 * 2 * 16, 2 * 24 * 6 * 16]


def test_weights_that_layers_share_are_stored_once():
    weights = [normal(WIDTH, WIDTH) for _ in range(4)]

    def function(x):
        for _ in range(3):
            x = x + attention(x, weights)
        return x

    (part,) = trace_of(function, [normal(1, 24, WIDTH)]).parts
    program = prepared(part)
    assert widths(program.ops) == 3 * [3 * WIDTH, WIDTH]
    shapes = sorted(array.shape for _, array in program.constants if array.size >= WIDTH * WIDTH)
    assert shapes == [(WIDTH, WIDTH), (WIDTH, 3 * WIDTH)]


# What is not


W, V, ODD = normal(WIDTH, WIDTH), normal(WIDTH, WIDTH), normal(WIDTH, 31)

KEPT = {
    "one follows with another program": lambda x: jnp.cumsum(jax.nn.relu(x @ W), 0) + jnp.cumsum(jnp.exp(x @ V), 0),
    "one is a result": lambda x: (x @ W, jnp.cumsum(x @ V, 0)),
    "other rows": lambda x: jnp.cumsum(x @ W, 0) + jnp.cumsum(x[::-1] @ V, 0),
    "one reads the other": lambda x: jnp.cumsum(jnp.cumsum(x @ W, 0) @ V, 0),
    "one is the gate of the other": lambda x: jnp.cumsum(jax.nn.silu(x @ W) * (x @ V), 0),
    "columns that begin anywhere": lambda x: jnp.cumsum(x @ ODD, 0)[:, :30] + jnp.cumsum(x @ W, 0)[:, :30],
}


@pytest.mark.parametrize("name", KEPT)
def test_what_differs_stays_apart(name):
    x = normal(40, WIDTH)
    assert sum(width in (WIDTH, 31) for width in widths(ops_of(KEPT[name], [x]))) == 2


def test_weights_that_are_arguments_stay_apart_and_are_not_copied():
    ops = ops_of(lambda x, w, v: jnp.cumsum(x @ w, 0) + jnp.cumsum(x @ v, 0), [normal(40, WIDTH), W, V])
    assert widths(ops) == [WIDTH, WIDTH]
    assert {op.family.name for op in ops} == {"matmul", "cumulative", "block"}


def test_what_would_take_longer_stays_apart(monkeypatch):
    monkeypatch.setattr(siblings, "price", lambda ops, machine: 3 - len(ops))
    assert widths(ops_of(attends(np.float32), [normal(2, 40, WIDTH)])) == 4 * [WIDTH]


def test_cpus_and_disabled_passes_leave_them_apart():
    (part,) = trace_of(attends(np.float32), [normal(2, 40, WIDTH)]).parts
    assert 3 * WIDTH not in widths(run_passes(part).ops)
    assert 3 * WIDTH not in widths(run_passes(part, {"siblings"}, Gpu(), UNPLANNED).ops)
    assert 3 * WIDTH in widths(run_passes(part, (), Gpu(), UNPLANNED).ops)


# Results


@needs_compiler
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("rows", [1, 45])
def test_bits_are_those_of_single_products(dtype, rows):
    x, function = normal(1, rows, WIDTH, dtype=dtype), attends(dtype)
    x[:, -1, 3] = np.inf
    x[:, -1, 5] = np.nan if rows > 1 else 1
    assert widths(ops_of(function, [x], WHOLE)) != widths(ops_of(function, [x], WHOLE, {"siblings"}))
    (together,), (apart,) = (run_on_host(function, [x], gpu=WHOLE, disabled=left_out) for left_out in ((), {"siblings"}))
    assert together.tobytes() == apart.tobytes()


@needs_compiler
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 3e-2)])
def test_a_batch_is_joined_too(dtype, tolerance):
    x, function = normal(3, 2, 20, WIDTH, dtype=dtype), attends(dtype)
    many = jax.vmap(exactly(function))
    assert 3 * WIDTH in widths(ops_of(many, [x]))
    (expected,), (found,) = all_in_float64(many, x), run_on_host(many, [x])
    assert error(found, expected) <= tolerance


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "warpgroups", "tolerance"), [("float32", False, 2e-5), ("bfloat16", False, 4e-2), ("bfloat16", True, 4e-2)]
)
def test_a_layer_of_bert_against_float64(dtype, warpgroups, tolerance):
    network = bert.bert(Size(2, tokens=40), config=dataclasses.replace(SMALL, layers=1))
    params = jax.tree.map(lambda item: jnp.asarray(item, dtype), draw(network))
    inputs = draw_inputs(network)
    function = functools.partial(in_jax(network), params)
    function = exactly(function) if dtype == "float32" else function
    assert widths(ops_of(function, inputs)).count(3 * SMALL.width) == 1
    expected = all_in_float64(function, *inputs)
    for found, wide in zip(run_on_host(function, inputs, warpgroups=warpgroups), expected, strict=True):
        assert error(found, wide) <= tolerance


@needs_compiler
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 4e-2)])
def test_a_step_of_decoding_against_float64(dtype, tolerance):
    """Keys and values go from their columns of the one product into the caches: in place, and into memory of their own."""
    model = gpt2.build_decode(SMALL)
    params, (token, cache, position) = model.params, model.inputs
    if dtype != "float32":
        params, cache = jax.tree.map(lambda item: jnp.asarray(item, dtype), (params, cache))
    leaves, tree = jax.tree.flatten(cache)

    def step(token, position, *leaves):
        return jax.tree.leaves(gpt2.decode(params, token, jax.tree.unflatten(tree, leaves), position))

    function = exactly(step) if dtype == "float32" else step
    given = [np.asarray(item) for item in (token, position, *leaves)]
    ops = ops_of(function, given)
    assert widths(ops).count(3 * SMALL.width) == SMALL.layers
    assert [op.in_place for op in ops if op.family.name == "scatter"] == 2 * SMALL.layers * [True]
    expected = all_in_float64(function, *given)
    for found, wide in zip(run_on_host(function, given), expected, strict=True):
        assert error(found, wide) <= tolerance
