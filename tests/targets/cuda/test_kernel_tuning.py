"""Candidates of CUDA kernels: which there are, how they are timed, what is kept, and that each compiles."""

from __future__ import annotations

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax.cache.disk_cache import CACHE_VARIABLE
from aspen_jax.errors import AspenError
from aspen_jax.ir.random_array import random_array
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.primitive.choices import Choices
from aspen_jax.report.explain import Explanation
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from aspen_jax.targets.cuda.library import cublas, cudnn
from aspen_jax.targets.cuda.price import Gpu
from aspen_jax.targets.cuda.product_tuning import DeviceTimer, Sample, tune_kernels
from aspen_jax.targets.cuda.products import kernel_choices
from aspen_jax.targets.cuda.products.blocks import block
from aspen_jax.targets.cuda.products.candidates import STREAMED_WARPGROUPS, Architecture, Candidate, candidates, legal
from aspen_jax.targets.cuda.products.kernel_choices import Choice, KernelChoices, Timed, candidate_for, considering
from aspen_jax.targets.cuda.products.problem import Problem
from aspen_jax.targets.cuda.target import CudaTarget
from benchmarks.gpu.candidates import assembled, ways_of
from tests.targets.cuda import cuda_check, cuda_host, fake_cuda
from tests.targets.cuda.cuda_check import ops_of, shaped, trace_of

LARGE = Problem("product", "bfloat16", False, 8, False, 4096, 4096, 1024, 1)
SMALL = dataclasses.replace(LARGE, rows=128, columns=768, depth=768)
HOPPER, AMPERE = Architecture.of("sm_90a"), Architecture.of("sm_80")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(ARCHITECTURE_VARIABLE, "sm_90a")
    monkeypatch.setattr(kernel_choices, "_card", lambda: "a card")
    for library in (cublas, cudnn):  # test_cuda_cublas.py, test_cuda_cudnn.py
        monkeypatch.setattr(library, "is_there", lambda: False)
    kernel_choices.forget()
    yield
    kernel_choices.forget()


def layer(x, w):
    return jax.nn.relu(x @ w)


def programs(function=layer, shapes=((256, 512), (512, 512)), dtype=jnp.bfloat16):
    return list(trace_of(function, shaped(*shapes, dtype=dtype)).parts)


class FakeTimer:
    """Knows what each candidate takes; gives the same result for all."""

    def __init__(self, seconds=None, wrong=(), broken=()):
        self.seconds = seconds or (lambda candidate: 1e-5)
        self.wrong, self.broken = wrong, broken
        self.built = []

    def build(self, ops, arrays=None):
        candidate = candidate_for(ops[0])
        self.built.append((Problem.of(ops[0]), candidate, len(ops)))
        if candidate in self.broken:
            raise AspenError("it does not fit")
        return candidate, ops[-1].output

    def time(self, built):
        candidate, output = built
        result = random_array(output)
        if candidate in self.wrong:
            result = np.full_like(result, self.wrong[candidate])
        return Sample(self.seconds(candidate), result)


# Which there are.


@pytest.mark.parametrize("architecture", [AMPERE, HOPPER])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("rows", [9, 128, 4096])
def test_tens_of_candidates_fit_an_architecture_and_suit_a_problem(architecture, dtype, rows):
    problem = dataclasses.replace(LARGE, dtype=dtype, rows=rows, vector=4 if dtype == "float32" else 8)
    found = candidates(problem, architecture)
    assert 8 <= len(found) <= 64
    assert len(set(found)) == len(found)
    for item in found:
        assert item.shared_bytes(problem.itemsize) <= architecture.shared_bytes
        assert item.threads - 32 * item.is_streamed in (128, 256, 512)
        assert item.rows % item.warp_rows == item.columns % item.warp_columns == 0
        assert item.by_warpgroups <= architecture.warpgroups


def test_large_problems_have_the_largest_warp_tiles_and_small_ones_small_blocks():
    largest = max(candidates(LARGE, AMPERE), key=lambda item: item.warp_rows * item.warp_columns)
    assert (largest.warp_rows, largest.warp_columns) == (64, 64)
    assert all(item.rows * item.columns >= 2048 for item in candidates(LARGE, AMPERE))
    assert all(item.rows * item.columns <= 64 * 64 for item in candidates(SMALL, AMPERE))
    assert {item.rows for item in candidates(dataclasses.replace(SMALL, rows=9), HOPPER)} == {16}


def test_warpgroups_take_what_they_can_copy_in_whole_vectors():
    def cores(problem):
        return {item.core for item in candidates(problem, HOPPER)}

    assert "warpgroups" in cores(LARGE)
    assert cores(dataclasses.replace(LARGE, vector=4)) == cores(dataclasses.replace(LARGE, depth=32)) == {"warps"}
    assert cores(dataclasses.replace(LARGE, dtype="float32", exact=True)) == {"threads"}


def test_registers_are_a_limit():
    tight = dataclasses.replace(AMPERE, registers_of_thread=128)
    assert max(item.warp_rows * item.warp_columns for item in legal(LARGE, tight)) < 64 * 64
    assert list(legal(LARGE, dataclasses.replace(AMPERE, shared_bytes=1 << 10))) == []


def test_one_pixel_convolutions_are_products_and_groups_are_no_problem():
    def problem(w, groups=1, stride=1):
        def function(x, w):
            numbers = {"dimension_numbers": ("NHWC", "HWIO", "NHWC"), "feature_group_count": groups}
            return lax.conv_general_dilated(x, w, (stride, stride), "SAME", **numbers)

        (op,) = (op for op in ops_of(function, shaped((2, 14, 14, 64), w), Gpu(places=1)) if op.family.name == "conv2d")
        return Problem.of(op)

    assert problem((1, 1, 64, 128)) == Problem("product", "bfloat16", False, 8, False, 392, 128, 64, 1)
    assert problem((3, 3, 64, 128)) == Problem("convolution", "bfloat16", False, 8, False, 392, 128, 576, 1)
    assert problem((1, 1, 64, 36), stride=2) == Problem("convolution", "bfloat16", False, 4, False, 98, 36, 64, 1)
    assert problem((3, 3, 32, 128), groups=2) is None


# How they are chosen.


def test_the_fastest_is_kept_for_other_programs_and_processes():
    best = candidates(Problem.of(ops_of(layer, shaped((256, 512), (512, 512)), Gpu(places=1))[0]), HOPPER)[3]
    timer = FakeTimer(lambda candidate: 1e-6 if candidate == best else 1e-5)
    with considering(KernelChoices("sm_90a")):
        (op,) = ops_of(layer, shaped((256, 512), (512, 512)), Gpu(places=1))
        as_modelled = block(op)
    found = tune_kernels(programs(), frozenset({"split_depth"}), timer)
    assert (found.products, found.known, found.refused) == (1, 0, ())
    assert found.candidates >= len(timer.built)
    assert found.default_s == pytest.approx(10 * found.tuned_s)
    assert "10.00 times as fast as by default" in str(found)
    kernel_choices.forget()  # another process
    (op,) = ops_of(layer, shaped((256, 512), (512, 512)), Gpu(places=1))
    assert kernel_choices.choice_for(op) == Choice(best, "timed")
    assert block(op) == (best.rows, best.columns) != as_modelled
    # Another model with the same product: nothing is timed again.
    again = FakeTimer()
    other = tune_kernels(programs(lambda x, w: jnp.tanh(x @ w) * 2), frozenset({"split_depth"}), again)
    assert (other.products, other.known, again.built) == (0, 1, [])


def test_the_default_stays_where_no_candidate_gains():
    found = tune_kernels(
        programs(), frozenset({"split_depth"}), FakeTimer(lambda candidate: 1e-5 if candidate is None else 0.995e-5)
    )
    assert found.products == 1
    (entry,) = kernel_choices.known().entries.values()
    assert entry.candidate is None
    assert entry.nanoseconds == pytest.approx(1e4)


def test_what_fails_or_is_wrong_is_refused():
    (op,) = ops_of(layer, shaped((256, 512), (512, 512)), Gpu(places=1))
    found = candidates(Problem.of(op), HOPPER)
    first, second, third, fourth, best, *_ = found
    seconds = {first: 1e-9, second: 1e-9, third: math.nan, fourth: 1e-9, best: 1e-6}
    timer = FakeTimer(lambda item: seconds.get(item, 1e-5), wrong={first: np.nan, fourth: 7.0}, broken={second})
    tuning = tune_kernels(programs(), frozenset({"split_depth"}), timer)
    assert [text.rpartition(": ")[2] for text in tuning.refused] == [
        "its result is not finite",
        "it does not fit",
        "it took nan s",
        tuning.refused[3].rpartition(": ")[2],
    ]
    assert "from the default's" in tuning.refused[3]
    assert kernel_choices.choice_for(op) == Choice(best, "timed")


def test_nothing_is_kept_of_a_product_whose_default_fails():
    tuning = tune_kernels(programs(), frozenset({"split_depth"}), FakeTimer(broken={None}))
    assert tuning.products == 0
    assert len(tuning.refused) == 1
    assert not kernel_choices.known().entries


def test_a_shape_never_timed_takes_the_choice_of_the_nearest():
    one, two = legal(LARGE, HOPPER), legal(SMALL, HOPPER)
    a, b = next(one), next(two)
    a = dataclasses.replace(a, stages=a.stages + 1)
    choices = KernelChoices("sm_90a", {LARGE: Timed(a, 9.0), SMALL: Timed(b, 2.0)})
    near = dataclasses.replace(SMALL, rows=256, columns=1536)
    assert near.distance(SMALL) == pytest.approx(2)
    assert choices.of(near) == Choice(b, f"nearest to {SMALL}, 2.0 doublings away")
    assert choices.of(dataclasses.replace(LARGE, depth=1536)).candidate == a
    # Nothing is near enough, or of the same sort, or the choice is not legal for it.
    for other in ({"rows": 1 << 20}, {"dtype": "float16"}, {"vector": 4}, {"kind": "convolution"}, {"along_depth": True}):
        assert choices.of(dataclasses.replace(SMALL, **other)).reason == "default; nothing like it was timed"
    assert b.core == "warpgroups"
    assert choices.of(dataclasses.replace(SMALL, rows=32)).candidate is None


def test_the_number_of_slices_is_timed_and_taken():
    shapes = ((49, 4608), (4608, 512))
    modelled = next(op for op in ops_of(layer, shaped(*shapes)) if op.family.name == "matmul").output.shape[0]
    assert modelled > 2

    class Slower(FakeTimer):
        """More slices take longer; a product as a whole takes longest."""

        def build(self, ops, arrays=None):
            self.slices = ops[0].output.shape[0] if len(ops) == 2 else 99
            return (self.slices, *super().build(ops))

        def time(self, built):
            return super().time(built[1:])._replace(seconds=built[0] * 1e-6)

    found = tune_kernels(programs(shapes=shapes), frozenset(), Slower())
    assert found.products == 1
    sliced = next(op for op in ops_of(layer, shaped(*shapes)) if op.family.name == "matmul")
    assert sliced.output.shape[0] < modelled


@pytest.mark.parametrize("spoil", [lambda entry: [entry[0], entry[1], -1, None], lambda entry: entry[:2], lambda entry: None])
def test_a_damaged_file_is_ignored_with_a_warning(spoil):
    path = kernel_choices.remember({SMALL: Timed(next(legal(SMALL, HOPPER)), 5.0)})
    assert path is not None
    kernel_choices.forget()
    assert kernel_choices.known().entries
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "measured": {name: spoil(item) for name, item in content["measured"].items()}}))
    kernel_choices.forget()
    with pytest.warns(RuntimeWarning, match="ignored"):
        assert not kernel_choices.known().entries


def test_choices_belong_to_a_card_an_architecture_and_the_kernels(monkeypatch):
    kernel_choices.remember({SMALL: Timed(None, 5.0)})
    for change in (
        lambda patch: patch.setattr(kernel_choices, "_card", lambda: "another card"),
        lambda patch: patch.setattr(kernel_choices, "_card", lambda: None),
        lambda patch: patch.setenv(ARCHITECTURE_VARIABLE, "sm_80"),
        lambda patch: patch.setattr(kernel_choices, "_source", lambda: "other kernels"),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            kernel_choices.forget()
            assert not kernel_choices.known().entries
    kernel_choices.forget()
    assert kernel_choices.known().entries


def test_functions_compiled_before_are_compiled_anew_with_what_was_timed():
    shapes = shaped((4096, 256), (256, 4096))
    jaxpr = jax.make_jaxpr(layer)(*shapes)

    def blocks():
        return [note for part in explained(jaxpr) for op in part.ops if (note := op.blocks)]

    assert blocks() == ["128 x 256 streamed: default; nothing like it was timed"]
    (op,) = ops_of(layer, shapes)
    problem = Problem.of(op)
    assert problem is not None
    best = candidates(problem, HOPPER)[5]
    kernel_choices.remember({problem: Timed(best, 5.0, slices=1)})
    assert blocks() == [f"{best}: timed"]


def explained(jaxpr):
    compiled = compile_jaxpr(jaxpr, Options(Choices(), CudaTarget.here()))
    return Explanation.of("layer", jaxpr.jaxpr, [(jaxpr, compiled)], None).parts


# On the played device and driver.


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("dtype", "exact", "candidate"),
    [
        (jnp.bfloat16, False, Candidate("warpgroups", 256, 64, 64, 64, 3)),
        (jnp.bfloat16, False, Candidate("warpgroups", 64, 128, 64, 128, 5)),
        (jnp.bfloat16, False, Candidate(STREAMED_WARPGROUPS, 128, 64, 64, 64, 6)),
        (jnp.bfloat16, False, Candidate("warps", 32, 128, 32, 32, 2)),
        (jnp.float32, True, Candidate("threads", 32, 256, 8, 4, 2)),
    ],
)
@pytest.mark.sweep
def test_candidates_compute_the_same(dtype, exact, candidate):
    def function(x, w, image, filters):
        by_pixels = lax.conv_general_dilated(image, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(x @ w), by_pixels

    function = cuda_check.exactly(function) if exact else function
    shapes = (300, 136), (136, 72), (1, 9, 11, 64), (3, 3, 64, 72)
    operands = [cuda_check.random(i, *shape).astype(dtype) for i, shape in enumerate(shapes)]
    ops = ops_of(function, operands, Gpu(places=1))
    problems = [Problem.of(op) for op in ops]
    entries = {problem: Timed(candidate, 1.0) for problem in problems if problem is not None}
    assert len(entries) == 2
    with considering(KernelChoices("sm_90a", entries)):
        assert all(candidate_for(op) == candidate for op in ops)
        tolerance = 1e-5 if exact else 1e-2
        cuda_check.check(function, *operands, gpu=Gpu(places=1), warpgroups=True, tolerance=tolerance)


@pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")
def test_candidates_are_built_and_timed_on_the_played_driver(monkeypatch):
    fake_cuda.load()
    some = [Candidate("warpgroups", 64, 64, 64, 64, 3), Candidate("warps", 32, 128, 32, 32, 2)]
    monkeypatch.setattr("aspen_jax.targets.cuda.product_tuning.candidates", lambda problem, architecture: some)
    timer = DeviceTimer(lambda program: fake_cuda.code_of(program, warpgroups=True))
    found = tune_kernels(programs(shapes=((80, 72), (72, 64))), frozenset({"split_depth"}), timer)
    assert (found.products, found.candidates, found.refused) == (1, 3 + 1, ())
    assert found.path is not None


# By the assembler.


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_candidates_compile_without_spills(architecture):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    ways = ways_of(architecture)
    assert len(ways) > 100
    # The largest, and some others; `python -m benchmarks candidates` takes all.
    for way in (ways[0], *ways[7::37]):
        assert assembled(way, architecture).faults == (), way
