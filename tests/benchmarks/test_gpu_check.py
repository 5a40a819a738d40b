"""The check for machines with a GPU, on the fake of CUDA's driver: it finds kernels right, and finds out when one is not."""

from __future__ import annotations

import dataclasses
import importlib.util
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from aspen_jax.errors import AspenError
from aspen_jax.frontend import trace as frontend
from aspen_jax.ir.program import Program
from aspen_jax.ops.block_program import BlockProgram, Instruction, single
from benchmarks import zoo
from benchmarks.gpu import check, kernel_table, peers
from benchmarks.in_float64 import in_float64
from benchmarks.kernel_cases import KernelCase
from benchmarks.zoo.model import Model, Size
from tests.targets.cuda import cuda_host, fake_cuda
from tests.targets.cuda.cuda_check import exactly, ops_of, random

pytestmark = pytest.mark.skipif(cuda_host.COMPILER is None, reason="no C++ compiler")


def small_block(x, y, w, b):
    """A product with all that transformers do around it."""
    heads = (x @ w).reshape(*x.shape[:2], 2, -1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", heads, heads) * 0.25
    x = x + jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), heads).reshape(x.shape)
    x = jax.nn.gelu(jax.nn.standardize(x) @ w + b)
    return jnp.concatenate([x - y, jnp.sum(x * y, axis=1, keepdims=True)], axis=1), jnp.argmax(x, axis=-1)


def code_of(ops, _architecture, graph=None):
    return fake_cuda.code_of(Program((), (), tuple(ops), ()), graph)


def test_the_check_for_gpus(tmp_path, monkeypatch):
    fake_cuda.load()
    compiled = []

    def compile_ops(ops, architecture, graph=None):
        compiled.append(len(ops))
        return code_of(ops, architecture, graph)

    monkeypatch.setattr(check, "compile_ops", compile_ops)
    small = Model("small", lambda w, x: jax.nn.softmax(x @ w), random(0, 24, 40), (random(1, 6, 24),))
    monkeypatch.setattr(check.zoo, "build", lambda name, size: small)
    options = {"models": ("small",), "json": tmp_path / "gpu.json", "minutes": 60, "rounds": 2, "dtypes": ("float32",)}
    assert check.gpu_check(**options, only=("kernels", "executors")) == 0
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert results["kernels/small/1/float32"]["kernels"] == compiled[-1] == 2
    assert results["executors/small/1/float32"]["steady"]
    assert results["executors/small/1/float32"]["seconds"].keys() == {"stream", "graph"}
    done = len(compiled)
    assert check.gpu_check(**options, only=("kernels", "executors")) == 0
    assert len(compiled) == done  # what the file holds is not done again


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_kernel_against_float64(monkeypatch, dtype):
    fake_cuda.load()
    monkeypatch.setattr(check, "compile_ops", code_of)
    shapes = (2, 20, 32), (2, 20, 32), (32, 32), (32,)
    ops = ops_of(small_block, [random(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)])
    assert {"matmul", "attention", "rows", "concatenate"} <= {op.family.name for op in ops}
    found = check.ops_against_float64(ops)
    assert found["right"], found
    assert found["worst"] > 0
    assert 0 < found["of_allowed"] < 1


def biased(x, y, w, b):
    return x @ w + b


def difference(x, y, w, b):
    return x - y


def test_a_further_output_that_is_wrong_is_reported(monkeypatch):
    """Kernels of several outputs are compared in all of them."""

    def function(x, y):
        return jnp.tanh(x) + y, jnp.tanh(x) * y

    fake_cuda.load()
    (op,) = ops_of(function, [random(i, 20, 48) for i in range(2)])
    assert op.family.name == "block"
    assert op.further
    monkeypatch.setattr(check, "compile_ops", code_of)
    assert check.ops_against_float64([op])["right"]
    assert op.program is not None
    exchanged = dataclasses.replace(op.program, result=op.program.further[0], further=(op.program.result,))
    monkeypatch.setattr(check, "compile_ops", lambda ops, _: code_of([op.replace(program=exchanged)], None))
    wrong = check.ops_against_float64([op])["wrong"]
    assert [number for number in range(2) if f"output {number}" in wrong[number]] == [0, 1]


EXCHANGED = BlockProgram(2, (), (Instruction("sub_f", (1, 0)),), 2)


@pytest.mark.parametrize(
    ("function", "dtype", "fault"),
    [
        (biased, jnp.float32, lambda op: op.replace(exact=False)),  # TF32 where float32 was asked for
        (biased, jnp.bfloat16, lambda op: op.replace(program=single("sub_f"))),  # the bias subtracted
        (difference, jnp.float32, lambda op: op.replace(program=EXCHANGED)),  # sides of one shape
    ],
)
def test_a_kernel_that_is_wrong_is_reported(monkeypatch, function, dtype, fault):
    fake_cuda.load()
    shapes = (20, 48), (20, 48), (48, 24), (24,)
    (op,) = ops_of(exactly(function), [random(i, *shape, dtype=dtype) for i, shape in enumerate(shapes)])
    monkeypatch.setattr(check, "compile_ops", code_of)
    assert check.ops_against_float64([op])["right"]
    monkeypatch.setattr(check, "compile_ops", lambda ops, _: code_of([fault(op)], None))
    found = check.ops_against_float64([op])
    assert not found["right"]
    assert [text.split()[0] for text in found["wrong"]] == [op.family.name]


def test_in_float64():
    x = random(0, 3, 5)

    def function(x):
        count = jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] / 3), (0, x))[1]
        bits = jax.lax.bitcast_convert_type(x, jnp.int32) + 1
        return jax.nn.relu(count) + jnp.cumsum(x, axis=1) + jax.lax.bitcast_convert_type(bits, jnp.float32)

    wide = x.astype(np.float64)
    expected = np.maximum(wide / 27, 0) + np.cumsum(wide, axis=1) + (x.view(np.int32) + 1).view(np.float32)
    np.testing.assert_allclose(in_float64(function, x), expected, rtol=1e-15)
    (narrow,) = in_float64(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32) / 3, x[:1])
    np.testing.assert_allclose(narrow, x[0].astype(jnp.bfloat16).astype(np.float64) / 3, rtol=1e-15)
    assert in_float64(lambda x: jnp.argmax(x, axis=1), x).dtype == np.int32
    updated = in_float64(lambda x: x.at[jnp.array([0, 0])].add(x[1] / 3), x)
    np.testing.assert_allclose(updated[0], wide[0] + 2 * (wide[1] / 3), rtol=1e-15)


def test_kernels_beside_libraries(tmp_path, monkeypatch):
    """Without a GPU the peers are played or absent: what is done with their times is tested, no time."""
    fake_cuda.load()
    monkeypatch.setattr(check, "compile_ops", code_of)
    monkeypatch.setattr(check.shutil, "which", lambda _: None)
    case = KernelCase("small matmul", jnp.matmul, ((40, 24), (24, 72)), 2 * 40 * 24 * 72)
    monkeypatch.setattr(check, "GPU_CASES", (case,))
    measured = []

    def in_child(module, words, environment, timeout):
        assert (module, environment["JAX_PLATFORMS"]) == ("benchmarks.gpu.peers", "cpu")
        measured.append(words[:2])
        if words[0] == "torch":
            return {case.name: 1e-4}
        raise AspenError("pip install something")

    monkeypatch.setattr(check, "measure_in_child", in_child)
    file = tmp_path / "gpu.json"
    options = {"rounds": 2, "json": file}
    assert check.gpu_check(**options, minutes=0, only=("table", "sanitizer")) == 1
    assert not measured
    assert check.gpu_check(**options, minutes=60, only=("table", "sanitizer")) == 0
    results = json.loads(file.read_text())["results"]
    for absent in ("cupy/float32", "cupy/bfloat16", "sanitizer/memcheck"):
        assert results[absent]["absent"]
    # Ten runs between two events, which in the fake are a millisecond apart.
    line = kernel_table.kernels_table(results, (case,), ("float32", "bfloat16"))[1]
    assert line.split() == ["small", "matmul", "float32", "100", "us", "100", "us", "-", "100%", "0.00138"]
    del measured[:]
    assert check.gpu_check(**options, minutes=60, only=("table",)) == 0
    assert measured == [("cupy", "float32"), ("cupy", "bfloat16")]  # what was absent may be there now


def test_libraries_that_are_missing_say_what_to_install():
    for library, dtype in (("cupy", "bfloat16"), ("torch", "float32")):
        if library == "cupy" or importlib.util.find_spec("torch") is None:
            with pytest.raises(AspenError, match="absent: "):
                peers.measure(library, dtype, "1")


@pytest.mark.parametrize("name", ["squeezenet1_1", "bert-base", "gpt2-decode"])
def test_models_of_16_bits_are_so_throughout(name):
    model = zoo.build(name, Size(image_size=40 if name == "squeezenet1_1" else None)).cast(jnp.bfloat16)
    trace = frontend.trace(jax.make_jaxpr(model.apply)(*model.arguments))
    products = [op for part in trace.parts for op in part.ops if op.family.name in ("conv2d", "matmul")]
    assert products
    assert {operand.dtype for op in products for operand in (op.output, *op.main_inputs)} == {np.dtype(jnp.bfloat16)}
