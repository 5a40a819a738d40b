"""What networks cost a GPU, as numbers that may only improve: launches, bytes of the workspace and of partial sums."""

from __future__ import annotations

import dataclasses

import pytest

from aspen_jax import _engine
from aspen_jax.cuda.device import ARCHITECTURE_VARIABLE
from benchmarks.gpu.networks import compiled_for_cuda, jaxpr_of
from benchmarks.gpu.row import Row

FEWEST_TILES = 264  # of a launch, as executors ask for (cuda/launch_graph.h)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of a graph; bytes in MB."""

    launches: int
    workspace: float
    partial_sums: float


# A change that makes one of them worse says why. One that makes them better writes the new numbers down.
MOST = {
    # ResNet-50: a launch pads the image to four channels, 1.6 MB, so that the first convolution reads whole vectors.
    ("resnet50:1:bfloat16", "sm_90a"): Cost(60, 9.0, 3.7),
    ("bert-base:1:bfloat16:128", "sm_90a"): Cost(116, 13.7, 0.0),
    ("gpt2-decode:1:bfloat16", "sm_90a"): Cost(152, 0.9, 0.7),
    ("resnet50:1:bfloat16", "compute_80"): Cost(91, 54.4, 41.5),
}


def cost_of(row: str) -> Cost:
    given = Row.of(row)
    compiled = compiled_for_cuda(jaxpr_of(given.cast(given.build())))
    launches = sum(max(_engine.cuda_schedule(part.graph_bytes.tobytes(), 1, FEWEST_TILES)[0]) + 1 for part in compiled.parts)
    ops = [op for part in compiled.parts for op in part.program.ops]
    partial = sum(op.output.nbytes for op in ops if op.name.endswith("/slices"))
    return Cost(launches, sum(part.graph.workspace_bytes for part in compiled.parts) / 1e6, partial / 1e6)


@pytest.mark.parametrize(("row", "architecture"), MOST)
def test_launches_and_bytes_only_improve(row, architecture, monkeypatch):
    monkeypatch.setenv(ARCHITECTURE_VARIABLE, architecture)
    found, most = cost_of(row), MOST[row, architecture]
    assert found.launches == most.launches, "write the better number into MOST, or say why it is worse"
    assert found.workspace <= most.workspace
    assert found.partial_sums <= most.partial_sums
