"""The fakes of cublasLt and cuDNN (fake_cublas.cc, fake_cudnn.cc), compiled and loaded, and what tests of both share.

What asks for libcublasLt.so.13 or libcudnn.so.9 from then on gets the fake. They give their work to the fake of the driver.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest

from aspen_jax.errors import EngineError
from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from aspen_jax.targets.cuda.library import cublas, cudnn
from tests.targets.cuda import fake_cuda


@dataclasses.dataclass(frozen=True)
class FakeLibrary:
    """A library that the host plays.

    Attributes:
        name: of its source, and what its functions begin with.
        library: the file that users of the real one load.
        is_there: whether the real one is.
        ops: what it computes, as its counter is called.
        failure: a status of failure, and what is said of it.
    """

    name: str
    library: str
    is_there: Callable[[], bool]
    ops: str
    failure: tuple[int, str]

    def load(self) -> ctypes.CDLL:
        """Compile and load it, once."""
        return _loaded(self)

    def ask(self, what: str, *arguments: int) -> int:
        """Call one of its functions for tests."""
        return getattr(self.load(), f"{self.name}_{what}")(*arguments)


@functools.cache
def _loaded(fake: FakeLibrary) -> ctypes.CDLL:
    fake_cuda.load()
    fake.is_there()  # remembers what is true without the fake, which other tests of this process go by
    return fake_cuda.played(f"{fake.name}.cc", fake.library)


CUBLAS = FakeLibrary(
    "fake_cublas",
    "libcublasLt.so.13",
    cublas.is_there,
    "products",
    (14, "cublasLtMatmul failed with status 14 of cuBLAS; tune again"),
)
CUDNN = FakeLibrary(
    "fake_cudnn",
    "libcudnn.so.9",
    cudnn.is_there,
    "convolutions",
    (5000, "cudnnBackendExecute failed with status 5000 of cuDNN; tune again"),
)

# A graph, its code, arguments by a seed, operands of arguments, and whether results are right for arguments.
Example = tuple[Any, Any, Callable[[int], Any], Callable[[Any], Any], Callable[[Any, Any], bool]]


def check_runs(example: Example, executor: Executor, captured: bool, fake: FakeLibrary) -> None:
    """Runs are right, the library computes at least two ops of each, graphs follow memory that moves, and nothing is left."""
    driver = fake_cuda.load()
    graph, code, arguments, operands, is_right = example
    before = driver.fake_cuda_live(), fake.ask("live")
    follows = driver.fake_cuda_count(b"cuGraphExecChildGraphNodeSetParams")
    run = DeviceRun(graph, code, executor)
    for seed in range(6):  # more than there are instances of a graph; memory is another one each time
        driver.fake_cuda_seed(seed)
        given, earlier = arguments(10 * seed), fake.ask(fake.ops)
        assert is_right(run.run(*operands(given), captured=captured), given)
        assert fake.ask(fake.ops) >= earlier + 2
    assert fake.ask("live") > before[1]
    assert (driver.fake_cuda_count(b"cuGraphExecChildGraphNodeSetParams") > follows) == (executor == Executor.GRAPH)
    del run
    gc.collect()
    assert (driver.fake_cuda_live(), fake.ask("live"), driver.fake_cuda_current()) == (*before, 0)


def check_failures(example: Example, executor: Executor, captured: bool, fake: FakeLibrary) -> None:
    """A failure of the library, or of a call that is made for it, is told, the next run is right, and nothing is left."""
    driver = fake_cuda.load()
    graph, code, arguments, operands, is_right = example
    live, made, given = driver.fake_cuda_live(), fake.ask("live"), arguments(3)
    run = DeviceRun(graph, code, executor)
    status, message = fake.failure
    fake.ask("fail", status)
    with pytest.raises(EngineError, match=message):
        run.run(*operands(given), captured=captured)
    fake.ask("fail", 0)

    def run_often(run: DeviceRun) -> None:
        for seed in range(3):  # memory moves
            run.run(*operands(arguments(seed)), captured=captured)

    # Calls that executors make for an op of a library; a stream makes none of them.
    calls = [b"cuStreamBeginCapture", b"cuGraphAddChildGraphNode", b"cuGraphExecChildGraphNodeSetParams"]
    for call in calls[1:] if executor == Executor.GRAPH else calls[:2] if captured else []:
        if call != calls[2]:  # a new graph
            run = DeviceRun(graph, code, executor)
        driver.fake_cuda_fail(call, 1, 719)
        with pytest.raises(EngineError, match=call.decode()):
            run_often(run)
    assert is_right(run.run(*operands(given), captured=captured), given)
    del run
    gc.collect()
    assert (driver.fake_cuda_live(), fake.ask("live"), driver.fake_cuda_current()) == (live, made, 0)
