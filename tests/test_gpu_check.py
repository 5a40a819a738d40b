"""The check for machines with a GPU, on the fake of CUDA's driver: it finds kernels right, and finds out when one is not."""

from __future__ import annotations

import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax import frontend
from aspen_jax.cuda.executor import EXECUTORS
from aspen_jax.errors import AspenError
from aspen_jax.program import Program
from benchmarks import gpu_check, gpu_peers, gpu_tables
from benchmarks.kernel_cases import KernelCase
from benchmarks.models import zoo
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
        "dtypes": ("float32",),
    }
    assert gpu_check.gpu(**options, only=("kernels", "executors")) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert results["kernels/squeezenet1_1/1/float32"]["kernels"] > 10
    assert results["executors/squeezenet1_1/1/float32"]["steady"]
    assert results["executors/squeezenet1_1/1/float32"]["seconds"].keys() == {"stream", "graph"}
    done = len(compiled)
    assert gpu_check.gpu(**options, only=("kernels", "executors")) == 0
    assert len(compiled) == done  # what the file holds is not done again
    assert compiled[-1] > 10

    # The reference is replaced by zeros: results that differ from it must not go unnoticed.
    monkeypatch.setattr(gpu_check, "evaluate", lambda program, *arrays: [np.zeros(program.outputs[0].shape, np.float32)])
    assert gpu_check.gpu(**options | {"json": tmp_path / "other.json"}, only=("kernels",)) == 1
    assert json.loads((tmp_path / "other.json").read_text())["results"]["kernels/squeezenet1_1/1/float32"]["wrong"]


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
        assert module == "benchmarks.gpu_peers"
        assert environment["JAX_PLATFORMS"] == "cpu" if words[0] != "xla" else "command_buffer" in environment["XLA_FLAGS"]
        measured.append(words[:2])
        if words[0] == "xla":
            return {"minimum": 1.0, "median": 2.0}
        if words[0] == "torch":
            return {case.name: 1e-4}
        raise AspenError("pip install something")

    monkeypatch.setattr(gpu_check, "measure_in_child", in_child)
    file = tmp_path / "gpu.json"
    options = {"models": ("squeezenet1_1",), "size": Size(image_size=40), "rounds": 2, "json": file}
    options |= {"dtypes": ("float32", "bfloat16"), "batches": (1, 3)}
    assert gpu_check.gpu(**options, minutes=0, only=("times", "table", "sanitizer")) == 1
    assert not measured
    assert gpu_check.gpu(**options, minutes=60, only=("times", "table", "sanitizer")) == 0
    results = json.loads(file.read_text())["results"]
    assert results["times/squeezenet1_1/1/float32"]["seconds"].keys() == EXECUTORS.keys()
    assert results["times/squeezenet1_1/3/bfloat16"]["right"]
    assert results["jax.jit/squeezenet1_1/3/bfloat16"]["seconds"]["median"] == 2.0
    assert len(gpu_check.times.known()) == 4
    lines = gpu_tables.models_table(results, ("squeezenet1_1",), (1, 3), ("float32", "bfloat16"))
    assert [line.split()[:4] for line in lines[1:]] == [
        ["squeezenet1_1", "batch", batch, dtype] for batch in "13" for dtype in ("float32", "bfloat16")
    ]
    for absent in ("torch.compile/squeezenet1_1/1/float32", "cupy/float32", "cupy/bfloat16", "sanitizer/memcheck"):
        assert results[absent]["absent"]
    # Ten runs between two events, which in the fake are a millisecond apart.
    assert gpu_tables.kernels_table(results, (case,), ("float32", "bfloat16"))[1].split() == [
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
    for words in (
        ("cupy", "bfloat16", "1"),
        ("torch", "float32", "1"),
        ("network", "resnet18", "1", "0", "0", "float32", "1", "x.npz"),
    ):
        if words[0] == "cupy" or importlib.util.find_spec("torch") is None:
            with pytest.raises(AspenError, match="absent: "):
                gpu_peers.measure(*words)
    with pytest.raises(AspenError, match="absent: JAX has no GPU"):
        gpu_peers.measure("xla", "resnet18", "1", "0", "0", "float32", "1")


@pytest.mark.parametrize("name", ["squeezenet1_1", "bert-base", "gpt2-decode"])
def test_models_of_16_bits_are_so_throughout(name):
    model = zoo.build(name, Size(image_size=40 if name == "squeezenet1_1" else None)).cast(jnp.bfloat16)
    trace = frontend.trace(jax.make_jaxpr(model.apply)(*model.arguments))
    products = [op for part in trace.parts for op in part.ops if op.family.name in ("conv2d", "matmul")]
    assert products
    assert {operand.dtype for op in products for operand in (op.output, *op.main_inputs)} == {np.dtype(jnp.bfloat16)}
