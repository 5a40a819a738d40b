"""What tests of played libraries share: runs of a graph of which a library computes some ops."""

from __future__ import annotations

import gc
from collections.abc import Callable

from aspen_jax.targets.cuda.device_run import DeviceRun
from aspen_jax.targets.cuda.executor import Executor
from tests.targets.cuda import fake_cuda


def check_runs(example: tuple, executor: Executor, captured: bool, live: Callable[[], int], done: Callable[[], int]) -> None:
    """Runs are right, the library computes at least two ops of each, graphs follow memory that moves, and nothing is left.

    Args:
        example: a graph, its code, arguments by a seed, operands of arguments, and whether results are right for arguments.
        executor: what runs it.
        captured: whether runs are captured into a CUDA graph.
        live: how much the library has made and not destroyed.
        done: how many ops it has computed.
    """
    driver = fake_cuda.load()
    graph, code, arguments, operands, is_right = example
    before = driver.fake_cuda_live(), live()
    follows = driver.fake_cuda_count(b"cuGraphExecChildGraphNodeSetParams")
    run = DeviceRun(graph, code, executor)
    for seed in range(6):  # more than there are instances of a graph; memory is another one each time
        driver.fake_cuda_seed(seed)
        given, earlier = arguments(10 * seed), done()
        assert is_right(run.run(*operands(given), captured=captured), given)
        assert done() >= earlier + 2
    assert live() > before[1]
    assert (driver.fake_cuda_count(b"cuGraphExecChildGraphNodeSetParams") > follows) == (executor == Executor.GRAPH)
    del run
    gc.collect()
    assert (driver.fake_cuda_live(), live(), driver.fake_cuda_current()) == (*before, 0)
