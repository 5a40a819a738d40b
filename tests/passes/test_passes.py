"""Every pass alone, and all of them: the same results as the program before, and the effect that each is for."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import apu, aspen
from aspen_jax.errors import InputError
from aspen_jax.ir.program import Program
from aspen_jax.ops import transposed
from aspen_jax.ops.reference import evaluate
from aspen_jax.passes import OPTIONAL, PASSES, disabled_by_environment, fuse, rewrites, run_passes
from aspen_jax.targets import registry
from tests.random_functions import random_function
from tests.tracing import traced

NHWC = ("NHWC", "HWIO", "NHWC")


def kinds(program: Program) -> list[str]:
    return [op.family.name for op in program.ops]


def assert_same(one: Program, other: Program, inputs: list[np.ndarray], rtol: float = 1e-5) -> None:
    for a, b in zip(evaluate(one, *inputs), evaluate(other, *inputs), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1.0, float(np.abs(a).max(initial=0))))


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sweep
def test_passes_keep_the_meaning_of_random_functions(seed):
    program, inputs = traced(*(lambda f, a: (f, *a))(*random_function(seed)))
    everything = run_passes(program)
    assert_same(program, everything, inputs)
    name = OPTIONAL[seed % len(OPTIONAL)]
    assert_same(program, run_passes(program, {name}), inputs)
    assert_same(program, run_passes(program, set(OPTIONAL) - {name}), inputs)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_each_pass_stands_behind_those_that_it_needs(device):
    stages = registry.named(device).stages()
    passes = [item for _, stage in stages for item in stage]
    order = [item.name for item in passes]
    assert len(set(order)) == len(order), "two passes have one name"
    for number, (title, _) in enumerate(stages, 1):
        assert title.startswith(f"{number}. ")
    for item in passes:
        assert item.reason.endswith("."), f"{item.name} does not say why it stands where it stands"
        for other in item.after:
            if device == "cpu" or other in order:  # a pass of CPUs may stand behind one that GPUs have not
                assert order.index(other) < order.index(item.name), f"{item.name} stands before {other}"


def test_what_each_pass_did_is_shown(monkeypatch, capsys):
    def function(x, b):
        return jnp.tanh(x + b) * 2

    program, _ = traced(function, np.ones((3, 4), np.float32), np.ones(4, np.float32))
    steps = list(rewrites(program))
    assert [step.name for step in steps] == list(PASSES)
    assert all(str(before.after) == str(after.before) for before, after in itertools.pairwise(steps))
    (fuse,) = (step for step in steps if step.name == "fuse")
    assert fuse.has_changed
    assert str(fuse).startswith("fuse: -2 ops, -0.000192 MB read and written, ")
    assert "(unchanged)" in str(next(step for step in steps if step.name == "winograd"))
    run_passes(program)
    assert not capsys.readouterr().err
    monkeypatch.setenv("ASPEN_SHOW_PASSES", "1")
    assert str(run_passes(program)) in capsys.readouterr().err
    explanation = aspen(function).explain(np.ones((3, 4), np.float32), np.ones(4, np.float32))
    assert [step.name for step in explanation.passes.parts[0]] == list(PASSES)
    assert "fuse: -2 ops" in str(explanation.passes)


def test_a_page_names_the_passes():
    page = (Path(__file__).parents[2] / "docs/reference/passes.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    of_cpus = [*PASSES, "choice"]
    assert named[: len(of_cpus)] == of_cpus
    of_gpus = [item.name for _, stage in registry.named("cuda").stages() for item in stage]
    assert named[len(of_cpus) :] == [name for name in of_gpus if name not in PASSES]


def test_passes_of_all_targets_can_be_named(monkeypatch):
    monkeypatch.setenv("ASPEN_DISABLE_PASSES", "tf32, winograd")
    assert disabled_by_environment() == {"tf32", "winograd"}


def test_passes_that_a_graph_needs_cannot_be_left_out():
    program, _ = traced(lambda x: x + 1, np.ones(3, np.float32))
    with pytest.raises(InputError, match="choose from simplify"):
        run_passes(program, {"outputs"})


def test_simplify_folds_zero_padding_into_the_convolution():
    x, w = np.ones((1, 6, 6, 3), np.float32), np.ones((3, 3, 3, 4), np.float32)

    def function(x, w, value):
        x = lax.pad(x, value, ((0, 0, 0), (1, 2, 0), (0, 1, 0), (0, 0, 0)))
        return lax.conv_general_dilated(x, w, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    program, inputs = traced(lambda x, w: function(x, w, np.float32(0)), x, w)
    folded = run_passes(program)
    assert kinds(folded) == ["conv2d"]
    assert folded.ops[0].attrs.padding == (1, 2, 0, 1)
    assert_same(program, folded, inputs)

    program, inputs = traced(lambda x, w: function(x, w, np.float32(1)), x, w)
    assert "pad" in kinds(run_passes(program)), "only zeros are what a convolution pads with"


def test_simplify_sees_that_constants_are_equal():
    rows = [np.array([1, 2, np.nan], np.float32) for _ in range(3)] + [np.array([1, 2, 3], np.float32)]
    program, inputs = traced(lambda x: sum(jnp.exp(x + row)[::-1] for row in rows), np.ones(3, np.float32))
    same = run_passes(program, {"fuse", "merge"})
    assert len(same.constants) == 2
    assert len(same.ops) < len(run_passes(program, {"fuse", "merge", "simplify"}).ops)
    assert_same(program, same, inputs)


def test_simplify_computes_equal_ops_once():
    program, _ = traced(lambda x: jnp.exp(x)[None] * jnp.exp(x).sum(), np.ones(5, np.float32))
    exponentials = [op for op in PASSES["simplify"].run(program).pruned().ops if "exp_f" in str(op.program)]
    assert len(exponentials) == 1


def test_a_dense_block_normalises_where_it_concatenates():
    def function(x, w):
        for scale in (0.5, 0.25, 2.0):
            y = jax.nn.relu(x * scale - 1.0)[..., :4]
            y = lax.conv_general_dilated(y, w, (1, 1), "SAME", dimension_numbers=NHWC)
            x = jnp.concatenate([x, y], axis=3)
        return jax.nn.relu(x * 0.125 + 1.0)

    program, inputs = traced(function, normal(1, 6, 5, 4), normal(1, 1, 4, 4))
    result = run_passes(program)
    last = result.ops[-1]
    assert last.family.name == "concatenate"
    assert last.program is not None
    assert [len(op.main_inputs) for op in result.ops if op.family.name == "concatenate"][-1] == 4, "one a layer, none nested"
    assert_same(program, result, inputs)


def test_layout_makes_an_nchw_network_one_without_transposes():
    x, w = np.random.default_rng(0).standard_normal((2, 3, 8, 8), np.float32), np.ones((5, 3, 3, 3), np.float32)

    def function(x, w):
        y = jax.nn.relu(lax.conv(x, w, (1, 1), "SAME") + 1.0)
        y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        y = jnp.concatenate([y, y * 2.0], axis=1)
        return lax.pad(y, np.float32(0), ((0, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0))).mean((2, 3))

    program, inputs = traced(function, x, w)
    result = run_passes(program)
    copies = [op for op in result.ops if op.program is not None and op.program.is_copy]
    assert len(copies) <= 3, "one each for the image, the weights and the output"
    assert not [op for op in result.ops if op.family.name == "pool" and not op.inputs[0].is_whole]
    assert_same(program, result, inputs)


def normal(*shape):
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def normalised(y, channels, axis=-1):
    """Batch normalisation with known statistics, then the usual activation."""
    shape = [1] * y.ndim
    shape[axis] = channels
    mean, scale, shift = (normal(channels, k).reshape(-1, k)[:, 0].reshape(shape) for k in (1, 2, 3))
    return jax.nn.relu((y - mean) * scale + shift)


def hosts():
    """Convolutions and products of x [2,5,6,4] with constant weights, and their numbers of channels."""
    w, nchw, depthwise, right, left = normal(3, 3, 4, 8), normal(8, 5, 3, 3), normal(3, 3, 1, 4), normal(4, 7), normal(7, 5)

    def conv(x, w, groups=1):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=groups)

    return {
        "convolution": (lambda x: conv(x, w), 8),
        "of NCHW": (lambda x: lax.conv(x, jnp.asarray(nchw), (1, 1), "SAME"), 8),
        "depthwise": (lambda x: conv(x, depthwise, 4), 4),
        "product": (lambda x: x @ right, 7),
        "product from the left": (lambda x: jnp.einsum("mh,bhwc->bwcm", left, x), 7),
    }


def test_a_product_written_along_an_operand_leaves_its_order_alone():
    rows, columns = np.ones((6, 10), np.float32), np.ones((7, 14), np.float32)

    def resized(x):  # its height, then its width
        y = lax.dot_general(rows, x, (([0], [1]), ([], [])))
        return lax.dot_general(y, columns, (([2], [0]), ([], []))).transpose(1, 0, 3, 2)

    program, inputs = traced(resized, np.random.default_rng(0).standard_normal((2, 6, 7, 5), np.float32))
    fast = run_passes(program)
    assert_same(program, fast, inputs)
    assert kinds(fast) == ["matmul", "matmul"]
    assert [op.output.shape for op in fast.ops] == [(10, 2, 7, 5), (2, 10, 14, 5)]

    def similarities(x, w):  # which reads its second operand by rows of the summed dimension
        return x @ (x @ w).T

    program, inputs = traced(similarities, np.ones((9, 6), np.float32), np.ones((6, 6), np.float32))
    fast = run_passes(program)
    assert_same(program, fast, inputs)
    assert [op.output.shape for op in fast.ops] == [(6, 9), (9, 9)]


@pytest.mark.parametrize("shape", [(1, 12, 3, 8), (2, 12, 3, 8), (1, 12, 1, 8)])
def test_attention_writes_what_the_next_product_reads_whatever_the_batch(shape):
    """Where the batch is one, JAX makes a product of fewer dimensions, and a copy between it and the transpose."""
    batch, tokens, heads, width = shape

    def block(q, k, v, w):
        scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k))
        return jnp.einsum("bhts,bshd->bthd", scores, v).reshape(batch, tokens, heads * width) @ w

    program, inputs = traced(block, *(normal(*shape) for _ in range(3)), normal(heads * width, 7))
    fast = run_passes(program)
    assert_same(program, fast, inputs)
    assert not [op.name for op in fast.ops if op.family.name == "block"]


@pytest.mark.parametrize("name", hosts())
def test_affine_folds_known_normalisation_into_known_weights(name):
    host, channels = hosts()[name]
    axis = 1 if name == "of NCHW" else -1
    program, inputs = traced(lambda x: normalised(host(x), channels, axis), normal(2, 5, 6, 4))
    result = run_passes(program)
    assert [op.program.instructions for op in result.ops if op.program is not None and not op.program.is_copy] == [
        (("add_f", (0, 1)), ("relu_f", (2,)))
    ]
    assert_same(program, result, inputs)
    assert_same(program, run_passes(program, set(OPTIONAL) - {"layout", "affine"}), inputs)


def test_affine_keeps_the_digits_of_what_it_is_given():
    x = (1e6 + np.arange(24) / 16).astype(np.float32).reshape(6, 4)
    program, _ = traced(lambda x: (x - np.float32(1e6)) * np.float32(10) + np.float32(1), x)
    np.testing.assert_array_equal(evaluate(run_passes(program), x)[0], np.arange(24, dtype=np.float32).reshape(6, 4) * 0.625 + 1)


@pytest.mark.parametrize("after", [0, 1, 0.25])
def test_affine_leaves_rounding_to_whole_numbers_to_the_user(after):
    """A large number added and taken away again rounds, as emulated quantisation does."""
    w, magic = normal(4, 7), np.float32(1.5 * 2**23)
    program, inputs = traced(lambda x: ((x @ w) * np.float32(10) + magic) - magic + np.float32(after), normal(50, 4))
    (rounded,) = evaluate(run_passes(program), *inputs)
    np.testing.assert_array_equal((rounded - after) % 1, 0)


def excited(x, scale, w, padding="VALID"):
    """A convolution of images whose channels are scaled, as squeeze and excite does."""
    scale = jax.nn.sigmoid(scale)[:, None, None, :]
    return lax.conv_general_dilated(x * scale, w, (1, 1), padding, dimension_numbers=NHWC)


@pytest.mark.parametrize(("window", "padding"), [(1, "VALID"), (3, "SAME")])
@pytest.mark.parametrize("images", [1, 2])
def test_convolutions_by_panels_scale_what_they_read(window, padding, images):
    w = normal(window, window, 20, 40)
    program, inputs = traced(lambda *args: excited(*args, w, padding), normal(images, 12, 11, 20), normal(images, 20))
    result = run_passes(program, {"winograd"})
    assert [op.family.name for op in result.ops] == ["block", "conv2d_panels"]
    assert result.ops[1].attrs.scaled
    assert_same(program, result, inputs)


def test_scaled_images_that_others_read_too_and_scales_of_pixels_stay():
    w = jax.numpy.asarray(normal(1, 1, 20, 40))

    def read_twice(x, scale):
        x = x * scale[:, None, None, :]
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=NHWC), x

    def of_pixels(x, scale):
        return lax.conv_general_dilated(x * scale[:, :, :, None], w, (1, 1), "VALID", dimension_numbers=NHWC)

    for function, shape in [(read_twice, (2, 20)), (of_pixels, (2, 12, 11)), (of_pixels, (2, 12, 1))]:
        program, inputs = traced(function, normal(2, 12, 11, 20), normal(*shape))
        result = run_passes(program)
        assert [op.family.name for op in result.ops] == ["block", "conv2d_panels"]
        assert not result.ops[1].attrs.scaled
        assert_same(program, result, inputs)


def test_affine_keeps_what_others_read_what_is_exact_and_what_float32_cannot_hold():
    w = normal(4, 7)

    def weights_of(function, x):
        """How many products read the weights as they were given, and the program."""
        program, inputs = traced(function, x)
        result = run_passes(program)
        if np.isfinite(np.concatenate([np.ravel(item) for item in evaluate(program, *inputs)])).all():
            assert_same(program, result, inputs)
        return sum(np.array_equal(array, w) for _, array in result.constants)

    x, scale = normal(3, 4), normal(7)
    assert weights_of(lambda x: (x @ w) * scale, x) == 0
    assert weights_of(lambda x: scale - (x @ w) / (scale + 9), x) == 0
    assert weights_of(lambda x: (lambda y: (y * scale, jnp.exp(y)))(x @ w), x) == 1
    assert weights_of(lambda x: jnp.matmul(x, w, precision="highest") * scale, x) == 1
    assert weights_of(lambda x: (x @ w) * np.float32(1e-30) * np.float32(1e30), x) == 1
    assert weights_of(lambda x: (x @ w) * np.float32(np.inf), x) == 1
    assert weights_of(lambda x: (x @ w) * normal(3, 7), x) == 1, "along two axes"
    assert weights_of(lambda x: (x @ w) * normal(3, 1), x) == 1, "along an axis that the weights do not have"
    assert weights_of(lambda x: scale / (x @ w), x) == 1
    assert weights_of(lambda x: jnp.exp((x @ w) + scale) - scale, x) == 1, "a shift alone stays where it is"


def test_fuse_makes_a_chain_one_program_but_keeps_shared_results():
    program, inputs = traced(lambda x: jnp.tanh(jnp.exp(x) * 2.0 + 1.0), np.ones((3, 4), np.float32))
    assert kinds(run_passes(program)) == ["block"]
    assert_same(program, run_passes(program), inputs)

    program, _ = traced(lambda x: (jnp.exp(x) + 1.0, jnp.exp(x) * x.sum()), np.ones((3, 4), np.float32))
    shared = [op for op in run_passes(program).ops if "exp_f" in str(op.program)]
    assert len(shared) == 1


@pytest.mark.parametrize("activation", [jax.nn.softplus, jax.nn.mish, jax.nn.silu, jax.nn.gelu, jax.nn.log_sigmoid])
def test_what_one_chain_reads_at_several_places_is_part_of_it(activation):
    """The last reader to be absorbed makes the chain the only one."""
    arrays = (np.random.default_rng(2).standard_normal(shape, np.float32) for shape in ((5, 7), (7, 9), (9,)))
    program, inputs = traced(lambda x, w, b: activation(x @ w + b), *arrays)
    result = run_passes(program)
    assert kinds(result) == ["matmul"]
    assert_same(program, result, inputs)


def test_kernels_and_programs_read_16_bits_without_a_conversion_before():
    def function(x, w, v):
        wide = x.astype(jnp.float32)
        numbers = ("NHWC", "HWIO", "NHWC")
        y = lax.conv_general_dilated(wide, w.astype(jnp.float32), (1, 1), "SAME", dimension_numbers=numbers)
        # A product takes them beside float32.
        return y, wide.max((0, 1)), wide * 2.0, v @ w.reshape(36, 2).astype(jnp.float32)

    x, w, v = np.ones((1, 5, 6, 4), jnp.bfloat16), np.ones((3, 3, 4, 2), jnp.bfloat16), np.ones((3, 36), np.float32)
    program, inputs = traced(function, x, w, v)
    result = run_passes(program)
    assert sorted(kinds(result)) == ["block", "conv2d", "matmul", "reduce"]
    assert_same(program, result, inputs)


def test_fuse_does_not_repeat_work_across_a_broadcast():
    def function(x, v):
        return x * jnp.exp(v)

    program, inputs = traced(function, np.ones((64, 8), np.float32), np.ones(8, np.float32))
    result = run_passes(program)
    assert [op.output.shape for op in result.ops if "exp_f" in str(op.program)] == [(8,)]
    assert_same(program, result, inputs)


def test_epilogue_takes_bias_scale_residual_and_activation():
    def function(x, w, scale, shift):
        y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(y * scale + shift + x)

    rng = np.random.default_rng(1)
    shapes = ((1, 5, 5, 4), (3, 3, 4, 4), (4,), (4,))
    program, inputs = traced(function, *(rng.standard_normal(shape, np.float32) for shape in shapes))
    result = run_passes(program)
    assert kinds(result) == ["conv2d"]
    assert_same(program, result, inputs)
    assert kinds(run_passes(program, {"epilogue"})) == ["conv2d", "block"]


@pytest.mark.parametrize("product", ["matmul", "conv2d"])
def test_an_epilogue_goes_on_where_a_block_was_too_long(product):
    """A chain of more instructions than a block has becomes several: the second reads what the first gives, not the sum."""

    def function(x, w, r, s):
        y = x @ w if product == "matmul" else lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)
        for k in range(60):
            y = jnp.maximum(y * (1 - 0.01 * k) + (r if k < 30 else s), -y)
        return y

    rng = np.random.default_rng(4)
    shapes = ((40, 24), (24, 32), (40, 32), (40, 32))
    if product == "conv2d":
        shapes = ((1, 5, 8, 6), (3, 3, 6, 7), (1, 5, 8, 7), (1, 5, 8, 7))
    program, inputs = traced(function, *(rng.standard_normal(shape, np.float32) for shape in shapes))
    result = run_passes(program, {"winograd"})
    assert kinds(result) == [product]
    (op,) = result.ops
    assert op.program is not None
    assert len(op.program.instructions) > fuse.MAX_INSTRUCTIONS
    assert kinds(run_passes(program, {"winograd", "epilogue"}))[:3] == [product, "block", "block"]
    assert_same(program, result, inputs)
    (expected,) = evaluate(program, *inputs)
    np.testing.assert_allclose(apu.build(result, 2).run(*inputs)[0], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_an_exact_convolution_is_not_taken_for_one_of_less_precision():
    def conv(x, w, precision):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers, precision=precision)

    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((1, 56, 56, 64), np.float32), rng.standard_normal((3, 3, 64, 64), np.float32)
    program, _ = traced(lambda x, w: (conv(x, w, None), conv(x, w, lax.Precision.HIGHEST)), x, w)
    assert sorted(kinds(run_passes(program))) == ["conv2d", "winograd", "winograd_weights"]


@pytest.mark.parametrize(
    ("size", "channels", "window", "tile"),
    [
        (56, 64, (3, 3), (4, 4)),
        (28, 128, (3, 3), (4, 4)),
        (14, 256, (3, 3), (3, 3)),
        (7, 512, (3, 3), (2, 2)),
        (8, 448, (3, 3), (2, 2)),
        (35, 48, (5, 5), (4, 4)),
        (17, 192, (1, 7), (1, 6)),
        (17, 192, (7, 1), (6, 1)),
        (8, 384, (1, 3), (1, 4)),
    ],
)
def test_winograd_takes_large_patches_unless_their_weights_cost_more_than_they_save(size, channels, window, tile):
    x, w = np.ones((1, channels, size, size), np.float32), np.ones((channels, channels, *window), np.float32)
    program, _ = traced(lambda x: lax.conv(x, jnp.asarray(w), (1, 1), "SAME"), x)
    result = run_passes(program)
    (op,) = [op for op in result.ops if op.family.name != "block"]
    op = transposed.part_of(op) if op.family is transposed.TRANSPOSED else op  # it may write NCHW itself
    assert op.family.name == "winograd", "known weights are transformed when tracing, in whatever order they are stored"
    assert op.attrs.tile == tile


def test_outputs_are_dense_distinct_values_that_an_op_writes():
    program, inputs = traced(lambda x: (x, x.T, x.T, jnp.exp(x), jnp.exp(x).ravel()), np.ones((3, 4), np.float32))
    result = run_passes(program)
    produced = {op.output for op in result.ops}
    assert all(operand.view.is_dense() and operand.value in produced for operand in result.outputs)
    assert len({operand.value for operand in result.outputs}) == len(result.outputs)
    assert_same(program, result, inputs)


def test_an_output_of_another_shape_is_no_copy():
    program, inputs = traced(lambda x: (jnp.exp(x).reshape(2, 6), jnp.log(x)), np.ones((3, 4), np.float32))
    result = run_passes(program)
    assert kinds(result) == ["block"]
    graph = apu.build(result, 1)
    graph.verify()
    exp, log = graph.run(*inputs)
    assert exp.shape == (2, 6)
    np.testing.assert_allclose(exp, np.e, rtol=1e-6)
    np.testing.assert_array_equal(log, np.zeros((3, 4)))
    again = graph.program()
    assert [operand.shape for operand in again.outputs] == [(2, 6), (3, 4)]
    assert_same(program, again, inputs)


def test_unknown_pass_is_refused(monkeypatch):
    program, _ = traced(jnp.exp, np.ones(3, np.float32))
    with pytest.raises(InputError, match=r"'fusion'.*choose from simplify"):
        run_passes(program, {"fusion"})
    monkeypatch.setenv("ASPEN_DISABLE_PASSES", "layout, nonsense")
    with pytest.raises(InputError, match="nonsense"):
        disabled_by_environment()
