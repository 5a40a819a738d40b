"""The check for machines with a GPU, on the fake of CUDA's driver: it finds kernels right, and finds out when one is not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from aspen_jax.program import Program
from benchmarks import gpu_check
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
    options = {"models": ("squeezenet1_1",), "size": Size(image_size=40), "json": tmp_path / "gpu.json"}
    assert gpu_check.gpu(**options, only=("kernels", "executors")) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert results["kernels/squeezenet1_1/1"]["kernels"] > 10
    assert results["executors/squeezenet1_1/1"]["steady"]
    done = len(compiled)
    assert gpu_check.gpu(**options, only=("kernels", "executors")) == 0
    assert len(compiled) == done  # what the file holds is not done again
    assert compiled[-1] > 10

    # The wrong weights for one op: a kernel that is wrong must not go unnoticed.
    monkeypatch.setattr(gpu_check, "evaluate", lambda program, *arrays: [np.zeros(program.outputs[0].shape, np.float32)])
    assert gpu_check.gpu(**options | {"json": tmp_path / "other.json"}, only=("kernels",)) == 1
    assert json.loads((tmp_path / "other.json").read_text())["results"]["kernels/squeezenet1_1/1"]["wrong"]
