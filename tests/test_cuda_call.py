"""Decorated functions lowered for CUDA on a machine without a GPU: what is in the module, who decides, what is refused."""

from __future__ import annotations

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from aspen_jax import CUSTOM_CALL_TARGET, aspen
from aspen_jax.choices import Choices
from aspen_jax.compile import compile_jaxpr
from aspen_jax.cuda import image
from aspen_jax.cuda.call import ARCHITECTURE_VARIABLE, cuda_options
from aspen_jax.cuda.executor import EXECUTOR_VARIABLE
from aspen_jax.disk_cache import CACHE_VARIABLE
from aspen_jax.errors import AspenError, InputError, UnsupportedError

pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(EXECUTOR_VARIABLE, raising=False)
    monkeypatch.delenv(ARCHITECTURE_VARIABLE, raising=False)


def network(w, x):
    for _ in range(3):
        x = jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return x.mean((1, 2))


SHAPES = (jax.ShapeDtypeStruct((3, 3, 16, 16), np.float32), jax.ShapeDtypeStruct((2, 24, 24, 16), np.float32))


def exported(function, *shapes):
    check = export.DisabledSafetyCheck.custom_call(CUSTOM_CALL_TARGET)
    return export.export(jax.jit(function), platforms=["cuda"], disabled_checks=[check])(*shapes).mlir_module()


def custom_calls(module):
    return re.findall(r"custom_call @(\w+)", module)


def test_export_for_cuda_shows_one_custom_call_with_its_workspace_as_the_last_result():
    decorated = aspen(network, device="cuda")
    module = exported(decorated, *SHAPES)
    assert custom_calls(module) == [CUSTOM_CALL_TARGET]
    (line,) = (line for line in module.splitlines() if "custom_call @" in line)
    workspace = decorated.graph(*SHAPES).workspace_bytes
    assert workspace > 0
    assert f"-> (tensor<2x16xf32>, tensor<{workspace}xui8>)" in line
    for attribute in ("graph", "image", "kernels", "executor = 1"):
        assert attribute in line


@pytest.mark.parametrize(
    ("device", "executor", "calls"),
    [("auto", None, 0), ("cpu", None, 0), ("cpu", "graph", 0), ("auto", "stream", 1), ("cuda", "xla", 0), ("cuda", "stream", 1)],
)
def test_who_decides(monkeypatch, device, executor, calls):
    if executor is not None:
        monkeypatch.setenv(EXECUTOR_VARIABLE, executor)
    module = exported(aspen(network, device=device), *SHAPES)
    assert len(custom_calls(module)) == calls
    assert ("executor = 0" in module) == bool(calls)


def test_an_unknown_executor_is_refused(monkeypatch):
    monkeypatch.setenv(EXECUTOR_VARIABLE, "persistant")
    with pytest.raises(InputError, match="ASPEN_CUDA_EXECUTOR='persistant' is no executor; choose one of 'xla', "):
        exported(aspen(network), *SHAPES)


def test_gradients_and_batches_are_tiled_too():
    def loss(w, x):
        return aspen(network, device="cuda")(w, x).sum()

    assert CUSTOM_CALL_TARGET in custom_calls(exported(jax.grad(loss), *SHAPES))
    many = (SHAPES[0], jax.ShapeDtypeStruct((3, *SHAPES[1].shape), np.float32))
    assert custom_calls(exported(jax.vmap(aspen(network, device="cuda"), (None, 0)), *many)) == [CUSTOM_CALL_TARGET]


def test_what_has_no_cuda_code_stays_with_xla():
    def doubles(x):
        return jnp.concatenate([x[::-1], x.T])

    with jax.enable_x64(True):
        shape = jax.ShapeDtypeStruct((64, 64), np.float64)
        assert custom_calls(exported(aspen(doubles, device="cuda"), shape)) == []
        with pytest.raises(UnsupportedError, match=r"but there is no CUDA code for .* of float64.*; use strict=False"):
            exported(aspen(doubles, device="cuda", strict=True), shape)


def test_a_function_for_cuda_does_not_run_on_the_cpu():
    with pytest.raises(AspenError, match="device='cuda', but this call is for the CPU; put its arguments on a GPU, or decorate"):
        aspen(network, device="cuda")(*(jnp.zeros(shape.shape) for shape in SHAPES))


def test_a_function_for_cuda_is_not_tuned():
    with pytest.raises(UnsupportedError, match="network is for GPUs, which are not tuned yet; tune it with device='auto'"):
        aspen(network, device="cuda").tune(*SHAPES)


def test_without_cupy_the_error_says_what_to_install(tmp_path):
    program = """
import sys
sys.modules["cupy"] = None
import jax, numpy as np
from jax import export
from aspen_jax import aspen
from aspen_jax.errors import AspenError
def call(device):
    check = export.DisabledSafetyCheck.custom_call("aspen_run")
    shape = jax.ShapeDtypeStruct((64, 64), np.float32)
    export.export(jax.jit(aspen(lambda x: x @ x, device=device)), platforms=["cuda"], disabled_checks=[check])(shape)
call("auto")
try:
    call("cuda")
except AspenError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"CUDA code cannot be compiled here \(.*\); pip install 'aspen_jax\[cuda13\]', or use", done.stdout)


SOURCE = 'extern "C" __global__ void op0(float* x) { x[threadIdx.x] = 1; }'


def test_code_is_compiled_once(tmp_path):
    compiled = image.compiled(SOURCE, "sm_90a")
    assert compiled[:4] == b"\x7fELF"
    (file,) = (tmp_path / "cache" / "cuda").iterdir()
    file.write_bytes(file.read_bytes()[:32] + b"?")
    assert image.compiled(SOURCE, "sm_90a") == compiled  # what does not match its checksum is compiled anew
    changed = file.stat().st_mtime_ns
    assert image.compiled(SOURCE, "sm_90a") == compiled
    assert file.stat().st_mtime_ns == changed
    assert b".target sm_80" in image.compiled(SOURCE, "compute_80")
    assert len(list((tmp_path / "cache" / "cuda").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match=r"compiled CUDA code cannot be kept in .*; set ASPEN_CACHE_DIR"):
        assert image.compiled(SOURCE, "sm_80")[:4] == b"\x7fELF"


def test_what_nvrtc_refuses_is_shown():
    with pytest.raises(AspenError, match=r'(?s)NVRTC cannot compile for sm_80: .*identifier "wrong" is undefined'):
        image.compiled("__global__ void op0() { wrong; }", "sm_80")


def test_layers_that_are_alike_share_a_kernel():
    (part,) = compile_jaxpr(jax.make_jaxpr(network)(*SHAPES), cuda_options(Choices())).parts
    code = image.compile_ops(part.program.ops, "sm_80")
    convolutions = [number for op, number in zip(part.program.ops, code.kernels, strict=True) if op.family.name == "conv2d"]
    assert len(convolutions) == 3
    assert len(set(convolutions)) == 1
    assert len(set(code.kernels)) > 1
