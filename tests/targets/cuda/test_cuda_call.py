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
from aspen_jax.cache.disk_cache import CACHE_VARIABLE
from aspen_jax.errors import AspenError, InputError, UnsupportedError
from aspen_jax.lowering.compile import Options, compile_jaxpr
from aspen_jax.primitive.choices import Choices
from aspen_jax.targets.cuda import times
from aspen_jax.targets.cuda.code import image
from aspen_jax.targets.cuda.device import ARCHITECTURE_VARIABLE
from aspen_jax.targets.cuda.executor import EXECUTOR_VARIABLE, EXECUTORS
from aspen_jax.targets.cuda.target import CudaTarget
from aspen_jax.targets.cuda.tuning import time_executors

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


def test_a_cache_that_is_updated_shares_its_memory_with_the_result():
    def append(cache, row, i):
        return lax.dynamic_update_slice(cache, jnp.tanh(row), (i, 0))

    shapes = [
        jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in (((64, 8), np.float32), ((1, 8), np.float32), ((), np.int32))
    ]
    module = exported(aspen(append, device="cuda"), *shapes)
    (line,) = (line for line in module.splitlines() if "custom_call @" in line)
    assert "output_operand_alias<output_tuple_indices = [0], operand_index = 2," in line
    donating = exported(jax.jit(aspen(append, device="cuda"), donate_argnums=0), *shapes)
    assert custom_calls(donating) == [CUSTOM_CALL_TARGET]


def test_what_has_no_cuda_code_stays_with_xla_and_the_rest_does_not():
    def doubles(x):
        return jnp.concatenate([x[::-1], x.T])

    def mixed(w, x):
        return network(w, x) + doubles(x[0, :, :, 0].astype(np.float64)).sum().astype(np.float32)

    with jax.enable_x64(True):
        shape = jax.ShapeDtypeStruct((64, 64), np.float64)
        assert custom_calls(exported(aspen(doubles, device="cuda"), shape)) == []
        with pytest.raises(UnsupportedError, match=r"no tile kernel:\n  .*: no CUDA code for .* of float64"):
            exported(aspen(doubles, device="cuda", strict=True), shape)
        assert custom_calls(exported(aspen(mixed, device="cuda"), *SHAPES)) == [CUSTOM_CALL_TARGET]
        jaxpr = jax.make_jaxpr(mixed)(*SHAPES)
        compiled = compile_jaxpr(jaxpr, Options(Choices(), CudaTarget.here()))
    families = [op.family.name for part in compiled.parts for op in part.program.ops]
    assert families.count("conv2d") + families.count("conv2d_slices") == 3
    assert {item.equation.primitive.name for item in compiled.fallbacks} >= {"concatenate", "rev", "reduce_sum"}


def test_sorts_and_scatters_of_many_points_stay_with_xla():
    def left(function, *shapes):
        compiled = compile_jaxpr(jax.make_jaxpr(function)(*shapes), Options(Choices(), CudaTarget.here()))
        return [item.equation.primitive.name for item in compiled.fallbacks]

    def scattered(x, index):
        return x.at[index].add(1)

    x, few, many = (jax.ShapeDtypeStruct(shape, np.int32) for shape in ((512, 16), (1 << 14,), ((1 << 14) + 1,)))
    assert left(scattered, x, few) == []
    assert left(scattered, x, many) == ["scatter-add"]
    assert left(jnp.sort, x) == ["sort"]


def test_a_function_for_cuda_does_not_run_on_the_cpu():
    with pytest.raises(AspenError, match="device='cuda', but this call is for the CPU; put its arguments on a GPU, or decorate"):
        aspen(network, device="cuda")(*(jnp.zeros(shape.shape) for shape in SHAPES))


def test_tuning_for_a_gpu_needs_one():
    with pytest.raises(AspenError, match=r"JAX has no GPU here \(.*\); install jax\[cuda13\], or decorate with device='cpu'"):
        aspen(network, device="cuda").tune(*SHAPES)


def graph_key(function, *shapes):
    jaxpr = jax.make_jaxpr(function)(*shapes)
    return times.key(compile_jaxpr(jaxpr, Options(Choices(), CudaTarget.here())))


def test_auto_takes_what_was_the_fastest_on_this_kind_of_gpu(monkeypatch):
    def calls_and_executor():
        module = exported(aspen(network), *SHAPES)
        return len(custom_calls(module)), "executor = 1" in module

    assert times.remember(graph_key(network, *SHAPES), {"xla": 2.0, "stream": 1.0, "graph": 3.0}) is None  # there is no GPU
    monkeypatch.setattr(times, "card", lambda: "a card")
    assert calls_and_executor() == (0, False)  # nothing was timed
    for seconds, expected in (((2, 1, 3), (1, False)), ((3, 2, 1), (1, True)), ((1, 2, 3), (0, False))):
        times.remember(graph_key(network, *SHAPES), dict(zip(EXECUTORS, seconds, strict=True)))
        assert calls_and_executor() == expected
    times.remember(graph_key(network, *SHAPES), {"xla": 3, "stream": 2, "graph": 1})
    assert custom_calls(exported(aspen(lambda w, x: network(w, x) * 2), *SHAPES)) == []  # another function was not timed
    assert custom_calls(exported(aspen(network, device="cpu"), *SHAPES)) == []
    monkeypatch.setenv(EXECUTOR_VARIABLE, "xla")
    assert calls_and_executor() == (0, False)
    monkeypatch.delenv(EXECUTOR_VARIABLE)
    monkeypatch.setattr(times, "card", lambda: "another card")
    assert calls_and_executor() == (0, False)


def test_what_was_timed_belongs_to_the_code_as_it_is(monkeypatch):
    before = graph_key(network, *SHAPES)
    assert graph_key(lambda w, x: network(w, x), *SHAPES) == before
    assert graph_key(network, SHAPES[0], jax.ShapeDtypeStruct((1, 24, 24, 16), np.float32)) != before
    monkeypatch.setattr(image, "header_texts", lambda: {"cuda/kernels/block.h": "changed"})
    assert graph_key(network, *SHAPES) != before


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"machine": {}, "measured": {}}', None])
def test_times_that_cannot_be_believed_are_ignored(monkeypatch, content):
    monkeypatch.setattr(times, "card", lambda: "a card")
    file = times.remember("name", dict.fromkeys(EXECUTORS, 1.0))
    assert file is not None
    assert times.known() == {"name": dict.fromkeys(EXECUTORS, 1.0)}
    file.write_text(file.read_text().replace("1.0", "-1.0") if content is None else content)
    with pytest.warns(RuntimeWarning, match="is ignored, as if nothing had been measured: .*; delete it, or tune again"):
        assert times.known() == {}


def test_executors_are_timed_and_kept(monkeypatch):
    # The sides are lowered for this machine: that they are on a GPU what they are called is tested above, by export.
    monkeypatch.setattr(times, "card", lambda: "a card")
    jaxpr = jax.make_jaxpr(network)(*SHAPES)
    found = time_executors([jaxpr], Choices(), jax.devices("cpu")[0], rounds=2)
    assert found.path is not None
    assert times.known() == {graph_key(network, *SHAPES): found.seconds}
    assert found.seconds.keys() == EXECUTORS.keys()
    assert found.seconds[found.fastest] == min(found.seconds.values()) > 0
    assert re.fullmatch(r"a run takes .* by xla, .* by stream, .* by graph; kept in .*\.json", str(found))
    with jax.enable_x64(True), pytest.raises(UnsupportedError, match="no CUDA code for the function"):
        time_executors([jax.make_jaxpr(jnp.linalg.qr)(np.eye(9))], Choices(), jax.devices("cpu")[0])


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
    done = subprocess.run([sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
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
    (part,) = compile_jaxpr(jax.make_jaxpr(network)(*SHAPES), Options(Choices(), CudaTarget.here())).parts
    code = image.compile_ops(part.program.ops, "sm_80")
    numbers = zip(part.program.ops, code.kernels, strict=True)
    convolutions = [number for op, number in numbers if op.family.name in ("conv2d", "conv2d_slices")]
    assert len(convolutions) == 3
    assert len(set(convolutions)) == 1
    assert len(set(code.kernels)) > 1
