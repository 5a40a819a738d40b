"""The benchmarks run and write what they measured, on the smallest sizes; nothing here holds a time to anything."""

from __future__ import annotations

import itertools
import json
import os

import jax
import numpy as np
import pytest

from aspen_jax import TileGraph
from aspen_jax.demo.keras_application import keras_application
from aspen_jax.report.comparison import TILED
from aspen_jax.report.difference import largest_difference
from aspen_jax.schedule import Costs, Cpu, Machine
from benchmarks import accuracy, serving
from benchmarks.__main__ import main
from benchmarks.child import measure_in_child
from benchmarks.kernel_cases import CASES
from benchmarks.scheduler import parse
from tests.content import generator

RNG = generator(__name__)


def rows(record, table=0):
    """The rows of a table of a record."""
    return json.loads(record.read_text())["results"][table]["rows"]


def test_overhead(record, capsys):
    assert main(["overhead", "--rounds", "3", "--json", str(record)]) == 0
    by_call = {row[""]: row for row in rows(record)}
    assert by_call["empty custom call"]["us beside an empty custom call"] == 0
    assert by_call["x + 1, aspen"]["min"] == min(by_call["x + 1, aspen"]["samples_s"]) > 0
    content = json.loads(record.read_text())
    assert content.keys() == {"machine", "benchmark", "date", "words", "settings", "results"}
    assert content["settings"] == {"rounds": 3, "workers": content["machine"]["workers"]}
    assert "us beside an empty custom call" in capsys.readouterr().out


def test_kernels(record, capsys):
    words = ["mobilenet conv 1x1/1 14", "depthwise 3x3/1 14"]
    assert main(["kernels", *words, "--targets", "portable", "--rounds", "2", "--json", str(record)]) == 0
    found = rows(record)
    assert [row["case"] for row in found] == ["mobilenet conv 1x1/1 14x14x384->64", "mobilenet depthwise 3x3/1 14x14x384->384"]
    assert all(row["target"] == "portable" and row["difference"] < 1e-5 and row["min_s"] > 0 for row in found)
    assert found[0]["flops"] == 2 * 14 * 14 * 384 * 64
    assert found[0]["bytes"] == 4 * (14 * 14 * 384 + 384 * 64 + 14 * 14 * 64)
    assert found[1]["flops"] == 2 * 14 * 14 * 384 * 9
    assert "of peak" in capsys.readouterr().out


def test_kernel_cases_are_told_apart_by_name():
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.sweep
def test_models_and_build(record, capsys):
    choice = ["--models", "VGG16", "--image-size", "32"]
    assert main(["models", *choice, "--batch", "2", "--rounds", "2", "--json", str(record)]) == 0
    (result,) = rows(record)
    assert result["custom_calls"] == 1
    assert result["agrees"]
    assert 0 < result["difference"] < 1e-4
    assert main(["build", *choice, "--rounds", "1", "--json", str(record)]) == 0
    assert all(row["min"] > 0 for row in rows(record))
    assert "jaxpr to ready graph" in capsys.readouterr().out


@pytest.mark.sweep
def test_accuracy_is_that_of_float32_and_a_wrong_model_is_told(record, capsys, monkeypatch):
    arguments = ["accuracy", "--models", "squeezenet1_1", "--image-size", "32", "--json", str(record)]
    assert main(arguments) == 0
    (found,) = rows(record)
    assert found.pop("model") == "squeezenet1_1"
    assert set(found) == {f"{precision} {side}" for precision in ("default", "highest") for side in ("aspen", "jax.jit")}
    assert all(1e-9 < error < 1e-4 for error in found.values())
    assert "squeezenet1_1" in capsys.readouterr().out

    exact = accuracy.SIDES["jax.jit"]
    for fault in (1 + 1e-3, np.nan):
        monkeypatch.setitem(accuracy.SIDES, "aspen", lambda model, fault=fault: lambda *inputs: exact(model)(*inputs) * fault)
        assert main(arguments) == 1


def test_transformers_and_their_rate(record, capsys):
    assert main(["models", "--models", "llama-small", "--tokens", "8", "--rounds", "2", "--json", str(record)]) == 0
    (result,) = rows(record)
    products = 8 * (2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1408) + 512 * 8192  # multiply-adds a token
    assert 1 < result["flops"] / (2 * 8 * products) < 1.1
    assert "GFLOP/s" in capsys.readouterr().out


@pytest.mark.sweep
def test_calibrated_models_tell_images_apart():
    model = keras_application("MobileNetV2", 32)
    images = model.random_images(2)
    predict = jax.jit(model.predict)
    calibrated = model.calibrated_params()
    dead, alive = (np.asarray(predict(params, images)) for params in (model.params, calibrated))
    assert np.abs(dead[0] - dead[1]).max() < 1e-6
    assert np.abs(alive[0] - alive[1]).max() > 1e-4
    # As after training: rounding errors stay what they are. A model that amplifies them cannot be compared.
    assert largest_difference(np.asarray(predict(calibrated, images * (1 + 1e-7))), alive) < 1e-3


@pytest.mark.sweep
def test_models_that_take_images_of_any_size_get_some():
    model = keras_application("MobileNetV3Small")
    assert model.random_images(1).shape == (1, 224, 224, 3)


@pytest.mark.sweep
def test_peak_memory_is_that_of_a_process_of_its_own():
    ballast = bytearray(os.urandom(1)) * 2**30  # in this process, so not in that one
    measured = measure_in_child("benchmarks.memory", (TILED, "VGG16", json.dumps({"image_size": 32})))
    assert len(measured["outputs"][0]) == 1001  # a sample of it, and the largest
    assert 2**26 < measured["peak_bytes"] < len(ballast)


def test_schedulers_lines_are_read():
    text = """chain: 10 tiles, 9 edges
  plain loop         min     3.5  median    13.0 ns a tile
  oneTBB, 2 threads  min   120.0  median   130.5 ns a tile
grain: tiles of the stencil that compute
  2 workers               31.2 ns a tile  efficiency 0.250
  2 workers             6702.0 ns a tile  efficiency 1.000
  2 workers          METG(50%) 51.7 ns
  oneTBB, 2 threads  METG(50%) nan ns
oneTBB: absent; install it
"""
    assert parse(text) == {
        "results": [
            {"graph": "chain", "variant": "plain loop", "min_ns": 3.5, "median_ns": 13.0},
            {"graph": "chain", "variant": "oneTBB, 2 threads", "min_ns": 120.0, "median_ns": 130.5},
        ],
        "grains": {"2 workers": [{"tile_ns": 31.2, "efficiency": 0.25}, {"tile_ns": 6702.0, "efficiency": 1.0}]},
        "metg_ns": {"2 workers": 51.7, "oneTBB, 2 threads": None},
        "absent": ["oneTBB"],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "--models", "bert"], "there is no model 'bert'; take one of alexnet, vgg11"),
        (["models", "--models", "bert-base", "--tokens", "513"], "has positions for 512 tokens, not 513"),
        (["models", "--models", "vit-b16", "--image-size", "40"], "squares of 16 pixels, which 40 is no multiple of"),
        (["models", "--models", "gpt2", "--tokens", "0"], "the length of a text is 0"),
        (["models", "--models", "ResNet5"], "no model 'ResNet5'; did you mean ResNet50"),
        (["models", "--models", "VGG16", "--image-size", "0"], "the height and width of images is 0"),
        (["models", "--models", "VGG16", "--image-size", "32", "--batch", "0"], "the batch is 0"),
        (["models", "--workers", "0"], "0 workers are asked for"),
        (["kernels", "transformer"], "no op has transformer in its name"),
        (["kernels", "resnet", "--targets", "sse9"], "'sse9' is no instruction set"),
        (["kernels", "--rounds", "0"], "the number of rounds is 0"),
        (["build", "--rounds", "0"], "the number of rounds is 0"),
        (["memory", "--rounds", "0"], "the number of rounds is 0"),
        (["memory", "--models", "ResNet5"], "no model 'ResNet5'"),
        (["scheduler", "--rounds", "0"], "the number of rounds is 0"),
        (["scheduler", "--program", "nowhere"], "there is no program 'nowhere'"),
        (["sharing", "--rounds", "0"], "the number of rounds is 0"),
        (["sharing", "--program", "nowhere"], "there is no program 'nowhere'"),
        (["policies", "--cache-mib", "3"], "powers of two"),
        (["policies", "--program", "nowhere"], "there is no program 'nowhere'"),
        (["overhead", "--rounds", "0"], "the number of rounds is 0"),
        (["layers", "--sweeps", "depth"], "no sweep is called 'depth'; take layers, size, channels"),
        (["tiles", "--counts", "0"], "0 tiles"),
        (["tiles", "--rounds", "0"], "the number of rounds is 0"),
        (["scaling", "--workers", "0"], "0 workers are asked for"),
        (["paper", "--experiments", "speed"], "no experiment is called 'speed'; take latency, scaling"),
        (["paper", "--models", "vgg"], "there is no model 'vgg'"),
        (["paper", "--latency", "vgg16:8"], "'vgg16:8' gives no size; write vgg16:B8"),
        (["chains", "--places", "table 4"], "there is no place 'table 4'; take table 1, table 2, table 3, figure 8, figure 9"),
        (["chains", "--workloads", "gemm"], "there is no workload 'gemm'; take gemms-2464x4x1x4"),
        (["chains", "--rounds", "0"], "the number of rounds is 0"),
        (["codesign", "--images", "cifar"], "there are no images 'cifar'; take mnist, digits"),
        (["codesign", "--variants", "Mish"], "there is no variant 'Mish'; take ReLU, GELU"),
        (["codesign", "--networks", "a2"], "there is no network 'a2'; take a0, a1, b0"),
        (["codesign", "--seeds", "0"], "0 trainings of each variant"),
        (["unequal", "--seconds", "-1"], "-1.0 seconds"),
        (["unequal", "--models", "ResNet5"], "no model 'ResNet5'"),
        (["serving", "--loads", "1"], "loads of (1.0,)"),
        (["serving", "--requests", "0"], "0 requests"),
        (["serving", "--rounds", "0"], "the number of rounds is 0"),
        (["serving", "--slack", "0"], "due 0.0 times"),
        (["serving", "--peers", "caffe"], "there is no server 'caffe'"),
        (["peers", "--rounds", "0"], "the number of rounds is 0"),
        (["peers", "--models", "vgg"], "there is no model 'vgg'; take one of alexnet, vgg11"),
        (["peers", "--models", "bert-base:480"], "'bert-base:480' gives no size; write bert-base:B8"),
        (["peers", "--models", "bert-base:S1024B1"], "has positions for 512 tokens, not 1024"),
        (["peers", "--models", "yolov3", "--image-size", "100"], "images of a multiple of 32 pixels, not 100"),
        (["peers", "--models", "resnet18", "alexnet", "--image-size", "20"], "Pool(kind='max'"),
        (["peers", "--peers", "pytorch"], "there is no peer 'pytorch'; take some of 'aspen', 'jax.jit'"),
        (["peers", "--threads", "0"], "0 threads are asked for"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_measured_is_refused(record, capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.sweep
def test_serving_gives_all_servers_the_same_requests(record, capsys):
    small = [
        "--image-size",
        "32",
        "--loads",
        "0.9",
        "--requests",
        "22",
        "--shorts-to-a-long",
        "3",
        "--peers",
        "jax.jit",
        "a process a core",
    ]
    assert main(["serving", "--long", "resnet18", *small, "--json", str(record)]) == 0
    served = rows(record, 1)
    assert len(served) == 4 + 2 * 6, "requests of two kinds may have deadlines"
    for _, group in itertools.groupby(sorted(served, key=_kind), key=_kind):
        items = list(group)
        assert len({len(item["latencies_s"]) for item in items}) == 1
        for item in items:
            assert min(item["latencies_s"]) > 0
            assert item["p50 from"] <= item["p50"] <= item["p50 to"]
            assert item["a second"] > 0
    assert len(rows(record, 2)) == 1 + 2 * 3, "quotients of each Ready Pool"
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 0.9 ")]
    assert len(lines) == 4 + 2 * 6 + 1 + 2 * 3, "a row for each server and kind, and quotients of each Ready Pool's"


def _kind(row):
    return row["requests"], row["kind"]


def test_quantiles_have_intervals():
    values = RNG.permutation(1000).astype(float)
    found = serving.quantiles(values.tolist())
    assert found[0] == (499.5, 468, 530)
    assert found[1][0] == pytest.approx(899.1)
    assert found[3][1:] == (996, np.inf), "too few for an end"
    for count in (1, 2, 60):
        for middle, low, high in serving.quantiles(RNG.random(count).tolist()):
            assert low <= middle <= high


def test_lab(record, capsys):
    choice = ["--models", "mobilenet_v2", "--image-size", "32", "--machines", "1 worker", "two memories", "--rounds", "2"]
    assert main(["lab", *choice, "--json", str(record)]) == 0
    found = {(row["machine"], row["policy"]): row for row in rows(record)}
    assert [policy for machine, policy in found if machine == "1 worker"] == ["ReadyPool", "FirstReadyFirst"]
    assert ("two memories", "ReadyPool") not in found
    assert found["two memories", "Dmda"]["place ns"] > 0
    assert all(row["simulated, ms"] > 0 and row["measured, ms"] > 0 for row in found.values())
    assert rows(record, 1)[0]["TileGraph.run, ms"] > 0
    assert "Heft" in capsys.readouterr().out
    assert main(["lab", "--policies", "Luck"]) == 2
    assert "there is no policy 'Luck'" in capsys.readouterr().err


def test_graphs(tmp_path, capsys):
    assert (
        main(["graphs", str(tmp_path), "--models", "mobilenet_v2", "squeezenet1_1", "--image-size", "64", "--rounds", "2"]) == 0
    )
    index = np.genfromtxt(tmp_path / "index.csv", delimiter=",", names=True, dtype=None, encoding=None)
    assert index["network"].tolist() == ["mobilenet_v2", "squeezenet1_1"]
    for row in index:
        graph = TileGraph.load(tmp_path / f"{row['network']}.aspen")
        costs = Costs.load(tmp_path / f"{row['network']}.csv", graph, Machine([Cpu(1)]))
        assert (graph.num_tiles, graph.num_edges) == (row["tiles"], row["edges"])
        assert costs.ns.sum() == pytest.approx(row["work_ns"], abs=graph.num_tiles)
        assert not graph.constants
    assert "column of index.csv" in (tmp_path / "README.md").read_text()
