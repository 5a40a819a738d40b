"""Generated CUDA code, run by the host: kernels against XLA, launched through the schedule that a GPU would get."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.targets.cuda.code.image import compile_log, compiled
from aspen_jax.targets.cuda.code.kernel import kernel_of
from aspen_jax.targets.cuda.code.source import kernels
from aspen_jax.targets.cuda.price import Gpu
from tests.targets.cuda import cuda_host
from tests.targets.cuda.cuda_check import check, exactly, ops_of, random
from tests.tiled import TINY_TILES

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


def test_element_by_element():
    def function(x, y, n):
        z = jnp.where(x > y[::-1], jnp.exp(x) * 2, jnp.tanh(y).T.reshape(y.shape))
        return (
            z[:, 1:],
            (n << 3) ^ 5,
            n.astype(jnp.uint8),
            jnp.isfinite(x) & (n > 3),
            jax.nn.gelu(z).astype(jnp.bfloat16),
            z.astype(jnp.float16),
        )

    check(function, random(0, 7, 13), random(1, 7, 13), np.arange(91, dtype=np.int32).reshape(7, 13) - 40)


# Dtype, whether float32 is asked for, and by how much of the largest output a product may be off.
PRECISIONS = [(jnp.float32, True, 1e-5), (jnp.float32, False, 2e-3), (jnp.bfloat16, False, 1e-2), (jnp.float16, False, 2e-3)]


@pytest.mark.parametrize(("dtype", "exact", "tolerance"), PRECISIONS)
@pytest.mark.sweep
def test_convolutions(dtype, exact, tolerance):
    def function(x, weights, w, grouped, bias):
        numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
        # By channels: vectors of each length, and channels that none fits.
        outs = [lax.conv_general_dilated(x[..., : w.shape[2]], w, (1, 1), "SAME", **numbers) for w in weights]
        window = {"window_strides": (2, 1), "padding": ((1, 2), (0, 3)), "rhs_dilation": (1, 2)}
        outs.append(jax.nn.relu(lax.conv_general_dilated(x, w, **window, **numbers) + bias))
        outs += [
            lax.conv_general_dilated(x, w, feature_group_count=x.shape[3] // w.shape[2], **window, **numbers) for w in grouped
        ]
        return outs

    weights = [random(channels, 3, 3, channels, 72, dtype=dtype) for channels in (4, 8, 24, 7)]
    # Of 12, 36, 8 and 1 columns a group, and of too few channels for tensor cores.
    by_groups = ((2, 24), (2, 72), (3, 24), (24, 24), (12, 24))
    grouped = [random(9, 3, 2, 24 // groups, outputs, dtype=dtype) for groups, outputs in by_groups]
    arguments = (
        random(0, 2, 11, 9, 24, dtype=dtype),
        weights,
        random(1, 3, 2, 24, 12, dtype=dtype),
        grouped,
        random(2, 12, dtype=dtype),
    )
    check(exactly(function) if exact else function, *arguments, tolerance=tolerance)


EQUATIONS = ("mk,kn->mn", "bmk,bkn->bmn", "mk,nk->mn", "bhmk,bhkn->bmhn", "mkj,jkn->nm", "km,kn->mn")


@pytest.mark.parametrize(("dtype", "exact", "tolerance"), PRECISIONS)
@pytest.mark.sweep
def test_products(dtype, exact, tolerance):
    extents = {"m": 37, "n": 72, "k": 24, "b": 3, "h": 2, "j": 5}
    operands = [
        [
            random(i, *(extents[letter] for letter in letters), dtype=dtype)
            for i, letters in enumerate(equation.split("->")[0].split(","))
        ]
        for equation in EQUATIONS
    ]

    def function(operands):
        return [jnp.einsum(equation, *pair) * 2 for equation, pair in zip(EQUATIONS, operands, strict=True)]

    check(exactly(function) if exact else function, operands, tolerance=tolerance)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_products_of_groups(dtype):
    def function(x, w, sizes, wide, hostile):
        mapped = jax.vmap(lax.ragged_dot)(jnp.stack([x, x[::-1]]), jnp.stack([w, w * 2]), jnp.stack([sizes, hostile]))
        return jax.nn.relu(lax.ragged_dot(x, w, sizes) + 1), lax.ragged_dot(wide.T, w, sizes), mapped

    x, w, wide = (random(i, *shape, dtype=dtype) for i, shape in enumerate(((37, 24), (4, 24, 30), (24, 20))))
    sizes, hostile = np.array([9, 0, 20, 3], np.int32), np.array([30, -20, 2**31 - 1, 5], np.int32)
    check(function, x, w, sizes, wide, hostile, tolerance=1e-5 if dtype == jnp.float32 else 1e-2)


# By columns that lie across the depth and along it, rows that do too, batches, and gathered rows: 64 rows, some 64 of the depth
# and adjacent eights of them are what warpgroups are worth (BlockCore). How many blocks a GPU wants decides how large these are,
# and whether the depth is split.
@pytest.mark.parametrize(
    ("wanted", "block", "depth", "machine", "gpu"),
    [
        (1_000, "64, 64", 136, TINY_TILES, Gpu(places=1)),
        (4, "64, 128", 136, TINY_TILES, Gpu(places=1)),
        (1, "128, 128", 136, Gpu(), Gpu(places=1)),
        (1, "128, 128", 256, TINY_TILES, Gpu(places=24)),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.bfloat16, 1e-2), (jnp.float16, 2e-3)])
@pytest.mark.sweep
def test_products_by_warpgroups(monkeypatch, dtype, tolerance, wanted, block, depth, machine, gpu):
    monkeypatch.setattr("aspen_jax.targets.cuda.products.blocks.MULTIPROCESSORS", wanted)

    def function(a, b, c, x, w):
        window = {"window_strides": (1, 2), "padding": ((1, 2), (0, 3)), "rhs_dilation": (1, 2)}
        image = lax.conv_general_dilated(x, w, **window, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        batches = jnp.einsum("bmk,nk->bmn", a, c) + 1, jnp.einsum("bmk,mn->bkn", a, c), jnp.einsum("bmk,bnk->bmn", a, a)
        return jax.nn.relu(a[0] @ b), a[0] @ c.T, *batches, image

    operands = [random(i, *shape, dtype=dtype) for i, shape in enumerate(((2, 200, depth), (depth, 248), (200, depth)))]
    image = random(3, 2, 13, 17, 72, dtype=dtype), random(4, 3, 2, 72, 136, dtype=dtype)
    source = cuda_host.source(ops_of(function, (*operands, *image), gpu))
    assert re.findall(rf"BlockCore<\w+, {block}, 8, ", source)
    assert source.count("MappedBuffers<") == 4  # all products but the one whose rows lie across the depth
    check(function, *operands, *image, tolerance=tolerance, machine=machine, gpu=gpu, warpgroups=True)


def conv(x, w, strides=(1, 1), padding="SAME", dilation=(1, 1), groups=1):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=numbers, feature_group_count=groups
    )


# Boxes of some lines and of some images, padding of every side and of less than nothing, steps, dilation, views, channels that do
# not fill the last chunk of a tap; a convolution by pixels is a product. Slices of the depth where there are places for them.
@pytest.mark.parametrize(
    ("wanted", "block", "machine", "gpu", "kinds"),
    [
        (1_000, "64, 64", TINY_TILES, Gpu(places=1), {"conv2d"}),
        (4, "64, 128", Gpu(), Gpu(places=1), {"conv2d"}),
        (1, "128, 128", TINY_TILES, Gpu(places=1), {"conv2d"}),
        (1_000, "64, 64", TINY_TILES, Gpu(places=200), {"conv2d", "conv2d_slices"}),
    ],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.bfloat16, 1e-2), (jnp.float16, 2e-3)])
@pytest.mark.sweep
def test_convolutions_in_boxes_of_pixels(monkeypatch, dtype, tolerance, wanted, block, machine, gpu, kinds):
    monkeypatch.setattr("aspen_jax.targets.cuda.products.blocks.MULTIPROCESSORS", wanted)

    def function(x, wide, same, window, cropped, steps, pointwise, filled, bias):
        return [
            jax.nn.relu(conv(x[..., 64:], same) + bias),
            conv(x, window, (2, 3), ((1, 2), (0, 3)), (1, 2)),
            conv(x[:, 1:, :, :64], cropped, padding=((-1, 2), (2, -2))),
            conv(x, steps, (1, 2)),
            jnp.tanh(conv(x, pointwise) + x[..., :72]),
            conv(wide, filled),
        ]

    shapes = ((3, 9, 13, 128), (1, 4, 80, 120), (3, 3, 64, 72), (3, 2, 128, 72), (2, 2, 64, 72), (1, 1, 128, 72), (1, 1, 128, 72))
    operands = [random(i, *shape, dtype=dtype) for i, shape in enumerate((*shapes, (3, 3, 120, 16), (72,)))]
    ops = [op for op in ops_of(function, operands, gpu) if op.family.name.startswith("conv2d")]
    assert {op.family.name for op in ops} == kinds
    sources = [cuda_host.source([op]) for op in ops]
    assert any(f"{block}, 8, " in source for source in sources)
    # All but slices of a depth of 120 channels a tap.
    assert sum("MappedBuffers<" not in source for source in sources) == len(kinds) - 1
    assert sum("ConvInBoxes<" in source for source in sources) == (5 if len(kinds) == 1 else 4)
    check(function, *operands, tolerance=tolerance, machine=machine, gpu=gpu, warpgroups=True)


# Channels that would leave much of a chunk empty or are no multiple of 16 bytes, in or out, pixels and channels that would do so
# together, steps that a map cannot have, groups, a depth of less than a chunk.
def test_convolutions_that_are_not_worth_boxes_are_copied_by_threads():
    def function(x, shallow, few, odd, many, narrow, strided, grouped):
        return [
            conv(x[..., :24], shallow),
            conv(x[..., :40], few),
            conv(x[..., :68], odd),
            conv(x[:1, :, :13, :112], many),
            conv(x, narrow),
            conv(x, strided, (1, 9)),
            conv(x, grouped, groups=2),
        ]

    kernels = ((1, 2, 24, 24), (2, 2, 40, 24), (2, 2, 68, 24), (3, 3, 112, 24), (2, 2, 128, 20), (1, 9, 128, 24), (3, 3, 64, 48))
    operands = [random(i, *shape, dtype=jnp.bfloat16) for i, shape in enumerate(((2, 13, 20, 128), *kernels))]
    gpu = Gpu(places=1)
    source = cuda_host.source(ops_of(function, operands, gpu))
    assert source.count("ConvTile<") == 7
    assert "ConvInBoxes<" not in source
    assert "MappedBuffers<" not in source
    check(function, *operands, tolerance=1e-2, gpu=gpu, warpgroups=True)


def test_products_in_boxes_of_tensors_of_five_axes():
    def function(q, k, v):
        scores = jnp.einsum("bgmhd,bgnhd->bghmn", q, k)
        return jnp.einsum("bghmn,bgnhd->bgmhd", scores, v), scores * 2

    operands = [random(i, 2, 2, extent, 3, 72, dtype=jnp.float16) for i, extent in ((0, 70), (1, 80), (2, 80))]
    gpu = Gpu(places=1)  # the depth is not split
    source = cuda_host.source(ops_of(function, operands, gpu))
    assert re.findall(r"TensorShape\{\.input = \d, \.rank = (\d)", source) == ["5"] * 4
    assert re.findall(r"\.depth_axis = (\d)", source) == ["0", "0", "0", "1"]
    check(function, *operands, tolerance=2e-3, gpu=gpu, warpgroups=True)


# Strides of no multiple of 16 bytes, and rows that no one stride walks: read by copies of each thread.
def test_what_no_tensor_map_describes_is_copied_by_threads():
    def function(a, b, c):
        return a[:, :, :68] @ b[:68], jnp.einsum("bmk,nk->bmn", a[:, :60, :64], c[:, 4:])

    operands = [random(i, *shape, dtype=jnp.bfloat16) for i, shape in enumerate(((2, 70, 72), (72, 72), (72, 68)))]
    gpu = Gpu(places=1)
    assert "MappedBuffers" not in cuda_host.source(ops_of(function, operands, gpu))
    check(function, *operands, tolerance=1e-2, gpu=gpu, warpgroups=True)


def test_windows_and_reductions():
    def function(x, n):
        pooled = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (0, 1), (0, 0)))
        mean = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "VALID") / 4
        return pooled, mean, x.sum((1, 2)), x.min(3), n.max(), jnp.prod(n, 0), jax.nn.relu(x.mean((0, 2)))

    check(function, random(0, 2, 9, 8, 5), np.arange(24, dtype=np.int32).reshape(4, 6) % 5 - 2)


def test_a_network():
    def function(params, x):
        for w, b in params[:3]:
            x = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jax.nn.relu(x + b)
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        w, b = params[3]
        return jax.nn.softmax(x.mean((1, 2)) @ w + b)

    widths = (3, 16, 32, 64)
    params = [(random(i, 3, 3, widths[i], widths[i + 1]) / 8, random(i + 9, widths[i + 1])) for i in range(3)]
    params.append((random(20, 64, 10), random(21, 10)))
    check(exactly(function), params, random(5, 2, 32, 32, 3))


# 168 are what 384 threads of a multiprocessor can have: a product's 128 threads three times over.
MOST_REGISTERS = 168
# Chains ask for one thread block a multiprocessor (Kernel.blocks), and keep what is between in registers.
MOST_OF_CHAINS = 184


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.sweep
def test_what_is_generated_compiles_for_gpus_without_spills(architecture, dtype):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")

    def function(x, w, depthwise, dense, table, groups, q, index):
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.silu(lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers))
        x = lax.conv_general_dilated(x, depthwise, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=64)
        x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        few = jnp.matmul(x.mean((1, 2)), dense, precision="highest") @ dense.T
        grouped = [
            lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=64 // w.shape[2])
            for w in groups
        ]
        image = x.reshape(-1, 64) @ dense
        image = jnp.matmul(jax.nn.gelu(image), dense, precision="highest").astype(dtype)
        image = (image - image.mean(-1, keepdims=True)) / jnp.sqrt(image.var(-1, keepdims=True) + 1)
        attended = [jax.nn.dot_product_attention(item, item, item, is_causal=True) for item in q]
        with jax.default_matmul_precision("highest"):
            exact = jax.nn.dot_product_attention(q[0], q[0], q[0]) if dtype != jnp.float16 else 0
        moved = jnp.concatenate([table[index], lax.pad(table[:3], table[0, 0], ((0, 1, 0), (0, 0, 0)))])
        moved = moved.at[index].add(1.0) if dtype == jnp.float32 else moved.at[index].set(1)
        experts = lax.ragged_dot(dense, jnp.stack([dense, dense.T]), index[:2])
        best = jnp.argmax(moved, 1), jnp.argmin(image, 0)
        return few, grouped, image, attended, exact, moved, jnp.cumsum(moved, 0), *best, experts

    shapes = ((2, 56, 56, 32), (3, 3, 32, 64), (3, 3, 1, 64), (64, 64), (100, 64))
    arguments = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    groups = [jax.ShapeDtypeStruct((3, 3, channels, outputs), dtype) for channels, outputs in ((16, 64), (32, 128))]
    heads = [jax.ShapeDtypeStruct((1, 256, 4, width), dtype) for width in (64, 128)]
    # Slices of one chunk, which other products have only where they are deep.
    ops = ops_of(function, (*arguments, groups, heads, jax.ShapeDtypeStruct((20,), np.int32)), Gpu(fewest_chunks=1))
    families = {
        "conv2d",
        "conv2d_slices",
        "pool",
        "reduce",
        "rows",
        "matmul",
        "attention",
        "gather",
        "scatter",
        "pad",
        "concatenate",
    }
    assert {op.family.name for op in ops} >= {*families, "cumulative", "arg_reduce", "block", "ragged_dot"}
    assemble(ops, architecture)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_ops_of_several_outputs_compile_for_gpus_without_spills(architecture, dtype):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")

    def function(x, y, z):
        weights = jax.nn.softmax(x)
        sums = y.sum(0), (x * y).sum(0), y.max(0)
        return weights, weights * y, jnp.tanh(z), (jnp.tanh(z) * 3).astype(jnp.bfloat16), z > 0, *sums

    ops = ops_of(function, [jax.ShapeDtypeStruct((512, 1024), dtype)] * 3)
    assert {op.family.name for op in ops if op.further} == {"block", "rows"}
    assemble(ops, architecture)


# Warpgroups' instructions where sm_90a has them, for every size of a block.
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("wanted", [1_000_000, 50, 1])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.sweep
def test_products_of_blocks_compile_for_gpus_without_spills(monkeypatch, architecture, dtype, wanted):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    monkeypatch.setattr("aspen_jax.targets.cuda.products.blocks.MULTIPROCESSORS", wanted)

    def function(a, x, w, bias):
        image = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        images = jax.nn.relu(image * bias[:128] + x), jnp.tanh(conv(x, w[1:2, 1:2]))
        return jnp.einsum("bmk,nk->bmn", a, a[0]), jax.nn.gelu(a @ a[0] + bias), images

    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in ((2, 512, 512), (2, 28, 28, 128), (3, 3, 128, 128), (512,))]
    ops = ops_of(function, shapes, Gpu(places=1))
    if architecture == "sm_90a":
        ops += ops_of(lambda x, w: conv(x, w, (2, 2)), shapes[1:3], Gpu(places=1))
        ops += [op for op in ops_of(conv, shapes[1:3]) if op.family.name == "conv2d_slices"]
        assert ops[-1].attrs.slices > 1
        assert all("MappedBuffers<" in kernels([op]) for op in ops)
    assemble(ops, architecture)
    virtual = compiled(kernels(ops), architecture.replace("sm", "compute")).decode()
    assert_launches_wait(virtual, len(ops), waits=architecture == "sm_90a")
    assert ("wgmma.mma_async" in virtual) == (architecture == "sm_90a")
    for rank in (3, 4):
        assert (f"cp.async.bulk.tensor.{rank}d" in virtual) == (architecture == "sm_90a")


# Of wgmma that it had to serialise, or to wait for where the code does not, the assembler only informs.
WAITS = r"\(C75\d\d\).*"


def test_the_assembler_tells_of_sums_that_are_used_too_early():
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    source = """\
#include "cuda/kernels/warpgroup_mma.h"
using namespace aspen::cuda;
extern "C" __global__ void __launch_bounds__(128) kernel(float* out) {
  extern __shared__ __align__(1024) unsigned char shared[];
  WarpgroupSums<Bf16, 64, false> sums;
  sums.each([](int, int, float& sum) { sum = 0; });
  sums.fence();
  sums.multiply_add(MatrixDescriptor::of(shared, 0, 1024), MatrixDescriptor::of(shared + 8192, 0, 1024));
  sums.commit();
  WAIT
  sums.each([&](int row, int column, float& sum) { out[64 * row + column] = sum; });
}
"""
    assert re.findall(WAITS, compile_log(source.replace("WAIT", ""), "sm_90a"))
    assert not re.findall(WAITS, compile_log(source.replace("WAIT", "sums.wait<0>();"), "sm_90a"))


# But for what is fetched into the L2 cache.
FETCH = r"\.bulk\.prefetch\.L2"
MEMORY = re.compile(rf"\b(ld(?!\.param)|st(?!\.param)|atom|red|cp\.async(?!{FETCH})|(?<!bulk\.)prefetch|mbarrier)\b.*;")


def assert_launches_wait(virtual, count, *, waits):
    """Each kernel waits for the launches before it, once and before it touches any memory (cuda/kernels/launch_order.h)."""
    assert re.findall(r"aspen_kernels_wait( = (\d+))?;", virtual) == [(" = 1", "1") if waits else ("", "")]
    bodies = re.split(r"\.entry op\d+\(", virtual)[1:]
    assert len(bodies) == count
    for body in bodies:
        assert body.count("griddepcontrol.wait;") == body.count("griddepcontrol.launch_dependents;") == waits
        if waits:
            before, after = body.split("griddepcontrol.wait;")
            assert not MEMORY.search(before)
            # No branch leads past the wait.
            assert all(f"{label}:" in before for label in re.findall(r"\bbra\S*\s+(\$\w+);", before))
            assert not MEMORY.search(after.split("griddepcontrol.launch_dependents;")[0])


@pytest.mark.parametrize("architecture", ["compute_80", "compute_90a"])
def test_kernels_wait_for_launches_before_them_first(architecture):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")

    def function(a, x, w):
        y = jax.nn.relu(conv(x, w)).mean((1, 2))
        return jax.nn.softmax(a @ a.T) @ a, y, jnp.cumsum(a, 0), jnp.argmax(a, 1), a[::-1]

    shapes = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((96, 64), (1, 12, 12, 64), (3, 3, 64, 64))]
    ops = ops_of(function, shapes)
    source = kernels(ops)
    begins = re.findall(r"__global__ void [^{]*\{\s*(.*)\n\s*(.*)\n", source)
    fetches = [f"fetch_ahead<Op{number}>(buffers, blockIdx.x);" for number in range(len(ops))]
    assert begins == [(fetch, "wait_for_parents();") for fetch in fetches]
    assert_launches_wait(compiled(source, architecture).decode(), len(ops), waits=architecture != "compute_80")


def assemble(ops, architecture):
    """Compiles ops and refuses whatever the assembler says of waste; gives what it says."""
    log = compile_log(kernels(ops), architecture)
    assert "warning" not in log
    assert not re.findall(WAITS, log)
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", log)]
    assert len(registers) == len(ops)
    for what in ("stack frame", "spill stores", "spill loads"):
        found = [int(number) for number in re.findall(rf"(\d+) bytes {what}", log)]
        assert len(found) == len(ops)
        assert not any(found), what
    found = {int(op): int(count) for op, count in re.findall(r"function 'op(\d+)'.*?Used (\d+) registers", log, re.DOTALL)}
    for op, count in found.items():
        assert count <= (MOST_OF_CHAINS if kernel_of(ops[op]).blocks == 1 else MOST_REGISTERS), ops[op].name
    return log
