"""Convolutions by cuDNN inside our graphs, played by the host: which ones it takes, its results, and what becomes of failures."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import apu
from aspen_jax.cache.disk_cache import CACHE_VARIABLE
from aspen_jax.errors import EngineError
from aspen_jax.ops.conv import CONV2D
from aspen_jax.targets.cuda.code.image import Code
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.library import cublas, cudnn
from aspen_jax.targets.cuda.library.cudnn import LibraryConvolution, LibraryOperand, LibraryStep, filter_order, relaid
from aspen_jax.targets.cuda.library.library import by_library, library_of
from aspen_jax.targets.cuda.plan import KernelPlan
from aspen_jax.targets.cuda.price import NUM_BLOCKS, Gpu
from aspen_jax.targets.cuda.product_tuning import Sample, tune_kernels
from aspen_jax.targets.cuda.products import kernel_choices
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, Timed, considering, current
from aspen_jax.targets.cuda.products.problem import Problem
from tests.targets.cuda import cuda_host, fake_cuda
from tests.targets.cuda.cuda_check import operands_of, ops_of, prepared, random, shaped, trace_of
from tests.targets.cuda.fake_libraries import CUDNN, check_failures, check_runs
from tests.targets.cuda.test_cuda_runtime import EXECUTORS

pytestmark = [
    pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(cudnn.is_there(), reason="the real cuDNN would come before the fake"),
]

GPU = Gpu(places=1)  # of so few places no depth is split


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(ARCHITECTURE_VARIABLE, "sm_90a")
    monkeypatch.setattr(cublas, "is_there", lambda: False)
    monkeypatch.setattr(cudnn, "is_there", lambda: True)
    driver = fake_cuda.load()
    driver.fake_cuda_move(True)  # nodes of graphs get other addresses in each run
    kernel_choices.forget()
    yield
    kernel_choices.forget()
    driver.fake_cuda_move(False)


def convolution(x, w, strides=(1, 1), padding="SAME", dilation=(1, 1)):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=numbers)


def normed(w, mean, scale, bias, x, y):
    """A residual block's end: its scale stays behind the convolution in 16 bits."""
    return jax.nn.relu((convolution(x, w) - mean) * scale + bias + y)


def convolution_of(function, *arguments):
    (op,) = (op for op in ops_of(function, arguments, GPU) if op.family is CONV2D)
    return LibraryConvolution.of(relaid(op))


def test_a_convolution_as_the_library_is_told_of_it():
    vectors = [(24,)] * 3
    found = convolution_of(normed, *shaped((3, 3, 16, 24), *vectors, (2, 10, 12, 16), (2, 10, 12, 24)))
    operands = [LibraryOperand(number, 1, number < 5) for number in (2, 3, 4, 5)]
    steps = [LibraryStep(1, 0, 1), LibraryStep(2, 5, 2), LibraryStep(0, 6, 3), LibraryStep(0, 7, 4), LibraryStep(3, 8, -1)]
    extents = (2, 10, 12, 16, 24, 3, 3, 10, 12)
    assert found == LibraryConvolution(*extents, (1, 1), (1, 1), (1, 1), (1, 1), 1, 4, 5, tuple(operands), tuple(steps))
    strided = functools.partial(convolution, strides=(2, 1), padding=((0, 1), (2, 1)), dilation=(1, 2))
    found = convolution_of(strided, *shaped((1, 9, 11, 8), (3, 2, 8, 40), dtype=np.float16))
    assert found == LibraryConvolution(1, 9, 11, 8, 40, 3, 2, 4, 12, (2, 1), (1, 2), (0, 2), (1, 1), 2, 0, 0, (), ())


@pytest.mark.parametrize(
    ("function", "shapes", "dtype"),
    [
        (convolution, [(2, 8, 8, 16), (3, 3, 16, 24)], np.float32),
        (convolution, [(2, 8, 8, 16), (3, 3, 16, 20)], jnp.bfloat16),  # channels that are no whole vectors
        (lambda x, w: jnp.tanh(convolution(x, w)), [(2, 8, 8, 16), (3, 3, 16, 24)], jnp.bfloat16),  # what follows
        (lambda x, w: convolution(x[:, ::2], w), [(2, 16, 8, 16), (3, 3, 16, 24)], jnp.bfloat16),  # lines apart
        (functools.partial(convolution, padding=((-1, 0), (0, 0))), [(2, 8, 8, 16), (3, 3, 16, 24)], jnp.bfloat16),
        (lambda x, w, v: v - convolution(x, w), [(2, 8, 8, 16), (3, 3, 16, 24), (24,)], jnp.bfloat16),  # of a vector
    ],
)
def test_what_the_library_does_not_take(function, shapes, dtype):
    assert convolution_of(function, *shaped(*shapes, dtype=dtype)) is None


def test_weights_must_lie_as_the_library_wants_them():
    (op,) = ops_of(convolution, shaped((2, 8, 8, 16), (3, 3, 16, 24)), GPU)
    assert LibraryConvolution.of(op) is None
    assert LibraryConvolution.of(relaid(op)) is not None
    assert Problem.of(relaid(op)) == Problem.of(op)


def chosen(ops):
    """As if cuDNN had been the fastest for each convolution that it takes."""
    found = {}
    for op in ops:
        taken = LibraryConvolution.of(relaid(op)) if op.family is CONV2D else None
        if taken is not None:
            before = found.get(Problem.of(op), Timed(None, 1.0))
            found[Problem.of(op)] = dataclasses.replace(before, cudnn=(*before.cudnn, (taken.digest, True)))
    return KernelChoices("sm_90a", found)


def test_what_was_timed_serves_no_other_convolution():
    (op,) = ops_of(convolution, shaped((2, 8, 8, 16), (3, 3, 16, 24)), GPU)
    (ended,) = ops_of(lambda x, w: jax.nn.relu(convolution(x, w)), shaped((2, 8, 8, 16), (3, 3, 16, 24)), GPU)
    assert Problem.of(op) == Problem.of(ended)
    with considering(chosen([op])):
        assert by_library(relaid(op)) is not None
        assert by_library(op) is None
        assert by_library(relaid(ended)) is None
        assert filter_order(op) == cudnn.ORDER
        assert filter_order(relaid(op)) is None
        assert str(KernelPlan.of(relaid(op), current())) == "cuDNN: timed"
        assert "ByCudnn<" in cuda_host.source([relaid(op)])


def block(weights, x, y):
    """Two convolutions with all that may follow them, and one that stays ours."""
    w, mean, scale, bias, v, other = weights
    h = normed(w, mean, scale, bias, x, y)
    g = jax.nn.relu(convolution(h, v, strides=(2, 2)) + bias)
    return h, jnp.tanh(convolution(g, other))


@pytest.fixture(scope="module")
def example():
    shapes = (3, 3, 16, 24), (24,), (24,), (24,), (3, 3, 24, 24), (3, 3, 24, 8)

    def of(dtype):
        # Sums stay small, where tanh is as exact as they are.
        of = [0.25 if len(shape) == 1 else 0.04 for shape in shapes]
        weights = [random(i, *shape, dtype=dtype) * dtype(scale) for i, (shape, scale) in enumerate(zip(shapes, of, strict=True))]
        function = functools.partial(block, weights)

        def arguments(seed):
            return [random(seed + 9, 2, 10, 12, 16, dtype=dtype), random(seed + 10, 2, 10, 12, 24, dtype=dtype)]

        trace = trace_of(function, arguments(0))
        (part,) = trace.parts
        with considering(chosen(prepared(part, GPU).ops)):
            program = prepared(part, GPU)
            assert [by_library(op) is not None for op in program.ops if op.family is CONV2D].count(True) == 2
            graph = apu.build(program, NUM_BLOCKS, Gpu())
            code = fake_cuda.code_of(program, graph)

        def is_right(results, given):
            with jax.default_matmul_precision("highest"):
                wide = [item.astype(np.float32) for item in weights]
                expected = jax.jit(functools.partial(block, wide))(*(item.astype(np.float32) for item in given))
            pairs = [(np.asarray(ours, np.float64), np.asarray(theirs)) for ours, theirs in zip(results, expected, strict=True)]
            return all(np.abs(ours - theirs).max() <= 3e-2 * np.abs(theirs).max() for ours, theirs in pairs)

        return graph, code, arguments, operands_of(trace, part), is_right

    return functools.cache(of)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16])
@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_convolutions_by_the_library(example, executor, captured, dtype):
    check_runs(example(dtype), executor, captured, CUDNN)


@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_a_failure_is_told_and_leaves_nothing(example, executor, captured):
    check_failures(example(jnp.bfloat16), executor, captured, CUDNN)


def altered(program, old, new):
    """The code of a program, of another build."""
    text = cuda_host.source(program.ops)
    assert old in text
    image = np.frombuffer(cuda_host.compiled(text.replace(old, new)).read_bytes(), np.uint8)
    numbers = np.arange(len(program.ops), dtype=np.int32)
    return Code(image, numbers, numbers)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (".num_steps = 1", ".num_steps = 9999", "names a convolution for a library that is none; install one build"),
        (".num_operands = 1", ".num_operands = 9999", "names a convolution for a library that is none; install one build"),
        (".first = 0, .second = 1", ".first = 0, .second = 2", "names a convolution for a library that is none"),
        (".type = 1, .num_operands", ".type = 7, .num_operands", "names a convolution for a library that is none"),
        ("LibraryOperand{.input = 2", "LibraryOperand{.input = 3", "names something for a library that is not the op's"),
        (".result_height = 8", ".result_height = 9", "cudnnBackendFinalize of a graph of operations failed with status 3000"),
    ],
)
def test_code_that_is_of_another_build_is_refused(old, new, message):
    CUDNN.load()
    w = random(0, 3, 3, 8, 16).astype(jnp.bfloat16)
    (part,) = trace_of(lambda x, b: convolution(x, w) + b, shaped((1, 8, 8, 8), (16,))).parts
    with considering(chosen(prepared(part, GPU).ops)):
        program = prepared(part, GPU)
        graph = apu.build(program, NUM_BLOCKS, Gpu())
        run = DeviceRun(graph, altered(program, old, new), Executor.STREAM)
    given = {8: random(1, 1, 8, 8, 8).astype(jnp.bfloat16), 16: random(2, 16).astype(jnp.bfloat16)}
    with pytest.raises(EngineError, match=message):
        run.run(*(given[value.shape[-1]] for value in part.inputs))


def test_where_the_library_has_no_way_the_error_says_what_to_do(example):
    graph, code, arguments, operands, _ = example(jnp.bfloat16)
    CUDNN.ask("offer", 3)  # but not the one that is good
    try:
        with pytest.raises(EngineError, match="cuDNN has no way to compute this convolution without a workspace; tune again"):
            DeviceRun(graph, code, Executor.STREAM).run(*operands(arguments(0)))
    finally:
        CUDNN.ask("offer", 4)


class _Timer:
    """By which ours is the slowest, and cuDNN the fastest."""

    def __init__(self):
        self.ways = []

    def build(self, ops, arrays=None):
        self.ways.append(library_of(ops[0]))
        assert bool(arrays) == (self.ways[-1] == "cuDNN")
        return self.ways[-1], ops[-1].output

    def time(self, built):
        library, output = built
        return Sample({None: 3e-5, "cublasLt": 2e-5, "cuDNN": 1e-5}[library], np.ones(output.shape, np.float32))


def test_cudnn_is_timed_beside_cublas(monkeypatch):
    monkeypatch.setattr(cublas, "is_there", lambda: True)
    monkeypatch.setattr(kernel_choices, "_card", lambda: "a card")
    w = random(0, 1, 1, 64, 128).astype(jnp.bfloat16)
    (part,) = trace_of(lambda x: convolution(x, w), shaped((8, 32, 32, 64))).parts
    timer = _Timer()
    tune_kernels([part], frozenset(), timer)
    assert timer.ways[-4:] == [None, "cublasLt", "cublasLt", "cuDNN"]
    (op,) = prepared(part, GPU).ops
    assert library_of(op) == "cuDNN"
    monkeypatch.setattr(cudnn, "is_there", lambda: False)
    (op,) = prepared(part, GPU).ops
    assert library_of(op) == "cublasLt"


def test_another_end_of_a_known_product_is_timed_too(monkeypatch):
    monkeypatch.setattr(kernel_choices, "_card", lambda: "a card")
    w = random(0, 3, 3, 64, 128).astype(jnp.bfloat16)
    ways = []
    for end in (jax.nn.relu, lambda x: x, jax.nn.relu):
        (part,) = trace_of(lambda x, end=end: end(convolution(x, w)), shaped((8, 32, 32, 64))).parts
        timer = _Timer()
        tune_kernels([part], frozenset(), timer)
        ways.append(timer.ways.count("cuDNN"))
        kernel_choices.forget()  # and read from disk
        (op,) = prepared(part, GPU).ops
        assert library_of(op) == "cuDNN"
    assert ways == [1, 1, 0]


def test_a_result_that_the_caller_wants_in_another_order_stays_ours():
    w = random(0, 3, 3, 16, 24).astype(jnp.bfloat16)
    (plain,) = trace_of(lambda x: convolution(x, w), shaped((2, 8, 8, 16))).parts
    (part,) = trace_of(lambda x: convolution(x, w).transpose(0, 3, 1, 2), shaped((2, 8, 8, 16))).parts
    with considering(chosen(prepared(plain, GPU).ops)):
        assert library_of(prepared(plain, GPU).ops[0]) == "cuDNN"
        (op,) = prepared(part, GPU).ops
        assert library_of(op) is None
        assert "ConvByElement<" not in cuda_host.source([op])


@pytest.mark.parametrize("there", [True, False])
def test_only_timing_chooses_the_library(monkeypatch, there):
    monkeypatch.setattr(cudnn, "is_there", lambda: there)
    monkeypatch.setattr(kernel_choices, "_card", lambda: "a card")
    w = random(0, 3, 3, 64, 128).astype(jnp.bfloat16)

    def known(x):
        return jax.nn.relu(convolution(x, w))

    def given(x, w):
        return jax.nn.relu(convolution(x, w))

    x = jax.ShapeDtypeStruct((8, 32, 32, 64), jnp.bfloat16)
    (part,) = trace_of(known, [x]).parts
    timer = _Timer()
    tune_kernels([part], frozenset(), timer)
    assert any(timer.ways) == there
    kernel_choices.forget()  # and read from disk
    (op,) = prepared(part, GPU).ops
    assert (by_library(op) is not None) == there
    # Weights that are arguments stay as they are.
    (other,) = ops_of(given, [x, jax.ShapeDtypeStruct(w.shape, w.dtype)], GPU)
    assert by_library(other) is None
    if not there:
        return
    assert apu.build(prepared(part, Gpu()), NUM_BLOCKS, Gpu()).num_tiles == 1
    # Where it is gone, all is ours.
    monkeypatch.setattr(cudnn, "is_there", lambda: False)
    (ours,) = prepared(part, GPU).ops
    assert by_library(ours) is None
    assert "ConvByElement<" not in cuda_host.source([ours])


def test_a_timer_gives_both_ways_the_same_weights(monkeypatch):
    """By the fakes: what cuDNN gives is what our kernels give."""
    from aspen_jax.targets.cuda.product_tuning import DeviceTimer

    before = CUDNN.ask("convolutions")
    monkeypatch.setattr(kernel_choices, "_card", lambda: "a card")
    w = random(0, 3, 3, 8, 16).astype(jnp.bfloat16)
    (part,) = trace_of(lambda x: jax.nn.relu(convolution(x, w)), [jax.ShapeDtypeStruct((1, 8, 8, 8), jnp.bfloat16)]).parts
    found = tune_kernels([part], frozenset(), DeviceTimer(lambda program: fake_cuda.code_of(program, warpgroups=True)))
    assert not [reason for reason in found.refused if "cuDNN" in reason]
    assert CUDNN.ask("convolutions") > before
