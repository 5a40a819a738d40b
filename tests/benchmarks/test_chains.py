"""Bolt's microbenchmarks: their sizes are the paper's, and what they say of joined ops is what the graphs hold."""

from __future__ import annotations

import json
import math
import os

import jax.numpy as jnp
import pytest

from benchmarks import benchmark, zoo
from benchmarks.__main__ import main
from benchmarks.chains import command, on_gpu
from benchmarks.chains.sides import APART, JOINED, join
from benchmarks.peers.match import Match
from benchmarks.peers.record import ABSENT, DISAGREES, TIMED, ModelResult, SideResult
from benchmarks.zoo.bolt import WORKLOADS
from benchmarks.zoo.model import Size


def only_input(name, batch):
    (found,) = zoo.describe(name, Size(batch)).inputs.values()
    return found.shape


def test_sizes_are_the_papers_at_its_batch():
    assert math.prod(only_input("gemms-128320x96x32x96", 32)[:-1]) == 128320
    assert only_input("convs-112x48x48s2", 32) == (32, 112, 112, 48)
    assert only_input("conv-11x15x46x32k5x7", 32) == (288, 11, 15, 46)
    assert only_input("conv-11x15x46x32k5x7", 1) == (9, 11, 15, 46)
    assert only_input("gemm-2048x2048x2048", 1) == (1, 2048, 2048)


def test_the_second_layer_of_a_pair_keeps_the_image():
    for name, workload in WORKLOADS.items():
        if workload.place == "table 2":
            first, _, second, _ = workload.describe(Size(1)).nodes
            assert first.shape == second.shape, name


def test_joined_ops_are_told_from_those_apart():
    before = dict(os.environ)
    found = join(zoo.build("conv-56x64-relu"), ["epilogue"], rounds=1)
    assert found.is_joined
    assert found.bytes_between == 56 * 56 * 64 * 4
    assert {APART, JOINED} <= set(found.timings)
    found = join(zoo.build("conv-56x64-relu"), [], rounds=1)
    assert not found.is_joined
    assert found.bytes_between == 0
    assert JOINED not in found.timings
    assert dict(os.environ) == before


def test_a_chain_on_a_gpu_moves_nothing_between():
    model = zoo.build("gemms-16384x256x64x16", Size(32)).cast(jnp.float16)
    apart, joined = on_gpu.count(model, {"stacks"}), on_gpu.count(model)
    assert (apart.kernels, joined.kernels) == (2, 1)
    assert joined.chains == ("registers",)
    biases = 2 * (64 + 16)  # which are counted where ops are joined
    assert apart.nbytes - joined.nbytes == 2 * 2 * 16384 * 64 - biases  # written and read


def test_pairs_on_a_gpu_are_counted(capsys, monkeypatch):
    monkeypatch.setattr(on_gpu, "WORKLOADS", {name: WORKLOADS[name] for name in ("gemms-2464x4x1x4", "convs-224x3x48s2")})
    monkeypatch.setattr(on_gpu, "_REPVGG", ())
    assert main(["chains", "--counted"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| workload | kernels apart | joined |")
    assert [line.split(" | ")[:3] for line in lines[2:]] == [["| gemms-2464x4x1x4", "2", "1"], ["| convs-224x3x48s2", "4", "3"]]


def test_tables(record, capsys):
    workloads = ["gemms-2464x4x1x4", "convs-56x48x48s1", "conv-20x26x46x32k3x3", "conv-56x64-gelu"]
    assert main(["chains", "--workloads", *workloads, "--batches", "1", "2", "--rounds", "2", "--json", str(record)]) == 0
    results = json.loads(record.read_text())["results"]
    assert list(results) == ["table 1", "table 2", "table 3", "figure 9"]
    assert [row["batch"] for row in results["table 2"]] == [1, 2]
    assert [row["bytes_between"] for row in results["table 2"]] == [56 * 56 * 48 * 4, 2 * 56 * 56 * 48 * 4]
    assert results["figure 9"][0]["is_joined"]
    assert set(results["table 3"][0]["timings"]) == {"as it is", "padded", "aligned", "jax.jit", "jax.jit padded"}
    printed = capsys.readouterr().out
    assert "Table 1" in printed
    assert "| conv-20x26x46x32k3x3 | 2 |" in printed


@pytest.mark.parametrize(("state", "status"), [(TIMED, 0), (DISAGREES, 1)])
def test_peers_take_part_in_figure_8(record, capsys, monkeypatch, state, status):
    sides = {
        "aspen": SideResult(state, samples_s=(0.001, 0.002)),
        "jax.jit": SideResult(TIMED, samples_s=(0.002, 0.006)),
        "ONNX Runtime": SideResult(ABSENT, "pip install onnxruntime"),
    }
    monkeypatch.setattr(Match, "play", lambda self: ModelResult(self._prepared.name, 1.0, (), "not written", sides))
    choice = ["--places", "figure 8", "--workloads", "gemm-1280x768x768", "gemm-2048x2048x2048", "--json", str(record)]
    assert main(["chains", *choice]) == status
    rows = json.loads(record.read_text())["results"]["figure 8"]
    assert [(row["workload"], row["batch"]) for row in rows] == [("gemm-1280x768x768", 32), ("gemm-2048x2048x2048", 32)]
    aspen = "1 / 1.5" if state == TIMED else state
    ahead = "2.50" if state == TIMED else ""
    assert f"| gemm-1280x768x768 | 32 | {aspen} | 2 / 4 | absent | jax.jit | {ahead} |" in capsys.readouterr().out


def test_nothing_is_timed_where_results_differ(record, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "TOLERANCE", 0)
    assert main(["chains", "--workloads", "conv-20x26x46x32k3x3", "--batches", "1", "--json", str(record)]) == 1
    assert "of the largest output, so nothing was timed" in capsys.readouterr().err
    assert not record.exists()


def test_the_networks_of_figure_10_are_of_16_bits(record, capsys, monkeypatch):
    for name, value in {"_NETWORKS": ("squeezenet1_1",), "_PAPER_BATCH": 1, "_ALL_BATCHES": (1,)}.items():
        monkeypatch.setattr(command, name, value)
    choice = ["--full", "--places", "table 1", "--workloads", "gemms-2464x4x1x4", "--rounds", "1", "--json", str(record)]
    assert main(["chains", *choice]) == 0
    (row,) = json.loads(record.read_text())["results"]["figure 10"]
    assert row["name"] == "squeezenet1_1, float16"
    assert 1e-5 < row["difference"] < 2e-2
    assert "squeezenet1_1, float16: 1 custom call" in capsys.readouterr().out
