"""Weights that kernels fetch before they wait: which they are, and that just their lines are fetched, before the wait."""

from __future__ import annotations

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from aspen_jax import apu
from aspen_jax.targets.cuda.code.ahead import Ahead
from aspen_jax.targets.cuda.code.image import compiled
from aspen_jax.targets.cuda.code.source import kernels
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.price import NUM_BLOCKS, Gpu
from tests.targets.cuda import cuda_host, fake_cuda
from tests.targets.cuda.cuda_check import ops_of, prepared, random, shaped, trace_of

played = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")

GPU = Gpu(places=1)  # of so few places no depth is split
OF_THREAD = 256  # bytes


def ahead_of(function, *shapes):
    (op,) = ops_of(function, shaped(*shapes), GPU)
    return Ahead.of(op)


def convolution(x, w):
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def test_what_is_fetched():
    assert ahead_of(jnp.matmul, (64, 96), (96, 128)) == Ahead(1, 96 * 128 * 2)
    assert ahead_of(lambda x, w: x @ w.T, (4, 96), (128, 96)) == Ahead(1, 96 * 128 * 2)
    assert ahead_of(lambda x, w: (w @ x.T).T, (64, 96), (128, 96)).bytes == 96 * 128 * 2
    assert ahead_of(convolution, (1, 8, 8, 16), (3, 3, 16, 24)) == Ahead(1, 9 * 16 * 24 * 2)
    # A matrix for each example; few bytes; columns in reverse or far apart; a beginning that is not aligned. Of many, the first.
    assert ahead_of(jnp.matmul, (3, 64, 96), (3, 96, 128)) == Ahead(0, 0)
    assert ahead_of(jnp.matmul, (64, 16), (16, 16)) == Ahead(0, 0)
    assert ahead_of(lambda x, w: x @ w[:, ::-1], (64, 96), (96, 128)) == Ahead(0, 0)
    assert ahead_of(lambda x, w: x @ w[:, :128], (64, 96), (96, 512)) == Ahead(0, 0)
    assert ahead_of(lambda x, w: x @ w[1:], (64, 96), (97, 100)) == Ahead(0, 0)
    assert ahead_of(lambda x, w: x @ w[1:], (64, 96), (97, 104)) == Ahead(1, 96 * 104 * 2)
    assert ahead_of(lambda x: jnp.tanh(x), (64, 96)) == Ahead(0, 0)
    assert ahead_of(jnp.matmul, (1, 768), (768, 50264)) == Ahead(1, 1 << 24)


def fetches_and_wait(op, tiles):
    """Addresses and bytes that a launch of so many tiles fetches, None for its wait; its operands; threads of a block."""
    library = ctypes.CDLL(str(cuda_host.compiled(cuda_host.source([op], warpgroups=True))))
    events = []
    fetch = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(lambda data, size: events.append((data or 0, size)))
    wait = ctypes.CFUNCTYPE(None)(lambda: events.append(None))
    library.aspen_play_fetch(fetch)
    library.aspen_play_wait(wait)
    arrays = [np.zeros(item.value.shape, item.value.dtype) for item in op.inputs]
    output = np.zeros(op.output.shape, op.output.dtype)
    addresses = (ctypes.c_void_p * (len(arrays) + 1))(*(array.ctypes.data for array in (*arrays, output)))
    box = [[0] * output.ndim, [0] * output.ndim]  # empty: nothing is computed
    boxes = np.array([box] * tiles, np.int32)
    library.op0_of_addresses(addresses, ctypes.c_void_p(boxes.ctypes.data), tiles)
    library.aspen_play_fetch(None)
    library.aspen_play_wait(None)
    return events, arrays, ctypes.c_int.in_dll(library, "op0_shape").value


@played
@pytest.mark.parametrize("tiles", [1, 3, 50])
@pytest.mark.parametrize("rows", [1, 64])
def test_each_byte_is_fetched_once_before_the_wait(rows, tiles):
    (op,) = ops_of(jnp.matmul, shaped((rows, 776), (776, 264)), GPU)
    ahead = Ahead.of(op)
    events, arrays, threads = fetches_and_wait(op, tiles)
    assert events[-1] is None
    found, start = sorted(events[:-1]), arrays[ahead.input].ctypes.data
    every = [(start + at, min(OF_THREAD, ahead.bytes - at)) for at in range(0, ahead.bytes, OF_THREAD)]
    assert found == every[: threads * tiles]


@played
def test_what_is_fetched_is_memory_of_the_weights(monkeypatch):
    """By all executors on the played driver, where memory moves, and in a launch of several ops."""
    monkeypatch.setenv(ARCHITECTURE_VARIABLE, "sm_90a")
    driver = fake_cuda.load()

    def function(x, p, q, r):
        return jnp.cumsum(x @ p, 1), jnp.cumsum(x @ q, 1), jax.nn.relu(x @ r)

    given = [random(i, *shape).astype(jnp.bfloat16) for i, shape in enumerate([(72, 80), (80, 88), (80, 88), (80, 96)])]
    (part,) = trace_of(function, given).parts
    program = prepared(part, GPU)
    graph = apu.build(program, NUM_BLOCKS, Gpu())
    driver.fake_cuda_move(True)
    for executor, captured in ((Executor.STREAM, False), (Executor.GRAPH, False), (Executor.STREAM, True)):
        before = driver.fake_cuda_fetches()
        run = DeviceRun(graph, fake_cuda.code_of(program, graph, warpgroups=True), executor)
        for _ in range(3):
            run.run(*given, captured=captured)
        fetches = sum(-(-Ahead.of(op).bytes // OF_THREAD) for op in program.ops)
        assert driver.fake_cuda_fetches() - before == 3 * fetches
    driver.fake_cuda_move(False)


def test_code_for_older_gpus_fetches_nothing():
    """They start no launch early."""
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    ops = ops_of(jnp.matmul, shaped((64, 96), (96, 128)), GPU)
    found = [
        compiled(kernels(ops), architecture).decode().count("prefetch.L2.global")
        for architecture in ("compute_80", "compute_90a")
    ]
    assert found[0] == 0
    assert found[1] > 0
