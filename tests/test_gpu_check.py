"""The check for machines with a GPU, on the fake of CUDA's driver: it finds kernels right, and finds out when one is not."""

from __future__ import annotations

import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax.cuda.executor import EXECUTORS
from aspen_jax.errors import AspenError
from aspen_jax.program import Program
from benchmarks import gpu_check, gpu_peers
from benchmarks.kernel_cases import KernelCase
from benchmarks.models.model import Size
from tests import cuda_host, fake_cuda

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


def test_the_check_for_gpus(tmp_path, monkeypatch):
    fake_cuda.load()
    compiled = []

    def compile_ops(ops, architecture):
        compiled.append(len(ops))
        return fake_cuda.code_of(Program((), (), tuple(ops), ()))

    monkeypatch.setattr(gpu_check, "compile_ops", compile_ops)
    options = {
        "models": ("squeezenet1_1",),
        "size": Size(image_size=40),
        "json": tmp_path / "gpu.json",
        "minutes": 60,
        "rounds": 2,
    }
    assert gpu_check.gpu(**options, only=("kernels", "executors")) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert results["kernels/squeezenet1_1/1"]["kernels"] > 10
    assert results["executors/squeezenet1_1/1"]["steady"]
    assert results["executors/squeezenet1_1/1"]["seconds"].keys() == {"stream", "graph"}
    done = len(compiled)
    assert gpu_check.gpu(**options, only=("kernels", "executors")) == 0
    assert len(compiled) == done  # what the file holds is not done again
    assert compiled[-1] > 10

    # The reference is replaced by zeros: results that differ from it must not go unnoticed.
    monkeypatch.setattr(gpu_check, "evaluate", lambda program, *arrays: [np.zeros(program.outputs[0].shape, np.float32)])
    assert gpu_check.gpu(**options | {"json": tmp_path / "other.json"}, only=("kernels",)) == 1
    assert json.loads((tmp_path / "other.json").read_text())["results"]["kernels/squeezenet1_1/1"]["wrong"]


def test_times_beside_others(tmp_path, monkeypatch):
    """Without a GPU the sides of JAX run on the CPU, and the peers are absent: what is done with them is tested, no time."""
    fake_cuda.load()
    monkeypatch.setattr(gpu_check, "compile_ops", lambda ops, _: fake_cuda.code_of(Program((), (), tuple(ops), ())))
    monkeypatch.setattr(gpu_check, "gpu_device", lambda: jax.devices("cpu")[0])
    monkeypatch.setattr(gpu_check.times, "card", lambda: "a card")
    monkeypatch.setattr(gpu_check.shutil, "which", lambda _: None)
    case = KernelCase("small matmul", jnp.matmul, ((40, 24), (24, 72)), 2 * 40 * 24 * 72)
    monkeypatch.setattr(gpu_check, "GPU_CASES", (case,))
    measured = []

    def in_child(module, words, environment, timeout):
        assert (module, environment["JAX_PLATFORMS"]) == ("benchmarks.gpu_peers", "cpu")
        measured.append(words[:2])
        if words[0] == "torch":
            return {case.name: 1e-4}
        raise AspenError("pip install something")

    monkeypatch.setattr(gpu_check, "measure_in_child", in_child)
    file = tmp_path / "gpu.json"
    options = {"models": ("squeezenet1_1",), "size": Size(image_size=40), "rounds": 2, "json": file}
    assert gpu_check.gpu(**options, minutes=0, only=("times", "table", "sanitizer")) == 1
    assert not measured
    assert gpu_check.gpu(**options, minutes=60, only=("times", "table", "sanitizer")) == 0
    results = json.loads(file.read_text())["results"]
    assert results["times/squeezenet1_1/1"]["seconds"].keys() == EXECUTORS.keys()
    assert len(gpu_check.times.known()) == 1
    for absent in ("torch.compile/squeezenet1_1/1", "cupy/float32", "cupy/bfloat16", "sanitizer/memcheck"):
        assert results[absent]["absent"]
    # Ten runs between two events, which in the fake are a millisecond apart.
    assert gpu_check._table(results)[1].split() == [
        "small",
        "matmul",
        "float32",
        "100",
        "us",
        "100",
        "us",
        "-",
        "100%",
        "0.00138",
    ]
    del measured[:]
    assert gpu_check.gpu(**options, minutes=60, only=("table",)) == 0
    assert measured == [["cupy", "float32"], ["cupy", "bfloat16"]]  # what was absent may be there now


def test_peers_that_are_missing_say_what_to_install():
    for words in (("cupy", "bfloat16", "1"), ("torch", "float32", "1"), ("network", "resnet18", "1", "0", "0", "1", "x.npz")):
        if words[0] == "cupy" or importlib.util.find_spec("torch") is None:
            with pytest.raises(AspenError, match="absent: "):
                gpu_peers.measure(*words)
