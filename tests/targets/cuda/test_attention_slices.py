"""Attention of few queries by slices of the keys ("flash-decoding"): what slices say, their merge, and where that is done."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import apu
from aspen_jax.cost.tiling import cheapest
from aspen_jax.ir.program import Value
from aspen_jax.ops.attention import ATTENTION
from aspen_jax.ops.attention_slices import ATTENTION_SLICES
from aspen_jax.ops.block_program import BlockProgram
from aspen_jax.ops.reference import evaluate
from aspen_jax.ops.rows import RowsAttrs
from aspen_jax.passes import run_passes
from aspen_jax.targets.cuda.passes.attention_slices import sliced
from aspen_jax.targets.cuda.passes.stages import UNPLANNED
from aspen_jax.targets.cuda.price import Gpu
from benchmarks.in_float64 import in_float64
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import exactly, ops_of, random, trace_of
from tests.targets.cuda.test_cuda_kernels import assemble
from tests.tile_graphs import build_with_random_tiles
from tests.tiled import TINY_TILES

needs_compiler = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")

# Dtype, whether float32 is asked for, and by how much of the largest output it may be off.
PRECISIONS = [(np.float32, True, 1e-5), (np.float32, False, 3e-3), (jnp.bfloat16, False, 2e-2), (jnp.float16, False, 3e-3)]

# Batch, queries, heads, keys, width, and slices: whole ones, and a last one of what is left.
SIZES = [(1, 1, 3, 128, 16, 2), (2, 3, 2, 143, 20, 3), (1, 8, 2, 200, 40, 2), (2, 1, 2, 321, 7, 6), (1, 5, 1, 260, 72, 3)]


def in_slices(function, arguments, slices):
    """The program of a function that is all ours, with its attention in so many slices, and its inputs."""
    trace = trace_of(function, arguments)
    (part,) = trace.parts
    known = dict(zip(trace.inputs, map(np.asarray, arguments), strict=True))
    program = run_passes(part, {"split_depth"}, Gpu(), UNPLANNED[:-1])
    ops = []
    for op in program.ops:
        cut = sliced(op, slices) if op.family is ATTENTION else (op,)
        assert cut is not None
        ops += cut
    assert any(op.family is ATTENTION_SLICES for op in ops)
    return program.replace(ops=tuple(ops)), [known[value] for value in part.inputs]


def attend(q, k, v, hidden, bias):
    """Rows by heads, a mask, a bias and a cap, and something behind."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * 0.3 + bias
    weights = jax.nn.softmax(jnp.where(hidden, -jnp.inf, 5 * jnp.tanh(scores)), axis=-1)
    return jnp.einsum("bhts,bshd->bthd", weights, v) * 2 + q[..., :1]


def across(q, k, v, hidden, bias):
    """Keys and values that lie the other way round, a mask that is added, an output by heads."""
    scores = jnp.einsum("bthd,bhds->bhts", q, k.transpose(0, 2, 3, 1)) + jnp.where(hidden, -1e9, bias)
    return jnp.einsum("bhts,bhds->bhtd", jax.nn.softmax(scores, axis=-1), v.transpose(0, 2, 3, 1))


def arguments_of(batch, queries, heads, keys, width, slices, *, dtype=np.float32, function=attend):
    """Arguments of the functions above; the mask leaves rows nothing of the first slice, the last, one between, or at all."""
    q, k, v = (random(i, batch, count, heads, width, dtype=dtype) for i, count in enumerate((queries, keys, keys)))
    length = -(-keys // (64 * slices)) * 64
    hidden = np.random.default_rng(3).random((batch, heads, queries, keys)) < 0.3
    hidden[:, 0, 0, :length] = True
    hidden[:, -1, -1, (slices - 1) * length :] = True
    if queries > 2:
        hidden[:, :, 1, length : 2 * length] = True
        hidden[-1, -1, 2] = function is attend  # of -1e9 in float32 nothing of the scores is left
    return q, k, v, hidden, random(4, heads, queries, keys, dtype=dtype)


def wide(arguments):
    return [item.astype(np.float32) if jnp.issubdtype(item.dtype, jnp.floating) else item for item in arguments]


def assert_close(ours, exact, tolerance):
    ours = ours.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact))
    assert np.nanmax(np.abs(ours - exact)) <= tolerance * np.nanmax(np.abs(exact))


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "exact", "tolerance", "sizes"),
    [(*PRECISIONS[0], sizes) for sizes in SIZES] + [(*PRECISIONS[1 + k], SIZES[k]) for k in range(3)],
)
@pytest.mark.sweep
def test_slices_and_their_merge_on_the_host(dtype, exact, tolerance, sizes):
    for function in (attend, across):
        arguments = arguments_of(*sizes, dtype=dtype, function=function)
        program, inputs = in_slices(exactly(function) if exact else function, arguments, sizes[-1])
        expected = in_float64(function, *wide(arguments))
        assert np.isnan(expected).any() == (function is attend and sizes[1] > 2)
        (ours,) = cuda_host.run(program, apu.build(program, 2, TINY_TILES), *inputs)
        assert_close(ours, expected, tolerance)


@needs_compiler
@pytest.mark.parametrize("seed", range(6))
def test_random_boxes(seed):
    arguments = arguments_of(2, 5, 3, 150, 24, 3)
    program, inputs = in_slices(exactly(attend), arguments, 3)
    graph = build_with_random_tiles(program, seed, reuse=True)
    (ours,) = cuda_host.run(program, graph, *inputs, seed=seed)
    assert_close(ours, in_float64(attend, *arguments), 1e-5)


@needs_compiler
@pytest.mark.parametrize("queries", [1, 4])
def test_queries_that_share_their_keys(queries):
    def function(q, k, v):
        scores = jnp.einsum("btkgd,bskd->bkgts", q, k)
        return jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores, -1), v)

    arguments = random(0, 2, queries, 2, 3, 16), random(1, 2, 150, 2, 16), random(2, 2, 150, 2, 16)
    program, inputs = in_slices(exactly(function), arguments, 3)
    (ours,) = cuda_host.run(program, apu.build(program, 2, TINY_TILES), *inputs)
    assert_close(ours, in_float64(function, *arguments), 1e-5)


@needs_compiler
@pytest.mark.parametrize("operand", range(3))
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e20])
def test_what_is_masked_still_spoils_what_it_would(operand, value):
    arguments = [*arguments_of(1, 3, 2, 180, 16, 3)]
    arguments[operand][0, 2 if operand == 0 else 130, 1, 3] = value
    program, inputs = in_slices(exactly(attend), arguments, 3)
    (ours,) = cuda_host.run(program, apu.build(program, 2, TINY_TILES), *inputs)
    np.testing.assert_allclose(ours, jax.jit(exactly(attend))(*arguments), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
def test_references_of_slices_and_merge(sizes):
    for function in (attend, across):
        arguments = arguments_of(*sizes, function=function)
        program, inputs = in_slices(exactly(function), arguments, sizes[-1])
        for op in program.ops:
            op.family.check(op)
        (ours,) = evaluate(program, *inputs)
        assert_close(ours, in_float64(function, *arguments), 1e-5)


def with_scale(op, instructions):
    """A merge whose slices are scaled otherwise."""
    rows = op.attrs.rows
    scale = rows.stages[1]
    assert [item.opcode for item in scale.program.instructions] == ["sub_f", "exp_f"]
    program = BlockProgram(scale.program.num_inputs, *instructions)
    stages = (rows.stages[0], scale._replace(program=program), *rows.stages[2:])
    return op.replace(attrs=RowsAttrs(op.attrs.axes, type(rows)(rows.num_inputs, stages)))


def test_a_merge_that_forgets_the_largest_logits_is_noticed():
    arguments = arguments_of(*SIZES[1], function=across)
    program, inputs = in_slices(exactly(across), arguments, SIZES[1][-1])
    *others, merge = program.ops
    one = np.float32(1).view(np.int32).item()
    faulty = with_scale(merge, ((one,), (), merge.attrs.rows.stages[1].program.num_inputs))
    (ours,) = evaluate(program.replace(ops=(*others, faulty)), *inputs)
    with pytest.raises(AssertionError):
        assert_close(ours, in_float64(across, *arguments), 2e-2)


def test_regions_cover_what_slices_read():
    arguments = arguments_of(1, 2, 2, 129, 3, 3)
    program, _ = in_slices(exactly(attend), arguments, 3)
    (op,) = (op for op in program.ops if op.family is ATTENTION_SLICES)
    outputs = np.indices(op.output.shape).reshape(len(op.output.shape), -1).T
    boxes = np.stack([outputs, outputs + 1], axis=2)
    rng = np.random.default_rng(0)
    operands = [
        random(9 + index, *item.shape) > 0 if item.dtype == bool else random(9 + index, *item.shape)
        for index, item in enumerate(op.inputs)
    ]
    reference = jax.jit(functools.partial(ATTENTION_SLICES.reference, op.attrs))
    before = np.asarray(reference(*operands))
    for index, item in enumerate(operands):
        region = ATTENTION_SLICES.region(op, index, boxes)
        assert (region[:, :, 0] >= 0).all()
        assert (region[:, :, 1] <= item.shape).all()
        seen = False
        for element in rng.integers(0, item.size, 30):
            own = [operand.copy() for operand in operands]
            own[index].flat[element] = not item.flat[element] if item.dtype == bool else item.flat[element] + 1
            changed = np.not_equal(reference(*own), before)
            place = np.array(np.unravel_index(element, item.shape))
            covered = np.all((region[:, :, 0] <= place) & (place < region[:, :, 1]), axis=1)
            assert covered[changed.reshape(-1)].all()
            # Nothing of other slices is read.
            assert not covered.all()
            seen |= changed.any()
        assert seen


def test_any_changed_word_is_refused_or_right():
    arguments = arguments_of(*SIZES[1])
    program, _ = in_slices(exactly(attend), arguments, SIZES[1][-1])
    (op,) = (op for op in program.ops if op.family is ATTENTION_SLICES)
    words = ATTENTION_SLICES.params(op)
    assert ATTENTION_SLICES.parse(words) == (op.attrs, None)
    refused = tried = 0
    for place, word in enumerate(words):
        for value in (word - 2, word - 1, word + 1, word + 2, -(1 << 63), 1 << 40):
            tried += 1
            try:
                attrs, _ = ATTENTION_SLICES.parse([*words[:place], value, *words[place + 1 :]])
                changed = op.replace(attrs=attrs)
                ATTENTION_SLICES.check(changed)
                ATTENTION_SLICES.region(changed, 0, np.zeros((1, len(op.output.shape), 2), np.int64))
            except ValueError:
                refused += 1
    assert 2 * refused > tried


def few_queries(batch, queries, heads, keys, width, dtype=np.float32):
    """Arguments of `attend` as shapes."""
    shapes = [(batch, count, heads, width) for count in (queries, keys, keys)]
    return (
        *(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes),
        jax.ShapeDtypeStruct((queries, keys), bool),
        jax.ShapeDtypeStruct((heads, queries, keys), dtype),
    )


def families(ops):
    return [op.family.name for op in ops if op.family.name != "block"]


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_decoding_takes_two_launches(dtype):
    gpu = Gpu()

    class Before(Gpu):
        """A GPU without a kernel for slices."""

        def has_kernel(self, op):
            return op.family is not ATTENTION_SLICES

    def price(ops):
        return sum(cheapest(op, gpu.places, gpu)[1] for op in ops) + (len(ops) - 1) * gpu.launch_ns

    def function(q, k, v):
        return jax.nn.dot_product_attention(q, k, v)

    for queries in range(1, 9):
        arguments = few_queries(1, queries, 12, 1024, 64, dtype)[:3]
        ops, others = ops_of(function, arguments), ops_of(function, arguments, Before())
        assert families(ops) == ["attention_slices", "rows"]
        assert "rows" in families(others)
        assert len(others) > 2
        assert price(ops) < 0.8 * price(others)


def test_slices_that_would_be_empty_are_refused():
    arguments = few_queries(1, 4, 12, 1000, 64)
    (part,) = trace_of(attend, arguments).parts
    (op,) = (op for op in run_passes(part, {"split_depth"}, Gpu(), UNPLANNED[:-1]).ops if op.family is ATTENTION)
    cut = sliced(op, 16)
    assert cut is not None
    assert cut[0].attrs.length == 64
    assert sliced(op, 15) is None  # eight of 128 hold all
    assert sliced(op, 17) is None
    more = dataclasses.replace(cut[0].attrs, slices=17)
    changed = cut[0].replace(attrs=more, output=Value((17, *cut[0].output.shape[1:]), cut[0].output.dtype))
    with pytest.raises(ValueError, match="cuts 1000 keys into 17 slices"):
        ATTENTION_SLICES.check(changed)


def test_attention_stays_whole_where_it_has_tiles_enough():
    def chosen(*sizes):
        return families(ops_of(attend, few_queries(*sizes, dtype=jnp.bfloat16)))

    assert "attention_slices" in chosen(1, 8, 12, 1023, 64)
    assert chosen(32, 4, 12, 256, 64) == ["attention"]
    assert "attention_slices" not in chosen(1, 4, 12, 64, 64), "it is over sooner than two launches"
    exact = families(ops_of(exactly(attend), few_queries(1, 4, 12, 1024, 64)))
    assert exact[:3] == ["matmul", "rows", "matmul"], "that kernel would not stay in registers"
    assert chosen(1, 9, 12, 1024, 64) == ["attention"]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.sweep
def test_slices_compile_for_gpus_without_spills(architecture, dtype):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    found = []
    for function in (attend, across):
        for sizes in ((1, 1, 12, 1024, 64), (1, 8, 12, 1000, 128)):
            found += ops_of(function, few_queries(*sizes, dtype=dtype))
    assert families(found).count("attention_slices") == 4
    assemble(found, architecture)
