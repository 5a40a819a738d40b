"""What networks cost a GPU, as numbers that may only improve: launches, bytes, and what is in the code of products."""

from __future__ import annotations

import dataclasses
import functools
import os
import re

import numpy as np
import pytest

from aspen_jax import _engine
from aspen_jax.ir.program import Op
from aspen_jax.lowering.compile import Compiled, Part
from aspen_jax.ops.scatter import SCATTER
from aspen_jax.targets.cuda.code.horizontal import launched_with
from aspen_jax.targets.cuda.code.image import compile_log, compiled, distinct
from aspen_jax.targets.cuda.code.source import kernels
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from benchmarks.gpu.networks import compiled_for_cuda, jaxpr_of
from benchmarks.gpu.row import Row

FEWEST_TILES = 264  # of a launch, as executors ask for (cuda/launch_graph.h)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of a graph; bytes in MB. Updates are those of caches: a cache that is copied counts as read and written."""

    launches: int
    workspace: float
    partial_sums: float
    updates: float = 0.0


# A change that makes one of them worse says why. One that makes them better writes the new numbers down.
MOST = {
    # ResNet-50: a launch pads the image to four channels, 1.6 MB, so that the first convolution reads whole vectors.
    ("resnet50:1:bfloat16", "sm_90a"): Cost(60, 4.6, 3.7),
    ("bert-base:1:bfloat16:128", "sm_90a"): Cost(91, 1.2, 0.0),
    ("gpt2-decode:1:bfloat16", "sm_90a"): Cost(116, 0.25, 0.7, 0.08),
    ("resnet50:1:bfloat16", "compute_80"): Cost(91, 6.0, 41.5),
}


@functools.cache
def compiled_of(row: str, architecture: str) -> Compiled:
    """The network for the architecture that the environment names."""
    assert os.environ[ARCHITECTURE_VARIABLE] == architecture
    given = Row.of(row)
    return compiled_for_cuda(jaxpr_of(given.cast(given.build())))


def launches_of(part: Part) -> int:
    together = launched_with(part.program.ops, part.graph)
    return max(_engine.cuda_schedule(part.graph_bytes.tobytes(), 1, FEWEST_TILES, together)[0]) + 1


def cost_of(row: str, architecture: str) -> Cost:
    compiled = compiled_of(row, architecture)
    launches = sum(launches_of(part) for part in compiled.parts)
    ops = [op for part in compiled.parts for op in part.program.ops]
    partial = sum(op.output.nbytes for op in ops if op.name.endswith("/slices"))
    updates = sum(moved(op) for op in ops if op.family is SCATTER)
    return Cost(launches, sum(part.graph.workspace_bytes for part in compiled.parts) / 1e6, partial / 1e6, updates / 1e6)


def moved(op: Op) -> float:
    """Bytes that an op reads and writes as one tile."""
    box = np.array([[(0, extent) for extent in op.output.shape]])
    return float(op.family.work(op, box).bytes[0])


@pytest.mark.parametrize(("row", "architecture"), MOST)
def test_launches_and_bytes_only_improve(row, architecture, monkeypatch):
    monkeypatch.setenv(ARCHITECTURE_VARIABLE, architecture)
    found, most = cost_of(row, architecture), MOST[row, architecture]
    assert found.launches == most.launches, "write the better number into MOST, or say why it is worse"
    assert found.workspace <= most.workspace
    assert found.partial_sums <= most.partial_sums
    assert found.updates <= most.updates


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The code of a product for sm_90a: in PTX, but for what the assembler says of registers.

    Attributes:
        registers: of a thread.
        spilled: bytes that the assembler puts aside for want of registers.
        wgmma: instructions of warpgroups, which become HGMMA one by one.
        narrow: loads and stores of global memory of 2 bytes or less.
        calls: functions that are called, and 64-bit divisions, which the assembler calls.
    """

    registers: int
    spilled: int
    wgmma: int
    narrow: int
    calls: int


WGMMA = r"wgmma\.mma_async"
NARROW = r"\b(?:ld|st)(?!\S*\.(?:shared|param|local|const|v\d))(?:\.\w+)*\.[busf](?:8|16)\b"
CALLS = r"\bcall\b|\b(?:div|rem)\.[us]64"

# BERT-base of 128 tokens: its distinct products, in their order. As above.
KERNELS = (
    Kernel(58, 0, 16, 16, 0),  # queries, keys and values
    Kernel(58, 0, 16, 24, 0),  # what attention gives, and what it read
    Kernel(58, 0, 24, 16, 0),
    Kernel(58, 0, 24, 24, 0),
    Kernel(46, 0, 0, 9, 0),  # of one row
)


def kernels_of(ops) -> list[Kernel]:
    """What the compiler makes of ops."""
    log = compile_log(kernels(ops), "sm_90a")
    text = compiled(kernels(ops), "compute_90a").decode()
    _, *numbers_and_bodies = re.split(r"\.entry op(\d+)\(", text)
    bodies = dict(zip(numbers_and_bodies[::2], numbers_and_bodies[1::2], strict=True))
    found = []
    for number in range(len(ops)):
        said = re.search(rf"function 'op{number}'.*?(\d+) bytes spill stores.*?Used (\d+) registers", log, re.DOTALL)
        assert said is not None, log
        body = bodies[str(number)]
        counts = [len(re.findall(pattern, body)) for pattern in (WGMMA, NARROW, CALLS)]
        found.append(Kernel(int(said[2]), int(said[1]), *counts))
    return found


def test_code_of_products_only_improves(monkeypatch):
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    monkeypatch.setenv(ARCHITECTURE_VARIABLE, "sm_90a")
    (part,) = compiled_of("bert-base:1:bfloat16:128", "sm_90a").parts
    firsts = distinct([op for op in part.program.ops if op.family.name == "matmul"]).ops
    found = kernels_of(firsts)
    assert len(found) == len(KERNELS), found
    for own, most in zip(found, KERNELS, strict=True):
        assert own.wgmma == most.wgmma
        for field in ("registers", "spilled", "narrow", "calls"):
            assert getattr(own, field) <= getattr(most, field), (field, own, most)


def test_narrow_accesses_and_calls_are_seen():
    """A kernel that has what the table forbids."""
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    text = """\
extern "C" __global__ void op0(unsigned short* x, long long* y) {
  x[threadIdx.x] = x[threadIdx.x + 1] + 1;
  y[threadIdx.x] = y[threadIdx.x] / y[0];
}
"""
    body = compiled(text, "compute_90a").decode()
    assert len(re.findall(NARROW, body)) == 2
    assert len(re.findall(CALLS, body)) == 1
