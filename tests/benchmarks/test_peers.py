"""The command that puts aspen beside other runtimes, with ONNX Runtime for real, one that is broken, and one that is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.peers.case import read_case
from benchmarks.peers.record import ModelResult, SideResult, of_all, reference
from benchmarks.zoo.model import Size

pytest.importorskip("onnxruntime")

_BROKEN = "raise RuntimeError('no kernels for this machine')"
_WRONG = """
import numpy as np

class Request:
    def infer(self, inputs, **options):
        return {"output": np.zeros((1, 1000), np.float32)}

class Compiled:
    def create_infer_request(self):
        return Request()

def compile_model(path, device, options):
    return Compiled()
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Packages in front of all others, here and in child processes."""

    def install(**sources: str) -> None:
        for name, source in sources.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text(source)

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("sys.path_importer_cache", {})
    return install


def run(folder: Path, *options: str, rounds: int = 2) -> int:
    peers = ("jax.jit", "ONNX Runtime", "OpenVINO", "TVM")
    size = ("--image-size", "32", "--threads", "1")
    models = ("--models", "squeezenet1_1")
    return main(["peers", *models, *size, "--peers", *peers, "--rounds", str(rounds), "--output", str(folder), *options])


def only_result(folder: Path) -> ModelResult:
    (result,) = json.loads((folder / "answers.json").read_text())["results"].values()
    return ModelResult.from_json(result)


@pytest.mark.sweep
def test_sides_are_checked_timed_and_resumed_or_reported(tmp_path, installed, capsys):
    installed(openvino=_WRONG, tvm=_BROKEN)
    folder = tmp_path / "record"
    assert run(folder) == 1  # one of them is wrong
    result = only_result(folder)
    states = {name: side.state for name, side in result.sides.items()}
    assert states == {
        "aspen": "timed",
        "jax.jit": "timed",
        "ONNX Runtime": "timed",
        "OpenVINO": "disagrees",
        "TVM": "failed",
    }
    for name in ("aspen", "jax.jit", "ONNX Runtime"):
        side = result.sides[name]
        assert side.difference is not None
        assert side.difference < 1e-4
        assert len(side.samples_s) == 2
        assert result.share_of_peak(name) > 0
    assert result.sides["OpenVINO"].difference == 1
    assert result.sides["TVM"].message == "RuntimeError: no kernels for this machine"
    assert len(result.peak_flops) == 2
    assert 2e6 < result.flops < 1e8

    for picture in ("peers.png", "speedups.png"):
        assert (folder / picture).stat().st_size > 10_000
    table = (folder / "peers.md").read_text()
    assert "| disagrees | failed |" in table
    assert "Times as fast as jax.jit" in table  # for want of TensorFlow
    assert "`python -m benchmarks peers --models squeezenet1_1 --batch 1 --image-size 32 --threads 1 --peers jax.jit" in table
    assert "(peers.png)" in table
    for text in (table, capsys.readouterr().out):
        assert "failed: RuntimeError: no kernels for this machine" in text

    before = (folder / "answers.json").read_bytes()
    assert run(folder) == 1  # nothing is left to do
    assert (folder / "answers.json").read_bytes() == before
    assert run(folder, rounds=3) == 2
    assert "was measured with another rounds" in capsys.readouterr().err


def test_a_file_that_is_no_record_is_refused(tmp_path, capsys):
    (tmp_path / "answers.json").write_text("{}")
    assert run(tmp_path) == 2
    assert "is no record of this benchmark" in capsys.readouterr().err


@pytest.mark.sweep
def test_what_is_not_installed_is_in_the_record(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in ("torch", "onnxscript", "tvm") else object())
    options = ["--models", "squeezenet1_1", "--image-size", "32", "--threads", "1", "--rounds", "1"]
    assert main(["peers", *options, "--peers", "torch eager", "TVM", "--output", str(tmp_path)]) == 0
    sides = only_result(tmp_path).sides
    assert (sides["TVM"].state, sides["TVM"].message) == ("absent", "pip install apache-tvm")
    assert (sides["torch eager"].state, sides["torch eager"].message) == ("absent", "pip install torch")
    assert sides["aspen"].state == "timed"


def test_tensorflow_runs_a_network_as_a_graph_and_by_xla(tmp_path):
    pytest.importorskip("tensorflow", reason="TensorFlow is a peer, and optional")
    sides = ("TensorFlow", "TensorFlow XLA")
    assert run(tmp_path, "--peers", *sides) == 0
    result = only_result(tmp_path)
    for name in sides:
        assert (result.sides[name].state, len(result.sides[name].samples_s)) == ("timed", 2)
        assert result.sides[name].version.startswith("2.")
    assert "Times as fast as TensorFlow" in (tmp_path / "peers.md").read_text()


@pytest.mark.sweep
def test_a_name_may_end_in_a_size(tmp_path):
    options = ["--image-size", "32", "--threads", "1", "--rounds", "1", "--peers", "jax.jit", "--output", str(tmp_path)]
    assert main(["peers", "--models", "squeezenet1_1:B2", "squeezenet1_1", *options]) == 0
    two, one = map(ModelResult.from_json, json.loads((tmp_path / "answers.json").read_text())["results"].values())
    assert (two.name, one.name) == ("squeezenet1_1:B2", "squeezenet1_1")
    assert two.flops == pytest.approx(2 * one.flops, rel=0.01)
    assert read_case("bert-base:S480B8", Size(image_size=64)).size == Size(batch=8, image_size=64, tokens=480)


def sides(**seconds: float) -> dict[str, SideResult]:
    return {name: SideResult("timed", samples_s=(time, time)) for name, time in seconds.items()}


def test_speedups_are_beside_tensorflow_where_it_was_timed():
    timed = ModelResult("a:B8", 1e9, (1e9,), "", sides(aspen=1.0, TensorFlow=3.0, **{"jax.jit": 2.0}))
    failed = ModelResult("b", 1e9, (1e9,), "", sides(aspen=1.0, **{"jax.jit": 2.0}) | {"TensorFlow": SideResult("failed")})
    assert (reference([failed]), reference([failed, timed])) == ("jax.jit", "TensorFlow")
    _, table = of_all([timed, failed])
    assert table.title == "Times as fast as TensorFlow"
    assert [[row[column] for column in table.columns] for row in table.rows] == [
        ["a:B8", 3, 1, 1.5],
        ["b", None, None, None],
        ["geometric mean", pytest.approx(3), 1, pytest.approx(1.5)],
    ]


@pytest.mark.sweep
def test_a_neighbour_takes_half_of_a_core(tmp_path):
    options = ["--models", "squeezenet1_1", "--image-size", "32", "--threads", "1", "--rounds", "5", "--peers", "jax.jit"]
    for extra in ([], ["--neighbour"]):
        folder = tmp_path / str(len(extra))
        assert main(["peers", *options, *extra, "--output", str(folder)]) == 0
        assert (" --neighbour" in (folder / "peers.md").read_text()) == bool(extra)
