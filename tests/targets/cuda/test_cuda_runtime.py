"""Executors on the fake of CUDA's driver: results, what they leave behind, and what happens when any call fails."""

from __future__ import annotations

import gc
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend import core

from aspen_jax import apu, aspen
from aspen_jax.errors import EngineError, InputError
from aspen_jax.frontend import trace as frontend
from aspen_jax.graph.tilegraph import TileGraph
from aspen_jax.ir.program import Op, Operand, Program, Value
from aspen_jax.ops.block import BLOCK
from aspen_jax.ops.block_program import single
from aspen_jax.targets.cuda.code.image import Code
from aspen_jax.targets.cuda.code.source import translation_unit
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.price import Gpu
from tests.targets.cuda import cuda_host, fake_cuda
from tests.targets.cuda.cuda_check import operands_of, prepared, trace_of
from tests.tile_graphs import small_net
from tests.tiled import TINY_TILES

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def frozen_before():
    """What other tests have left is not searched for garbage: there may be so much of it that searching takes a second."""
    gc.freeze()
    yield
    gc.unfreeze()


EXECUTORS = [(Executor.STREAM, False), (Executor.GRAPH, False), (Executor.STREAM, True)]


def network(params, x):
    """Branches, so that streams wait for each other."""
    numbers = ("NHWC", "HWIO", "NHWC")
    for i, (w, v, b) in enumerate(params):
        left = jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers) + b)
        right = lax.conv_general_dilated(x, v, (1, 1), "SAME", dimension_numbers=numbers)
        left, right = (
            lax.reduce_window(side, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME") for side in (left, jnp.tanh(right))
        )
        x = left * right + i
    return x, x.sum((1, 2))


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Example(NamedTuple):
    """A graph, its code, random arguments of the function by a seed, and a graph's operands from arguments."""

    graph: TileGraph
    code: Code
    arguments: Callable
    operands: Callable


@pytest.fixture(scope="module")
def example():
    params = [(random(i, 3, 3, 8, 8) / 8, random(i + 9, 1, 1, 8, 8) / 3, random(i + 20, 8)) for i in range(3)]

    def arguments(seed):
        return params, random(seed, 2, 24, 20, 8)

    with jax.default_matmul_precision("highest"):
        trace = trace_of(network, arguments(0))
    (part,) = trace.parts
    program = prepared(part)

    graph = apu.build(program, 8, TINY_TILES)
    return Example(graph, fake_cuda.code_of(program, graph), arguments, operands_of(trace, part))


def is_right(results, arguments):
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(network)(*arguments)
    return all(np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max() for ours, theirs in zip(results, expected, strict=True))


def the_cpu_is_no_worse_off():
    x = np.ones((64, 64), np.float32)
    return (aspen(lambda x: x @ x)(x) == 64).all()


@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_executors(example, executor, captured):
    fake, (graph, code, arguments, operands) = fake_cuda.load(), example
    live = fake.fake_cuda_live()
    run = DeviceRun(graph, code, executor)
    for seed in range(5):
        fake.fake_cuda_seed(seed)
        given = arguments(seed)
        # The memory is another one each time: nodes must follow.
        assert is_right(run.run(*operands(given), captured=captured), given)
        assert fake.fake_cuda_current() == 0
    del run
    gc.collect()
    assert fake.fake_cuda_live() == live


def test_runs_are_timed_on_the_device_and_on_the_host(example):
    fake, (graph, code, arguments, operands) = fake_cuda.load(), example
    live, given = fake.fake_cuda_live(), arguments(3)
    for executor in Executor:
        run = DeviceRun(graph, code, executor)
        results, seconds = run.timed(*operands(given), rounds=3)
        assert is_right(results, given)
        assert len(seconds.host) == 3
        assert min(seconds.host) > 0
        assert seconds.device == pytest.approx(
            [1e-4] * 3
        )  # ten runs between two events, which in the fake are a millisecond apart
        fake.fake_cuda_fail(b"cuEventElapsedTime", 1, LAUNCH_FAILED)
        with pytest.raises(EngineError, match="cuEventElapsedTime failed with CUDA_ERROR_LAUNCH_FAILED"):
            run.timed(*operands(given), rounds=3)
        del run
        gc.collect()
        assert fake.fake_cuda_live() == live


# As in cuda.h.
OUT_OF_MEMORY, NO_DEVICE, INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX = 2, 100, 200, 209, 218
UNSUPPORTED_PTX_VERSION, LAUNCH_FAILED, SYSTEM_DRIVER_MISMATCH = 222, 719, 803

FALLIBLE = {
    (Executor.STREAM, False): ["cuLaunchKernel", "cuEventRecord", "cuStreamWaitEvent"],
    (Executor.GRAPH, False): [
        "cuStreamWaitEvent",
        "cuGraphCreate",
        "cuGraphAddKernelNode",
        "cuGraphInstantiate",
        "cuGraphUpload",
        "cuEventRecord",
        "cuGraphLaunch",
    ],
    (Executor.STREAM, True): ["cuStreamBeginCapture", "cuGraphAddKernelNode", "cuStreamUpdateCaptureDependencies"],
}
AT_LOAD = ["cuModuleLoadData", "cuModuleGetGlobal", "cuModuleGetFunction", "cuMemAlloc", "cuMemcpyHtoD", "cuStreamCreate"]


def failure(example, given, executor, captured):
    """The message of the error that a first run ends with, or None."""
    try:
        DeviceRun(example.graph, example.code, executor).run(*example.operands(given), captured=captured)
    except EngineError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_a_failure_is_named_and_leaves_the_device_usable(example, executor, captured):
    fake, (graph, code, arguments, operands) = fake_cuda.load(), example
    live, given = fake.fake_cuda_live(), arguments(1)
    for call in [*AT_LOAD, "cuEventCreate", "cuStreamGetCtx", *FALLIBLE[executor, captured]]:
        for countdown in (0, 3):
            fake.fake_cuda_fail(call.encode(), countdown, LAUNCH_FAILED)
            message = failure(example, given, executor, captured)
            if message is None:
                assert countdown
            else:
                what = r" for (tiles \d+ to \d+ of op '.+'|a workspace of \d+ bytes)"
                assert re.match(rf"{call}({what})? failed with CUDA_ERROR_LAUNCH_FAILED \(", message)
                assert ("of op" in message) == (call in ("cuLaunchKernel", "cuGraphAddKernelNode"))
                assert "start again, or run on the CPU" in message
            fake.fake_cuda_fail(b"", 0, 0)
            assert fake.fake_cuda_current() == 0
            assert the_cpu_is_no_worse_off()
            run = DeviceRun(graph, code, executor)
            assert is_right(run.run(*operands(given), captured=captured), given)
            del run
            gc.collect()
            assert fake.fake_cuda_live() == live


def test_a_lack_of_memory_says_what_to_do(example):
    fake, (graph, code, arguments, operands) = fake_cuda.load(), example
    live, given = fake.fake_cuda_live(), arguments(4)
    assert graph.workspace_bytes
    buffers = len(graph.operands) + len(graph.results) + 1
    # The first operand, the caller's workspace, the boxes of tiles, our workspace; then what the driver takes for itself.
    places = [("cuMemAlloc", place) for place in (0, buffers - 1, buffers, buffers + 1)]
    calls = ("cuModuleLoadData", "cuGraphInstantiate", "cuGraphUpload", "cuGraphLaunch")
    for call, countdown in [*places, *((call, 0) for call in calls)]:
        of_ours = f" for a workspace of {graph.workspace_bytes} bytes" if countdown > buffers else ""
        fake.fake_cuda_fail(call.encode(), countdown, OUT_OF_MEMORY)
        message = failure(example, given, Executor.GRAPH, captured=False)
        assert message is not None
        remedy = "use a smaller batch or a smaller model, or"
        assert re.match(rf"{call}{of_ours} failed with CUDA_ERROR_OUT_OF_MEMORY \(.*\); {remedy}", message)
        assert fake.fake_cuda_current() == 0
        assert the_cpu_is_no_worse_off()
        run = DeviceRun(graph, code, Executor.GRAPH)
        assert is_right(run.run(*operands(given)), given)
        del run
        gc.collect()
        assert fake.fake_cuda_live() == live


@pytest.mark.parametrize(
    ("result", "remedy"),
    [
        (NO_BINARY_FOR_GPU, "the code was compiled for another GPU: trace the function on this machine"),
        (UNSUPPORTED_PTX_VERSION, "newer CUDA than the driver: install a newer driver, or trace the function on this machine"),
        (INVALID_IMAGE, "the code is damaged: delete what is in ASPEN_CACHE_DIR, and trace the function again"),
        (INVALID_PTX, "the code is damaged: delete what is in ASPEN_CACHE_DIR, and trace the function again"),
        (SYSTEM_DRIVER_MISMATCH, "restart the machine, or run on the CPU (JAX_PLATFORMS=cpu)"),
    ],
)
def test_code_that_does_not_load_says_what_to_do(example, result, remedy):
    fake_cuda.load().fake_cuda_fail(b"cuModuleLoadData", 0, result)
    message = failure(example, example.arguments(5), Executor.STREAM, captured=False)
    assert message is not None
    assert message.endswith(remedy)
    assert the_cpu_is_no_worse_off()


def test_code_without_a_kernel_says_what_to_do(example):
    graph, code, arguments, operands = example
    fake_cuda.load()
    (x, y) = (Value((8,), np.dtype(np.float32)) for _ in range(2))
    op = Op(BLOCK, None, (Operand.whole(x),), y, single("neg_f"))
    image = fake_cuda.code_of(Program((x,), (), (op,), (Operand.whole(y),))).image
    missing = np.arange(len(code.kernels), dtype=np.int32)[::-1].copy()
    with pytest.raises(
        EngineError, match=r"cuModuleGet\w+ failed with .*; the code lacks a kernel of the graph: trace the function"
    ):
        DeviceRun(graph, code._replace(image=image, kernels=missing), Executor.STREAM).run(*operands(arguments(0)))
    assert the_cpu_is_no_worse_off()


@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_a_device_that_is_lost_in_mid_run(example, executor, captured):
    """Where errors of kernels come out, and where the host is in the middle of giving commands."""
    fake, (graph, code, arguments, operands) = fake_cuda.load(), example
    given = arguments(6)
    for call in ("cuStreamSynchronize", FALLIBLE[executor, captured][-1], "cuMemcpyDtoH"):
        run = DeviceRun(graph, code, executor)
        assert is_right(run.run(*operands(given), captured=captured), given)
        fake.fake_cuda_lose(call.encode(), 0, LAUNCH_FAILED)
        for _ in range(2):
            with pytest.raises(EngineError, match=r"failed with CUDA_ERROR_LAUNCH_FAILED .*: start again, or run on the CPU"):
                run.run(*operands(given), captured=captured)
            assert the_cpu_is_no_worse_off()
        del run
        gc.collect()
        fake.fake_cuda_fail(b"", 0, 0)
        assert fake.fake_cuda_current() == 0
        assert is_right(DeviceRun(graph, code, executor).run(*operands(given), captured=captured), given)


CHANGES = ("cuGraphInstantiate", "cuGraphUpload", "cuGraphExecKernelNodeSetParams")


def test_a_run_of_the_same_memory_changes_nothing_on_the_device(example):
    fake, (graph, code, arguments, operands) = fake_cuda.load(), example
    run, given = DeviceRun(graph, code, Executor.GRAPH), arguments(8)
    before = [fake.fake_cuda_count(call.encode()) for call in CHANGES]
    launched = fake.fake_cuda_count(b"cuGraphLaunch")
    results, _ = run.timed(*operands(given), rounds=2)  # 21 runs
    assert is_right(results, given)
    assert fake.fake_cuda_count(b"cuGraphLaunch") - launched == 21
    assert [fake.fake_cuda_count(call.encode()) - count for call, count in zip(CHANGES, before, strict=True)] == [1, 1, 0]


def by_maps(a, b, c, image, w):
    """A convolution and products by tensor maps; one reads what another writes, one has an epilogue of other inputs."""
    d = jax.nn.relu(a @ b)
    e = lax.conv_general_dilated(image, w, (1, 2), ((2, 0), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return e, d @ c, jnp.einsum("bmk,bnk->bmn", d, d) + a[:, :1, :1]


@pytest.fixture(scope="module")
def mapped():
    shapes = ((2, 72, 80), (80, 88), (88, 72), (2, 8, 14, 64), (3, 3, 64, 24))

    def arguments(seed):
        return [random(seed + i, *shape).astype(jnp.bfloat16) / 8 for i, shape in enumerate(shapes)]

    trace = trace_of(by_maps, arguments(0))
    (part,) = trace.parts
    program = prepared(part, Gpu(places=1))  # the depth is not split
    mapped = [op.family.name for op in program.ops if "MappedBuffers<" in translation_unit([op], "")]
    assert sorted(mapped) == ["conv2d", "matmul", "matmul", "matmul"]

    code = fake_cuda.code_of(program, warpgroups=True)
    return Example(apu.build(program, 8, TINY_TILES), code, arguments, operands_of(trace, part))


def agree(results, arguments):
    expected = jax.jit(by_maps)(*[argument.astype(np.float32) for argument in arguments])
    pairs = [(np.asarray(ours, np.float64), np.asarray(theirs)) for ours, theirs in zip(results, expected, strict=True)]
    return all(np.abs(ours - theirs).max() <= 1e-2 * np.abs(theirs).max() for ours, theirs in pairs)


@pytest.mark.parametrize(("executor", "captured"), EXECUTORS)
def test_tensor_maps_follow_memory_that_moves(mapped, executor, captured):
    fake, (graph, code, arguments, operands) = fake_cuda.load(), mapped
    live = fake.fake_cuda_live()
    run = DeviceRun(graph, code, executor)
    for seed in range(4):
        fake.fake_cuda_seed(seed)
        given = arguments(10 * seed)
        assert agree(run.run(*operands(given), captured=captured), given)
    # Maps that could not be made are made the next time. A new run makes all of its own, wherever memory lies.
    for countdown in (0, 3):
        given = arguments(100 + countdown)
        run = DeviceRun(graph, code, executor)
        fake.fake_cuda_fail(b"cuTensorMapEncodeTiled", countdown, 1)
        message = r"cuTensorMapEncodeTiled for input [01] of op '.+' failed with CUDA_ERROR_.*; set ASPEN_CUDA_ARCH=compute_80, "
        with pytest.raises(EngineError, match=message):
            run.run(*operands(given), captured=captured)
        assert fake.fake_cuda_current() == 0
        assert agree(run.run(*operands(given), captured=captured), given)
    del run
    gc.collect()
    assert fake.fake_cuda_live() == live


def test_launches_of_code_that_waits_start_early(mapped, monkeypatch):
    fake, (graph, code, arguments, operands) = fake_cuda.load(), mapped
    for setting, calls in (("on", 1), ("off", 0)):
        monkeypatch.setenv("ASPEN_CUDA_PROGRAMMATIC", setting)
        before = fake.fake_cuda_count(b"cuGraphAddDependencies")
        for seed in range(2):
            fake.fake_cuda_seed(seed)
            given = arguments(10 * seed)
            assert agree(DeviceRun(graph, code, Executor.GRAPH).run(*operands(given)), given)
        assert fake.fake_cuda_count(b"cuGraphAddDependencies") - before == 2 * calls
    monkeypatch.setenv("ASPEN_CUDA_PROGRAMMATIC", "1")
    with pytest.raises(EngineError, match="ASPEN_CUDA_PROGRAMMATIC='1' is no choice; set it to 'on' or 'off'"):
        DeviceRun(graph, code, Executor.GRAPH).run(*operands(arguments(0)))


def test_maps_are_made_where_memory_has_moved(mapped):
    fake, (graph, code, arguments, operands) = fake_cuda.load(), mapped
    run = DeviceRun(graph, code, Executor.GRAPH)
    given = arguments(7)
    before = fake.fake_cuda_count(b"cuTensorMapEncodeTiled")
    run.timed(*operands(given), rounds=1)  # 11 runs of the same memory
    assert fake.fake_cuda_count(b"cuTensorMapEncodeTiled") - before == 8


def appended(cache, row, i):
    """A row written into a cache, and a number of each column."""
    new = lax.dynamic_update_slice(cache, row, (i, 0))
    return new, jnp.exp(new).sum(0)


def allocations(graph, code, operands):
    """How often a first run takes memory of the device."""
    fake = fake_cuda.load()
    for count in range(100):
        fake.fake_cuda_fail(b"cuMemAlloc", count, OUT_OF_MEMORY)
        try:
            DeviceRun(graph, code, Executor.GRAPH).run(*operands)
        except EngineError:
            continue
        finally:
            fake.fake_cuda_fail(b"", 0, 0)
        return count
    raise AssertionError("it never ran")


def test_a_result_lies_in_the_operand_that_is_rewritten():
    fake_cuda.load()
    arguments = random(1, 30, 8), random(2, 1, 8), np.int32(5)
    jaxpr = jax.make_jaxpr(appended)(*arguments)
    trace = frontend.trace(core.ClosedJaxpr(jaxpr.jaxpr, jaxpr.consts))
    (part,) = trace.parts
    values = dict(zip(trace.inputs, arguments, strict=True))
    operands = [values[value] for value in part.inputs]
    graphs = []
    for disabled in ((), {"in_place"}):
        program = prepared(part, Gpu(), disabled)
        graphs.append((apu.build(program, 8, TINY_TILES), fake_cuda.code_of(program)))
    assert [len(graph.shared_memory) for graph, _ in graphs] == [1, 0]
    taken = []
    for graph, code in graphs:
        before = [np.copy(item) for item in operands]
        results, _ = DeviceRun(graph, code, Executor.GRAPH).timed(*operands, rounds=2)
        for found, expected in zip(results, jax.jit(appended)(*arguments), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)
        for item, old in zip(operands, before, strict=True):
            np.testing.assert_array_equal(item, old)
        taken.append(allocations(graph, code, operands))
    assert taken[0] == taken[1] - 1


def test_what_does_not_belong_together_is_refused(example):
    fake_cuda.load()
    graph, code, arguments, operands = example
    with pytest.raises(InputError, match="there is code for 1 ops, but the graph has"):
        DeviceRun(graph, code._replace(kernels=code.kernels[:1]), Executor.STREAM)
    with pytest.raises(InputError, match="kernel -1 is not one of"):
        DeviceRun(graph, code._replace(kernels=np.full_like(code.kernels, -1)), Executor.STREAM)
    swapped = DeviceRun(graph, code._replace(kernels=np.zeros_like(code.kernels)), Executor.STREAM)
    with pytest.raises(EngineError, match=r"takes . addresses, but op .* has"):
        swapped.run(*operands(arguments(0)))
    with pytest.raises(EngineError, match="compiled for another GPU"):
        DeviceRun(graph, code._replace(image=np.zeros(64, np.uint8)), Executor.STREAM).run(*operands(arguments(0)))
    run = DeviceRun(graph, code, Executor.STREAM)
    with pytest.raises(InputError, match="the graph takes 10 operands, but 0 were given"):
        run.run()
    with pytest.raises(InputError, match=r"operand 0 is float64\[2\], but the graph takes float32\["):
        run.run(*[np.zeros(2)] * 10)


WITHOUT_A_DEVICE = """
from aspen_jax import aspen
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.code.image import Code
from aspen_jax.errors import EngineError
from aspen_jax.graph.tilegraph import TileGraph
import numpy as np
import sys
graph = TileGraph.load(sys.argv[1])
try:
    DeviceRun(graph, Code(np.zeros(4, np.uint8), np.zeros(graph.num_ops, np.int32), np.arange(graph.num_ops)), Executor.STREAM)
except EngineError as error:
    print(error)
x = np.ones((64, 64), np.float32)
assert (aspen(lambda x: x @ x)(x) == 64).all()  # the CPU is no worse off
"""


def said_without_a_device(folder, before=""):
    graph = folder / "net.aspen"
    small_net().save(graph)
    command = [sys.executable, "-P", "-c", f"{before}\n{WITHOUT_A_DEVICE}", str(graph)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_a_driver(tmp_path):
    if shutil.which("nvidia-smi") is not None:
        pytest.skip("there may be a driver")
    said = said_without_a_device(tmp_path)
    assert said.startswith("CUDA's driver is not here (libcuda.so.1); install NVIDIA's driver, or run on the CPU")


@pytest.mark.parametrize("version", ["11.8", "10.2"])
def test_an_old_driver_is_refused(tmp_path, monkeypatch, version):
    major, minor = map(int, version.split("."))
    monkeypatch.setenv("FAKE_CUDA_VERSION", str(1000 * major + 10 * minor))
    before = f"import ctypes; ctypes.CDLL({fake_cuda.load()._name!r}, mode=ctypes.RTLD_GLOBAL)"
    said = said_without_a_device(tmp_path, before)
    assert said == f"CUDA's driver is of CUDA {version}; install one of CUDA 12 or later"


def test_a_driver_without_a_gpu(tmp_path):
    before = f"import ctypes; fake = ctypes.CDLL({fake_cuda.load()._name!r}, mode=ctypes.RTLD_GLOBAL)"
    said = said_without_a_device(tmp_path, f"{before}; fake.fake_cuda_fail(b'cuInit', 0, {NO_DEVICE})")
    assert said.endswith("this process may use no GPU: look at CUDA_VISIBLE_DEVICES, or run on the CPU (JAX_PLATFORMS=cpu)")
