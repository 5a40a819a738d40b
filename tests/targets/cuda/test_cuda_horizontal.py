"""Ops of one kernel in one launch: which they are, what they give on the played driver, and what is refused."""

from __future__ import annotations

import collections
import dataclasses
import gc
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import _engine, apu
from aspen_jax.errors import EngineError, InputError
from aspen_jax.frontend.trace import Trace
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Program, Value
from aspen_jax.targets.cuda.code.horizontal import launched_with
from aspen_jax.targets.cuda.code.image import Code, compile_log, distinct
from aspen_jax.targets.cuda.code.source import kernels
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.library import cublas
from aspen_jax.targets.cuda.library.library import by_library
from aspen_jax.targets.cuda.price import NUM_BLOCKS, Gpu
from aspen_jax.targets.cuda.products.kernel_choices import KernelChoices, Timed, considering
from aspen_jax.targets.cuda.products.problem import Problem
from tests.targets.cuda import cuda_host, fake_cuda
from tests.targets.cuda.cuda_check import prepared, trace_of

played = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")
EXECUTORS = [(Executor.STREAM, False), (Executor.GRAPH, False), (Executor.STREAM, True)]

GPU = Gpu(places=1)  # the depth is not split


class Built(NamedTuple):
    trace: Trace
    program: Program
    graph: TileGraph

    def run(self, run: DeviceRun, given, *, captured=False):
        """What the function gives for arguments."""
        (part,) = self.trace.parts
        values = dict(zip(self.trace.inputs, given, strict=True))
        results = run.run(*(values[value] for value in part.inputs), captured=captured)
        values.update((operand.value, result) for operand, result in zip(part.outputs, results, strict=True))
        return [values[value] for value in self.trace.outputs if isinstance(value, Value)]


def built(function, arguments, gpu=GPU):
    trace = trace_of(function, arguments)
    (part,) = trace.parts
    program = prepared(part, gpu)
    return Built(trace, program, apu.build(program, NUM_BLOCKS, gpu))


def launches(built):
    """The families of the ops of each launch of several."""
    together = collections.defaultdict(list)
    for op, first in zip(built.program.ops, launched_with(built.program.ops, built.graph), strict=True):
        together[first].append(op.family.name)
    return [names for names in together.values() if len(names) > 1]


def random(seed, *shape, dtype=np.float32):
    return (np.random.default_rng(seed).standard_normal(shape) / 4).astype(dtype)


def caches(k, v, new_k, new_v, at):
    """Two caches that get a row each, and what reads them."""
    k = lax.dynamic_update_slice(k, new_k, (at, 0))
    v = lax.dynamic_update_slice(v, new_v, (at, 0))
    return k, v, jnp.tanh(k).sum(0) + jnp.tanh(v).sum(0)


def some_caches(seed):
    return random(seed, 30, 8), random(seed + 1, 30, 8), random(seed + 2, 1, 8), random(seed + 3, 1, 8), np.int32(seed % 30)


def products(a, p, q, b, r):
    """Two products of the same rows with weights that are arguments, one of others, and what reads them all."""
    x, y, z = jax.nn.relu(a @ p), jax.nn.relu(a @ q), jax.nn.relu(b @ r)
    return x, jnp.cumsum(x, 1) + jnp.cumsum(y, 1) * jnp.cumsum(z, 1), z


def some_products(dtype):
    shapes = (72, 80), (80, 88), (80, 88), (72, 80), (80, 88)
    return lambda seed: [random(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes)]


class Case(NamedTuple):
    function: Callable
    arguments: Callable
    tolerance: float
    warpgroups: bool


CASES = {
    "caches": Case(caches, some_caches, 1e-5, False),
    "products": Case(products, some_products(np.float32), 2e-3, False),
    "products of bfloat16": Case(products, some_products(jnp.bfloat16), 3e-2, False),
    "products by tensor maps": Case(products, some_products(jnp.bfloat16), 3e-2, True),
}


def test_updates_of_two_caches_are_one_launch():
    assert launches(built(caches, some_caches(0))) == [["scatter", "scatter"]]


def test_products_whose_weights_are_arguments_are_one_launch():
    assert ["matmul"] * 3 in launches(built(products, some_products(np.float32)(0)))


def test_who_waits_for_another_is_launched_behind_it():
    def chain(x, w):
        for _ in range(4):
            x = jnp.cumsum(x @ w, axis=-1)
        return x

    assert launches(built(chain, (random(0, 16, 16), random(1, 16, 16)))) == []


def test_memory_that_is_used_again_keeps_launches_apart():
    """Where one writes what the other reads, the same code at the same depth is not enough."""
    example = built(caches, some_caches(0))
    scatters = [number for number, op in enumerate(example.program.ops) if op.family.name == "scatter"]
    (first,), (second,) = (example.graph.tiles_of(number)[0] for number in scatters)
    parents, children = example.graph.dag.edges()
    edges = sorted([*zip(parents.tolist(), children.tolist(), strict=True), (first, second)])
    counts = np.bincount([parent for parent, _ in edges], minlength=example.graph.num_tiles)
    graph = dataclasses.replace(example.graph, child_counts=counts, children=np.array([child for _, child in edges]))
    assert launches(example._replace(graph=graph)) == []


@pytest.mark.parametrize(("count", "expected"), [(5, [5]), (8, [8]), (9, [8]), (19, [8, 8, 3])])
def test_a_launch_holds_at_most_eight(count, expected):
    def function(*xs):
        return [jnp.cumsum(x, 0) for x in xs]

    assert list(map(len, launches(built(function, [random(i, 9, 4) for i in range(count)])))) == expected


def test_launches_that_fill_the_gpu_stay_apart():
    def function(x, y):
        return jnp.cumsum(x, 1), jnp.cumsum(y, 1)

    seen = set()
    for rows in (64, 512, 4096, 16384):
        example = built(function, (random(0, rows, 64), random(1, rows, 64)))
        first, second = np.bincount(example.graph.tile_ops).tolist()
        assert first == second
        seen.add(fits := 2 * first <= _engine.CUDA_FEWEST_TILES)
        assert bool(launches(example)) == fits
    assert seen == {True, False}


@pytest.mark.parametrize(("inputs", "expected"), [(20, 4), (150, 3), (250, 2), (300, 1)])
def test_arguments_of_a_kernel_are_few_enough(inputs, expected):
    """An address has 8 bytes, and CUDA takes 4 KiB."""

    def function(*xs):
        return [jnp.concatenate(xs[start::4] if expected else xs) for start in range(4)]

    example = built(function, [random(i, 1, 4) for i in range(4 * inputs)])
    found = distinct(example.program.ops, example.graph)
    assert max(found.most_ops) == expected
    for op, most in zip(found.ops, found.most_ops, strict=True):
        assert 8 + most * 8 * (len(op.inputs) + len(op.outputs)) <= 4096


def test_what_a_library_multiplies_stays_alone(monkeypatch):
    monkeypatch.setattr(cublas, "is_there", lambda: True)
    example = built(lambda a, p, q: (a @ p, a @ q), some_products(jnp.bfloat16)(0)[:3])
    assert launches(example) == [["matmul", "matmul"]]
    problems = {problem for op in example.program.ops if (problem := Problem.of(op)) is not None}
    with considering(KernelChoices("sm_90a", dict.fromkeys(problems, Timed(None, 1.0, by_cublas=True)))):
        assert all(by_library(op) is not None for op in example.program.ops)
        assert launches(example) == []


@played
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_the_same_as_alone(name, executor, captured):
    case, driver = CASES[name], fake_cuda.load()
    example = built(case.function, case.arguments(0))
    assert launches(example)
    live = driver.fake_cuda_live()
    code = fake_cuda.code_of(example.program, example.graph, warpgroups=case.warpgroups)
    alone = DeviceRun(example.graph, fake_cuda.code_of(example.program, warpgroups=case.warpgroups), executor)
    run = DeviceRun(example.graph, code, executor)
    for seed in range(6):  # more than there are instances of a graph; memory is another one each time
        driver.fake_cuda_seed(seed)
        given = case.arguments(10 * seed)
        results = example.run(run, given, captured=captured)
        for ours, other in zip(results, example.run(alone, given, captured=captured), strict=True):
            assert ours.tobytes() == other.tobytes()
        with jax.default_matmul_precision("highest"):
            expected = jax.jit(case.function)(*(item.astype(np.float32) if item.ndim else item for item in given))
        for ours, theirs in zip(results, expected, strict=True):
            assert np.abs(ours.astype(np.float64) - theirs).max() <= case.tolerance * np.abs(theirs).max()
    del run, alone
    gc.collect()
    assert driver.fake_cuda_live() == live


@played
def test_a_launch_less_is_given_to_the_device():
    driver = fake_cuda.load()
    example = built(caches, some_caches(0))
    counts = []
    for graph in (None, example.graph):
        before = driver.fake_cuda_count(b"cuLaunchKernel")
        run = DeviceRun(example.graph, fake_cuda.code_of(example.program, graph), Executor.STREAM)
        example.run(run, some_caches(0))
        counts.append(driver.fake_cuda_count(b"cuLaunchKernel") - before)
    assert counts[1] == counts[0] - 1


@played
@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_code_for_several_launches_one_where_launches_would_wait_for_each_other(executor, captured):
    """Then each tile is a launch. The kernel still reads arguments for two ops."""

    def function(x, y):
        return jnp.cumsum(jnp.cumsum(x, 0) * 2, 0), jnp.cumsum(jnp.cumsum(y, 0) * 2, 0)

    fake_cuda.load()
    given = random(0, 12, 8), random(1, 12, 8)
    example = built(function, given)
    code = fake_cuda.code_of(example.program, example.graph)
    assert launches(example)
    first, second = chained(example.graph, code)
    wrong = np.arange(len(code.kernels), dtype=np.int32)
    wrong[second] = first
    schedule = _engine.cuda_schedule(example.graph.to_bytes(), 1, _engine.CUDA_FEWEST_TILES, wrong.tolist())
    assert max(schedule[0]) + 1 == example.graph.num_tiles
    run = DeviceRun(example.graph, code._replace(launched_with=wrong), executor)
    results = example.run(run, given, captured=captured)
    for ours, theirs in zip(results, jax.jit(function)(*given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def chained(graph, code):
    """An op, and one of the same kernel that waits for it."""
    pairs = itertools.combinations(range(graph.num_ops), 2)
    tiles = [graph.tiles_of(op)[0][:1] for op in range(graph.num_ops)]
    return next((a, b) for a, b in pairs if code.kernels[a] == code.kernels[b] and graph.dag.has_paths(tiles[a], tiles[b]).all())


@played
def test_what_cannot_be_launched_together_is_refused():
    fake_cuda.load()
    example = built(caches, some_caches(0))
    code = fake_cuda.code_of(example.program, example.graph)

    def run(code: Code):
        return example.run(DeviceRun(example.graph, code, Executor.STREAM), some_caches(0))

    alone = fake_cuda.code_of(example.program)
    message = r"the code cannot launch all tiles of ops '.*', '.*' together; install one build"
    with pytest.raises(EngineError, match=message):
        run(alone._replace(launched_with=code.launched_with))
    ops = len(code.kernels)
    with pytest.raises(InputError, match=f"there are launches for 1 ops, but the graph has {ops}; trace the function again"):
        run(code._replace(launched_with=code.launched_with[:1]))
    for number in (-1, ops, ops - 1):
        wrong = np.arange(ops, dtype=np.int32)
        wrong[0] = number
        with pytest.raises(InputError, match=f"op 0 cannot be launched with op {number}; trace the function again"):
            run(code._replace(launched_with=wrong))
    others = next(number for number in range(1, ops) if code.kernels[number] != code.kernels[0])
    wrong = np.arange(ops, dtype=np.int32)
    wrong[others] = 0
    with pytest.raises(InputError, match=f"ops 0 and {others} have different kernels, so they cannot be launched together"):
        run(code._replace(launched_with=wrong))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_a_kernel_for_several_takes_hardly_more(architecture):
    """An argument that a register chooses must not become a copy in memory of each thread."""
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    for case in CASES.values():
        example = built(case.function, case.arguments(0))
        found = distinct(example.program.ops, example.graph)
        assert max(found.most_ops) > 1
        logs = [compile_log(kernels(found.ops, most), architecture) for most in ([], found.most_ops)]
        for number in range(len(found.ops)):
            alone, several = (fields(log, number) for log in logs)
            assert several.stack == alone.stack == 0
            assert several.spilled == alone.spilled
            assert several.registers <= alone.registers + 4


class Fields(NamedTuple):
    stack: int
    spilled: int
    registers: int


def fields(log, number):
    """What the assembler says of a kernel."""
    text = log[log.index(f"function 'op{number}'") :]
    words = text.split()
    stack = int(words[words.index("stack") - 2])
    spilled = int(words[words.index("spill") - 2])
    registers = int(words[words.index("Used") + 1])
    return Fields(stack, spilled, registers)
