"""Products and convolutions whose depth is split: where that is done, and that the sums are right."""

from __future__ import annotations

import math
import platform

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import _engine, aspen
from aspen_jax.apu import Machine
from aspen_jax.ir.program import Op, Operand, Value
from aspen_jax.ops.attention_slices import ATTENTION_SLICES
from aspen_jax.ops.conv_slices import CONV2D_SLICES, ConvSlicesAttrs
from aspen_jax.ops.reference import evaluate
from aspen_jax.passes import run_passes, split_depth
from aspen_jax.targets.cuda.passes.stages import UNPLANNED
from aspen_jax.targets.cuda.price import Gpu
from benchmarks.in_float64 import in_float64
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check, exactly, ops_of, random, run_on_host
from tests.targets.cuda.test_cuda_kernels import assemble
from tests.tracing import traced

NHWC = ("NHWC", "HWIO", "NHWC")

# Arithmetic is dear, and nothing else.
EAGER = Gpu(
    flops_per_ns=1e-3, bytes_per_ns=1e6, tile_ns=0.0, launch_ns=0.0, shortest_tile_ns=1.0, places=1 << 20, fewest_chunks=1
)


def kinds(ops):
    return [op.family.name for op in ops]


def network(x, w, b, dense, heads, other):
    y = jax.nn.relu(lax.conv_general_dilated(x, w, (2, 1), ((1, 2), (0, 3)), rhs_dilation=(1, 2), dimension_numbers=NHWC) + b)
    z = y.mean((1, 2)) @ dense
    return y, jax.nn.gelu(z), jnp.einsum("bhmk,bhnk->bmhn", heads, other), jnp.einsum("mkj,jkn->nm", heads[0], heads[0].T)


def arguments(dtype=np.float32):
    shapes = ((2, 9, 8, 24), (3, 2, 24, 70), (70,), (70, 21), (2, 3, 5, 96), (2, 3, 7, 96))
    return [random(seed, *shape, dtype=dtype) for seed, shape in enumerate(shapes)]


def test_splitting_keeps_the_meaning():
    program, inputs = traced(network, *arguments())
    split = run_passes(program, (), EAGER, UNPLANNED)
    assert kinds(split.ops).count("conv2d_slices") == 1
    assert not {"conv2d"} & {*kinds(split.ops)}
    names = [op.name for op in split.ops]
    assert (
        len([name for name in names if name.endswith("/slices")]) == len([name for name in names if name.endswith("/sum")]) >= 3
    )
    for ours, theirs in zip(evaluate(split, *inputs), evaluate(program, *inputs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("dtype", "exact", "tolerance"), [(np.float32, True, 1e-5), (np.float32, False, 2e-3), (jnp.bfloat16, False, 1e-2)]
)
@pytest.mark.sweep
def test_slices_on_the_host(dtype, exact, tolerance):
    operands = arguments(dtype)
    gpu_ops = ops_of(network, operands, EAGER)
    assert "conv2d_slices" in kinds(gpu_ops)
    check(exactly(network) if exact else network, *operands, tolerance=tolerance, gpu=EAGER)


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("channels", [7, 24, 70])
def test_slices_that_begin_within_a_tap_or_are_cut_short(channels):
    def function(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)

    x, w = random(0, 1, 5, 6, channels), random(1, 3, 3, channels, 9)
    (slices, _) = ops_of(exactly(function), (x, w), EAGER)
    assert slices.family.name == "conv2d_slices"
    check(exactly(function), x, w, gpu=EAGER)


def test_regions_cover_what_slices_read():
    x, w = np.zeros((1, 3, 4, 40), np.float32), np.zeros((2, 2, 40, 2), np.float32)
    attrs = ConvSlicesAttrs((1, 2), (1, 0, 0, 1), (1, 1), 1, 3, 32)
    shape, dtype = CONV2D_SLICES.infer(attrs, [(x.shape, x.dtype), (w.shape, w.dtype)])
    values = [Value(item.shape, item.dtype) for item in (x, w)]
    op = Op(CONV2D_SLICES, attrs, tuple(map(Operand.whole, values)), Value(shape, dtype))
    outputs = np.indices(shape).reshape(len(shape), -1).T
    boxes = np.stack([outputs, outputs + 1], axis=2)
    rng = np.random.default_rng(0)
    for index, item in enumerate((x, w)):
        region = CONV2D_SLICES.region(op, index, boxes)
        for element in rng.integers(0, item.size, 40):
            operands = [np.ones_like(x), np.ones_like(w)]
            before = np.asarray(CONV2D_SLICES.reference(attrs, *map(jnp.asarray, operands)))
            operands[index].flat[element] += 1
            changed = np.not_equal(CONV2D_SLICES.reference(attrs, *map(jnp.asarray, operands)), before)
            place = np.array(np.unravel_index(element, item.shape))
            covered = ((region[:, :, 0] <= place) & (place < region[:, :, 1])).all(axis=1)
            assert changed.any()
            assert covered[changed.reshape(-1)].all()


def test_only_what_leaves_a_gpu_idle_is_split():
    def product(rows, depth, columns):
        shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((rows, depth), (depth, columns))]
        return kinds(ops_of(jnp.matmul, shapes))

    assert product(64, 4096, 64) == ["matmul", "reduce"]
    assert product(1, 768, 768) == ["matmul", "reduce"]
    assert product(2048, 4096, 2048) == ["matmul"], "it has tiles enough"
    assert product(64, 48, 64) == ["matmul"], "it is over sooner than two launches"


@pytest.mark.parametrize(("dtype", "shortest"), [(np.float32, 32), (jnp.bfloat16, 64), (jnp.float16, 64)])
def test_no_slice_is_shorter_than_a_line_of_shared_memory(dtype, shortest):
    def function(a, b, x, w):
        return a @ b, lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)

    shapes = ((64, 256), (256, 64), (1, 8, 8, 64), (2, 2, 64, 64))
    ops = ops_of(function, [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes], EAGER)
    lengths = [
        op.attrs.length(256) if op.family is CONV2D_SLICES else math.prod(op.inputs[0].shape) // 64 // op.output.shape[0]
        for op in ops
        if op.name.endswith("/slices")
    ]
    assert lengths == [shortest, shortest]


def attend(q, k, v, hidden):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) * 0.3
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(jnp.where(hidden, -jnp.inf, scores), axis=-1), v)


def few_queries(batch, queries, heads, keys, width, dtype=np.float32):
    """Arguments of `attend`, by shape; what is hidden is all keys of the first query, and those after each other one."""
    rows = [random(i, batch, count, heads, width, dtype=dtype) for i, count in enumerate((queries, keys, keys))]
    hidden = np.arange(keys) > np.arange(queries)[:, None] + keys - queries
    hidden[0] = queries > 2
    return *rows, hidden


class WithoutSlices(Gpu):
    """A GPU that has no kernel for slices of attention (test_attention_slices.py)."""

    def has_kernel(self, op):
        return op.family is not ATTENTION_SLICES


def test_attention_of_few_queries_shares_its_keys_out_where_tiles_are_few():
    def taken_apart(*sizes, dtype):
        found = kinds(ops_of(attend, few_queries(*sizes, dtype=dtype), WithoutSlices()))
        assert ("attention" in found) != ("rows" in found)
        return "rows" in found

    for dtype in (np.float32, jnp.bfloat16):
        assert taken_apart(1, 4, 12, 1024, 64, dtype=dtype)
        assert taken_apart(1, 8, 12, 1023, 64, dtype=dtype)
        assert not taken_apart(32, 4, 12, 256, 64, dtype=dtype), "it has tiles enough"
        assert not taken_apart(1, 4, 12, 64, 64, dtype=dtype), "it is over sooner than three launches"
        assert not taken_apart(1, 9, 12, 1024, 64, dtype=dtype), "its scores are better not stored"


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("dtype", "wide", "tolerance"), [(np.float32, True, 1e-5), (np.float32, False, 2e-3), (jnp.bfloat16, False, 1e-2)]
)
@pytest.mark.parametrize("sizes", [(1, 3, 2, 143, 20), (2, 8, 3, 192, 40)])
def test_attention_of_few_queries_on_the_host(sizes, dtype, wide, tolerance):
    function, operands = exactly(attend) if wide else attend, few_queries(*sizes, dtype=dtype)
    eager = WithoutSlices(**vars(EAGER))
    assert "attention" in kinds(ops_of(function, operands, Gpu(places=1)))
    found = ops_of(function, operands, eager)
    assert "attention" not in kinds(found)
    assert all(op.inputs[0].dtype == op.inputs[1].dtype for op in found if op.family.name == "matmul")
    # XLA rounds to 16 bits more often than the tolerance allows.
    *rows, hidden = operands
    exact = in_float64(attend, *(item.astype(np.float32) for item in rows), hidden)
    (ours,) = (result.astype(np.float64) for result in run_on_host(function, operands, gpu=eager))
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact))
    assert np.isnan(exact).any()  # rows of which all is hidden
    assert np.nanmax(np.abs(ours - exact)) <= tolerance * np.nanmax(np.abs(exact))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
def test_attention_of_few_queries_compiles_for_gpus_without_spills(architecture, dtype):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    found = ops_of(attend, few_queries(1, 4, 12, 1024, 64, dtype=dtype), WithoutSlices())
    assert kinds(found).count("matmul") == 2
    assemble(found, architecture)


def product_of(m, k, n, transposed=False):
    function = (lambda x, w: x @ w.T + 1) if transposed else lambda x, w: x @ w + 1
    return traced(function, random(0, m, k), random(1, *((n, k) if transposed else (k, n))))


def slices_of(program):
    """Into how many slices a CPU cuts a program's one product."""
    ops = run_passes(program, machine=Machine()).ops
    return ops[0].output.shape[0] if kinds(ops) == ["matmul", "reduce"] else 1


def test_as_many_rows_are_few_as_kernels_read_a_matrix_for_once():
    program, _ = product_of(3, 1024, 1024)
    found = [kinds(run_passes(program, machine=Machine(few_rows=few)).ops) for few in (2, 3)]
    assert found == [["matmul"], ["matmul", "reduce"]]
    vectors = {"portable": 6 if platform.machine() in ("aarch64", "arm64") else 2, "avx2": 3, "avx512": 6, "amx": 6}
    assert Machine.unmeasured().few_rows == vectors[_engine.cpu_target()]


def slices_of_einsum(equation, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return slices_of(traced(lambda *items: jnp.einsum(equation, *items) + 1, *arguments)[0])


def test_a_cpu_reads_whole_rows_of_matrices_by_few():
    assert slices_of(product_of(1, 1024, 1024)[0]) == 16
    assert slices_of(product_of(1, 768, 3072)[0]) == 12
    assert slices_of(product_of(1, 1100, 1024)[0]) == 4, "slices are of equal length"
    assert slices_of(product_of(6, 1024, 1024)[0]) == 8, "the sums of more would be too much to add up"
    assert slices_of(product_of(7, 1024, 1024)[0]) == 1, "so many rows are not bound by memory alone"
    assert slices_of(product_of(1, 1024, 1024, transposed=True)[0]) == 1, "columns are adjacent"
    assert slices_of(product_of(1, 512, 500)[0]) == 1, "it may be in the caches"
    assert slices_of(product_of(1, 512, 512)[0]) == 8
    assert slices_of(product_of(1, 1021, 1024)[0]) == 1


def test_a_cpu_reads_whole_rows_whose_columns_are_several_dimensions():
    assert slices_of_einsum("bd,dhk->bhk", (1, 1024), (1024, 16, 64)) == 16
    assert slices_of_einsum("bd,dhk->bhk", (4, 768), (768, 12, 64)) == 12
    assert slices_of_einsum("bhk,hkd->bd", (1, 16, 64), (16, 64, 1024)) == 16
    assert slices_of_einsum("bd,dhk->bhk", (1, 768), (768, 5, 64)) == 1, "it may be in the caches"
    assert slices_of_einsum("bd,dkh->bhk", (1, 1024), (1024, 64, 16)) == 1, "heads are adjacent, which are not the last dimension"


def test_a_cpu_does_not_split_what_reads_whole_rows_as_it_is():
    assert slices_of_einsum("hk,hkd->hd", (4, 512), (4, 512, 512)) == 1, "a tile has the rows of its matrix"
    assert slices_of_einsum("bd,hdk->bhk", (1, 512), (8, 512, 512)) == 1
    assert slices_of_einsum("kb,kb->b", (1024, 512), (1024, 512)) == 1, "there is no matrix"
    assert slices_of_einsum("bd,dk->bk", (1, 65536), (65536, 16)) == 32, "one tile would have them all"


def test_a_cpu_splits_nothing_else():
    program, _ = traced(network, *arguments())
    assert kinds(split_depth.run(program, Machine()).ops) == kinds(program.ops)


def test_slices_of_rows_of_several_dimensions_are_right():
    x, w, bias = (random(seed, *shape) for seed, shape in enumerate(((2, 960), (960, 20, 64), (20, 64))))

    def function(x, w, bias):
        return jax.nn.gelu(jnp.einsum("bd,dhk->bhk", x, w) * 0.1 + bias)

    assert "reduce" in kinds(aspen(function).graph(x, w, bias).program().ops)
    exact = in_float64(function, x, w, bias)
    ours = np.asarray(jax.jit(aspen(function))(x, w, bias)).astype(np.float64)
    assert np.abs(ours - exact).max() <= 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize("m", [1, 3, 6])
def test_slices_of_matrices_by_few_rows_are_right(m, dtype):
    x, w, bias = (random(seed, *shape, dtype=dtype) for seed, shape in enumerate(((m, 960), (960, 1100), (1100,))))

    def function(x, w, bias):
        return jax.nn.gelu(x @ w * 0.1 + bias)

    found = aspen(function).graph(x, w, bias).program().ops
    assert ("reduce" in kinds(found)) == (m <= Machine.unmeasured().few_rows)
    exact = in_float64(function, *(item.astype(np.float32) for item in (x, w, bias)))
    ours = np.asarray(jax.jit(aspen(function))(x, w, bias)).astype(np.float64)
    assert np.abs(ours - exact).max() <= (1e-6 if dtype == np.float32 else 1e-2) * np.abs(exact).max()
