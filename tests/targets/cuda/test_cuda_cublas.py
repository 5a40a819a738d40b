"""Products by cublasLt inside our graphs, played by the host: which ones it takes, its results, and what becomes of failures."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import apu
from aspen_jax.cache.disk_cache import CACHE_VARIABLE
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from aspen_jax.targets.cuda.library import cublas
from aspen_jax.targets.cuda.library.cublas import LibraryMatrix, LibraryProduct
from aspen_jax.targets.cuda.library.library import by_library
from aspen_jax.targets.cuda.plan import KernelPlan
from aspen_jax.targets.cuda.price import NUM_BLOCKS, Gpu
from aspen_jax.targets.cuda.product_tuning import Sample, tune_kernels
from aspen_jax.targets.cuda.products import kernel_choices
from aspen_jax.targets.cuda.products.blocks import block
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, Timed, considering, current
from aspen_jax.targets.cuda.products.problem import Problem
from tests.targets.cuda import cuda_host, fake_cuda
from tests.targets.cuda.cuda_check import operands_of, ops_of, prepared, random, shaped, trace_of
from tests.targets.cuda.fake_libraries import CUBLAS, check_failures, check_runs
from tests.targets.cuda.test_cuda_runtime import EXECUTORS

pytestmark = [
    pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler"),
    pytest.mark.skipif(cublas.is_there(), reason="the real cublasLt would come before the fake"),
]


@pytest.fixture(autouse=True)
def _moving_memory():
    """Nodes of graphs get other addresses in each run."""
    driver = fake_cuda.load()
    driver.fake_cuda_move(True)
    yield
    driver.fake_cuda_move(False)


GPU = Gpu(places=1)  # of so few places no depth is split


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(ARCHITECTURE_VARIABLE, "sm_90a")
    monkeypatch.setattr(cublas, "is_there", lambda: True)
    kernel_choices.forget()
    yield
    kernel_choices.forget()


def product_of(function, *arguments):
    (op,) = (op for op in ops_of(function, arguments, GPU) if op.family.name == "matmul")
    return LibraryProduct.of(op)


def test_matrices_as_the_library_is_told_of_them():
    found = product_of(lambda x, w, b, r: x @ w + b + r, *shaped((3, 64, 128), (128, 192), (192,), (3, 64, 192)))
    like = LibraryMatrix(-1, False, 192, 0)
    sides = LibraryMatrix(0, False, 128, 0), LibraryMatrix(1, False, 192, 0)
    assert found == LibraryProduct(192, 192, 128, 1, 1, 1, *sides, LibraryMatrix(3, False, 192, 0), like, 2, False)
    along = product_of(lambda x, w: jnp.einsum("bmk,bnk->bmn", x, w), *shaped((5, 40, 64), (5, 72, 64), dtype=np.float16))
    sides = LibraryMatrix(0, False, 64, 40 * 64), LibraryMatrix(1, True, 64, 72 * 64)
    like = LibraryMatrix(-1, False, 72, 40 * 72)
    assert along == LibraryProduct(40, 72, 64, 5, 2, 2, *sides, like, like, -1, False)
    relu = product_of(lambda x, w, b: jax.nn.relu(x @ w + b), *shaped((64, 128), (128, 192), (192,)))
    assert relu is not None
    assert (relu.bias, relu.relu) == (2, True)


SQUARE = (64, 64)


@pytest.mark.parametrize(
    ("function", "shapes", "dtype"),
    [
        (lambda x, w: jnp.tanh(x @ w), [SQUARE] * 2, jnp.bfloat16),  # what is done with the sums
        (lambda x, w, y: jax.nn.relu(x @ w) + y, [SQUARE] * 3, jnp.bfloat16),
        (lambda x, w, y: x @ w + y + y * 2, [SQUARE] * 3, jnp.bfloat16),
        (lambda x, w, y: (x @ w).astype(jnp.float32) + y.astype(jnp.float32), [SQUARE] * 3, jnp.bfloat16),
        (lambda x, w: x @ w, [(64, 60), (60, 64)], jnp.bfloat16),  # lines that are not aligned
        (lambda x, w: x @ w, [SQUARE, (64, 60)], jnp.bfloat16),
        (lambda x, w: x.T @ w, [SQUARE] * 2, jnp.bfloat16),  # lines of the left side that lie across the depth
        (lambda x, w: x[::-1] @ w, [(3, 64, 64), (3, 64, 64)], jnp.bfloat16),  # matrices in reverse
        (lambda x, w: x[:, ::-1] @ w, [SQUARE] * 2, jnp.bfloat16),
        (lambda x, w: x @ w, [(4, 64), SQUARE], jnp.bfloat16),  # few rows
        (lambda x, w: jnp.matmul(x, w, precision="highest"), [SQUARE] * 2, np.float32),
        (lambda x, w: jnp.einsum("bmhk,bnhk->bhmn", x, w), [(2, 64, 3, 64)] * 2, jnp.bfloat16),  # two axes of matrices
    ],
)
def test_what_the_library_does_not_take(function, shapes, dtype):
    assert product_of(function, *shaped(*shapes, dtype=dtype)) is None


def test_a_product_in_the_memory_of_what_it_adds_to():
    def residual(x, w, y):
        return (x @ w + jnp.cumsum(y, 0),)

    (op,) = (op for op in ops_of(residual, shaped(*[SQUARE] * 3, dtype=np.float32), GPU) if op.family.name == "matmul")
    assert op.in_place
    product = LibraryProduct.of(op)
    assert product is not None
    assert op.inputs[product.added.input] is op.family.rewritten(op)


def convolution(x, w, strides=(1, 1)):
    return jax.lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def test_convolutions_of_single_pixels_are_products():
    """They share the problem, and with it the choice, of a product."""
    function = functools.partial(pixels, convolution)
    (op,) = ops_of(function, shaped((8, 16, 16, 64), (1, 1, 64, 256), (256,), (8, 16, 16, 256)), GPU)
    problem = Problem.of(op)
    assert problem is not None
    assert by_library(op) is None
    with considering(KernelChoices("sm_90a", {problem: Timed(None, 1.0, by_cublas=True)})):
        sides = LibraryMatrix(0, False, 64, 0), LibraryMatrix(1, False, 256, 0)
        like = LibraryMatrix(-1, False, 256, 0)
        rows = 8 * 16 * 16
        assert by_library(op) == LibraryProduct(rows, 256, 64, 1, 1, 1, *sides, LibraryMatrix(3, False, 256, 0), like, 2, True)
        assert "ByCublas<" in cuda_host.source([op])
        assert str(KernelPlan.of(op, current())) == "cublasLt: timed"


def pixels(convolution, x, w, b, y):
    return jax.nn.relu(convolution(x, w) + b + y)


@pytest.mark.parametrize(("window", "strides"), [((3, 3), (1, 1)), ((1, 1), (2, 2))])
def test_other_convolutions_stay_ours(window, strides):
    function = functools.partial(convolution, strides=strides)
    (op,) = ops_of(function, shaped((8, 16, 16, 64), (*window, 64, 256)), GPU)
    assert LibraryProduct.of(op) is None


@pytest.fixture(scope="module")
def example():
    """A graph whose products are the library's, its code, arguments by a seed and results of a float32 reference."""
    shapes = (96, 64), (64, 128), (128, 64), (128,), (96, 64), (64, 64)

    def of(dtype):
        def arguments(seed):
            return [random(seed + i, *shape, dtype=dtype) * dtype(0.25) for i, shape in enumerate(shapes)]

        def function(*given):
            h = given[0] @ given[1] + given[3]
            y = jnp.tanh(h) @ given[2] + given[4]
            pixels = jax.nn.relu(convolution(jnp.sin(y).reshape(2, 6, 8, 64), given[5][None, None]) + given[3][:64])
            return y, pixels, h[:, :64] @ y.T

        trace = trace_of(function, arguments(0))
        (part,) = trace.parts
        found = {}
        for _ in range(2):  # products behind those whose choice is known
            with considering(KernelChoices("sm_90a", found)):
                program = prepared(part, GPU)
            problems = [problem for op in program.ops if (problem := Problem.of(op)) is not None]
            found = dict.fromkeys(problems, Timed(None, 1.0, by_cublas=True))
        with considering(KernelChoices("sm_90a", found)):
            graph, code = apu.build(program, NUM_BLOCKS, Gpu()), fake_cuda.code_of(program)
            taken = [op.family.name for op in program.ops if by_library(op) is not None]
            assert taken.count("matmul") >= 2
            assert "conv2d" in taken
            assert sum("ByCublas<" in cuda_host.source([op]) for op in program.ops) >= 2

        def is_right(results, given):
            with jax.default_matmul_precision("highest"):
                expected = jax.jit(function)(*(item.astype(np.float32) for item in given))
            tolerance = 2e-5 if dtype == np.float32 else 3e-2
            pairs = [(np.asarray(ours, np.float64), np.asarray(theirs)) for ours, theirs in zip(results, expected, strict=True)]
            return all(np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max() for ours, theirs in pairs)

        return graph, code, arguments, operands_of(trace, part), is_right

    return of


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_products_by_the_library(example, executor, captured, dtype):
    check_runs(example(dtype), executor, captured, CUBLAS)


@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_a_failure_is_told_and_leaves_nothing(example, executor, captured):
    check_failures(example(jnp.bfloat16), executor, captured, CUBLAS)


class _Timer:
    """For which the library is the fastest."""

    def __init__(self):
        self.ways = []

    def build(self, ops, arrays=None):
        self.ways.append(by_library(ops[0]) is not None)
        return self.ways[-1], ops[-1].output

    def time(self, built):
        is_library, output = built
        return Sample(1e-5 if is_library else 2e-5, np.ones(output.shape, np.float32))


@pytest.mark.parametrize("there", [True, False])
def test_only_timing_chooses_the_library(monkeypatch, there):
    monkeypatch.setattr(cublas, "is_there", lambda: there)
    monkeypatch.setattr(kernel_choices, "_card", lambda: "a card")

    def plain(x, w):
        return x @ w

    def ended(x, w):
        return jnp.tanh(x @ w)

    def both(x, w):  # of one problem; the library takes only one of them, and not the first
        return ended(x, w), plain(x * 2, w)

    shapes = shaped((512, 512), (512, 512))
    (op,), (other,) = ops_of(plain, shapes, GPU), ops_of(ended, shapes, GPU)
    problem = Problem.of(op)
    assert problem == Problem.of(other)
    assert by_library(op) is None
    timer = _Timer()
    tune_kernels(list(trace_of(both, shapes).parts), frozenset(), timer)
    assert any(timer.ways) == there
    kernel_choices.forget()  # and read from disk
    assert kernel_choices.known().of(problem).by_cublas == there
    assert (by_library(op) is not None) == there
    if not there:
        return
    # It is one launch, which the cost model does not cut; and the same product with another end stays ours, as it was timed.
    assert str(KernelPlan.of(op, current())) == "cublasLt: timed"
    assert apu.build(prepared(trace_of(plain, shapes).parts[0], Gpu()), NUM_BLOCKS, Gpu()).num_tiles == 1
    rows, columns = block(other)
    assert str(KernelPlan.of(other, current())) == f"{kernel_choices.candidate_for(other) or f'{rows} x {columns}'}: timed"
    assert by_library(ops_of(plain, shaped((256, 512), (512, 512)), GPU)[0]) is not None
    # Where it is gone, all is ours.
    monkeypatch.setattr(cublas, "is_there", lambda: False)
    assert by_library(op) is None


_WITHOUT = """
import numpy as np
import jax.numpy as jnp
from tests import conftest
from tests.targets.cuda import fake_cuda
fake_cuda.load()
from aspen_jax import apu
from aspen_jax.targets.cuda.library import cublas
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, Timed, considering, current
from aspen_jax.targets.cuda.price import NUM_BLOCKS, Gpu
from aspen_jax.targets.cuda.products.problem import Problem
from aspen_jax.errors import EngineError
from tests.targets.cuda.cuda_check import prepared, random, trace_of
x, w = random(0, 64, 64), random(1, 64, 64)
part = trace_of(jnp.matmul, (x, w)).parts[0]
(op,) = prepared(part).ops
assert not cublas.is_there()
cublas.is_there = lambda: True  # as it was when the code was made
with considering(KernelChoices("sm_90a", {Problem.of(op): Timed(None, 1.0, by_cublas=True)})):
    program = prepared(part)
    run = DeviceRun(apu.build(program, NUM_BLOCKS, Gpu()), fake_cuda.code_of(program), Executor.GRAPH)
try:
    run.run(x, w)
except EngineError as error:
    print(error)
"""


def test_without_the_library_the_error_says_what_to_do(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-P", "-c", _WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert "cublasLt is not here (libcublasLt.so.13), but ops were tuned to be its; pip install" in done.stdout, done.stderr
