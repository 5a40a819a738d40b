"""What networks cost a GPU, as numbers that may only improve: launches, and bytes of workspace, partial sums and updates."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from aspen_jax import _engine
from aspen_jax.cuda.device import ARCHITECTURE_VARIABLE
from aspen_jax.ir.program import Op
from aspen_jax.ops.scatter import SCATTER
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
    ("resnet50:1:bfloat16", "sm_90a"): Cost(59, 4.1, 3.7),
    ("bert-base:1:bfloat16:128", "sm_90a"): Cost(91, 1.2, 0.0),
    ("gpt2-decode:1:bfloat16", "sm_90a"): Cost(128, 0.25, 0.7, 0.08),
    ("resnet50:1:bfloat16", "compute_80"): Cost(90, 6.4, 41.5),
}


def cost_of(row: str) -> Cost:
    given = Row.of(row)
    compiled = compiled_for_cuda(jaxpr_of(given.cast(given.build())))
    launches = sum(max(_engine.cuda_schedule(part.graph_bytes.tobytes(), 1, FEWEST_TILES)[0]) + 1 for part in compiled.parts)
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
    found, most = cost_of(row), MOST[row, architecture]
    assert found.launches == most.launches, "write the better number into MOST, or say why it is worse"
    assert found.workspace <= most.workspace
    assert found.partial_sums <= most.partial_sums
    assert found.updates <= most.updates
