"""`python -m benchmarks gpu` on the fake of CUDA's driver: every figure of its tables is there, and every output is right.

"By device" the fake driver runs the kernels made for GPUs. JAX has no GPU to call: under `jax.jit` tiles of the CPU stand in for
both executors, and XLA's side is XLA on the CPU. So these tests say nothing of the custom call for CUDA, nor of any time.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import json
import stat

import jax
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from aspen_jax.errors import AspenError
from aspen_jax.ir.program import Program
from aspen_jax.targets.cuda.tuning import sides
from benchmarks import child
from benchmarks.__main__ import main
from benchmarks.gpu import lock, ours, run, tables, torch_side
from benchmarks.gpu.networks import REFERENCE, largest_error, outputs_on_cpu, read_outputs
from benchmarks.gpu.row import Row, chosen
from tests.targets.cuda import cuda_host, fake_cuda

ROW = Row("squeezenet1_1", 1, "bfloat16", 33)
CHOICE = ("--models", ROW.model, "--image-size", "33", "--rounds", "1")
MODULES = {"benchmarks.gpu.ours": ours, "benchmarks.gpu.torch_side": torch_side}
PLAYED = {"name": "the played GPU", "architecture": "sm_90a", "platform": "cuda", "cupy": None}


@pytest.fixture
def played(monkeypatch):
    """The machine that is played; steps run in this process. Gives the fake driver."""
    if cuda_host.COMPILER is None:
        pytest.skip("no C++ compiler")
    driver = fake_cuda.load()

    def compile_ops(ops, _architecture, graph):
        return fake_cuda.code_of(Program((), (), tuple(ops), ()), graph)

    monkeypatch.setattr(ours, "compile_ops", compile_ops)
    monkeypatch.setattr(ours, "gpu", lambda: jax.devices("cpu")[0])

    def sides_on_cpu(jaxpr, choices, arguments):
        """The lowering for CPUs makes tiles whatever the executor, also of "xla"."""
        by_xla = functools.partial(jax.jit(jaxpr_as_fun(jaxpr)), *arguments)
        return {**sides(jaxpr, choices, arguments), "xla": by_xla}

    monkeypatch.setattr(ours, "sides", sides_on_cpu)

    def measure_in_child(module, words, environment, timeout=None):
        assert environment["JAX_PLATFORMS"] in ("cpu", "cuda,cpu")
        return dict(PLAYED) if words == ("about",) else MODULES[module].measure(*words)

    monkeypatch.setattr(run, "measure_in_child", measure_in_child)
    return driver


def programs_in(folder, copies):
    for name, script in (("launches", 'echo \'{"what": "graph node", "value": 0.73, "unit": "us"}\''), ("copies", copies)):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(stat.S_IRWXU)
    return str(folder)


def cells(page_text, title):
    """A table's rows as dicts, the first one under a title that has the word."""
    lines = page_text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|") and title in line)
    names, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in "\n".join(lines[start:]).split("\n\n")[0].splitlines()
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_every_figure_is_there_and_every_output_is_right(played, tmp_path, monkeypatch, capsys):
    def in_torch(side, row, rounds, expected):
        """PyTorch, played: what XLA gives on the CPU, and known times."""
        assert (Row.of(row), rounds) == (ROW, "1")
        outputs = outputs_on_cpu(ROW.cast(ROW.build()))
        error = largest_error(outputs, read_outputs(run.Path(expected))[REFERENCE])
        return {"call_us": 300.0, "device_us": 250.0, "error": error, "version": "2.11"}

    monkeypatch.setattr(torch_side, "measure", in_torch)
    programs = programs_in(tmp_path, "echo 'no green contexts' >&2; exit 1")
    out, launched = tmp_path / "out", played.fake_cuda_count(b"cuGraphLaunch")
    assert main(["gpu", *CHOICE, "--programs", programs, "--minutes", "60", "--out", str(out)]) == 0
    assert played.fake_cuda_count(b"cuGraphLaunch") > launched
    assert sorted(file.name for file in out.iterdir()) == ["gpu.json", "gpu.md"]
    content = json.loads((out / "gpu.json").read_text())
    assert content["machine"]["device"] == PLAYED
    assert {"aspen_jax", "jax", "jaxlib", "torch"} <= {name for name, version in content["machine"].items() if version}
    assert content["settings"] | {"models": ["squeezenet1_1"], "image_size": 33, "rounds": 1} == content["settings"]
    assert content["results"][-1]["rows"] == [{"remark": "copies ended with status 1: no green contexts"}]
    (row,) = content["results"][0]["rows"]
    beside = row["errors"]["against xla"]
    assert beside.keys() == {"graph by device", "stream by device", "graph", "stream"}
    assert all(0 < error < 6e-2 for error in beside.values())  # two programs, not one under two names
    kernels = row["kernels"]
    assert row["ops"] == len(kernels) > 20
    assert sum(kernel["tiles"] for kernel in kernels) == row["tiles"]
    assert "conv2d" in {kernel["op"] for kernel in kernels}

    text = (out / "gpu.md").read_text()
    assert text in capsys.readouterr().out
    (times,), (more,) = cells(text, "share of the best"), cells(text, "until the call returns")
    assert all(float(value) > 0 for name, value in (times | more).items() if not name.startswith("model"))
    # Ten runs between two events, which in the fake are a millisecond apart.
    assert times["aspen graph, device"] == more["aspen stream, device"] == "100"
    assert times["torch.compile, device"] == "250"
    (errors,) = cells(text, "xla on the CPU")
    assert errors.pop("aspen") == "right"
    assert errors.pop("model, dtype, batch") == "squeezenet1_1, bfloat16, 1"
    assert errors["torch.compile"] == errors["torch eager in a CUDA graph"] == errors["xla on the CPU"]
    assert len(errors) == 8
    assert all(0 < float(error) < 6e-2 for error in errors.values())
    assert ours.measure("once", ROW.words) is None
    assert cells(text, "launches")[0]["launches"] == str(len(kernels))
    assert cells(text, "unit") == [{"what": "graph node", "value": "0.73", "unit": "us"}]


@pytest.mark.usefixtures("played")
def test_wrong_outputs_and_peers_that_are_absent_are_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ours, "_by_device", lambda *_: ([np.zeros((1, 1000), np.float32)], {"device_us": 1.0, "host_us": 1.0}))
    monkeypatch.setattr(run.programs, "built", refused)
    monkeypatch.setattr(torch_side.importlib.util, "find_spec", lambda _: None)
    out = tmp_path / "out"
    arguments = ["gpu", *CHOICE, "--minutes", "60", "--out", str(out)]
    assert main(arguments) == 1
    content = json.loads((out / "gpu.json").read_text())
    assert [row["remark"] for row in content["results"][-1]["rows"]] == [
        "there is no nvcc",
        "squeezenet1_1, bfloat16, 1, images of 33: wrong, by more than 6.0e-02: graph by device, stream by device",
        "torch is absent: pip install torch",
    ]
    assert content["results"][0]["rows"][0]["times"]["xla"]["call_us"] > 0
    assert "wrong: graph by device, stream by device |" in (out / "gpu.md").read_text()
    capsys.readouterr()
    assert main(arguments) == 2
    assert "holds the figures of another run; name another folder" in capsys.readouterr().err


def refused(*_):
    raise AspenError("there is no nvcc")


def test_nothing_is_begun_when_time_is_over(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "measure_in_child", lambda *_: dict(PLAYED))
    monkeypatch.setattr(run.programs, "built", refused)
    assert main(["gpu", *CHOICE, "--minutes", "1e-9", "--out", str(tmp_path / "out")]) == 1
    assert "not compiled: time was over; --minutes grants more" in capsys.readouterr().out


def test_models_compile_without_a_gpu(tmp_path, monkeypatch, capfd):
    """In processes of their own, as on a machine with a GPU."""
    pytest.importorskip("cupy", reason="no CuPy, which calls NVRTC")
    monkeypatch.setenv("ASPEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(run.programs, "built", refused)
    assert main(["gpu", *CHOICE, "--compile-only"]) == 0
    assert "squeezenet1_1, bfloat16, 1, images of 33: " in capfd.readouterr().out
    assert [file.suffix for file in (tmp_path / "cuda").iterdir()] == [".bin"]


def test_without_a_gpu_it_says_so(capsys):
    assert main(["gpu"]) == 2
    message = capsys.readouterr().err
    assert "JAX has no GPU here" in message
    assert "--compile-only compiles models and programs into the cache without one" in message


@pytest.mark.skipif(run.programs.shutil.which("nvcc") is None, reason="no nvcc")
def test_programs_are_built_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("ASPEN_CACHE_DIR", str(tmp_path))
    for name in run.programs.PROGRAMS:
        program = run.programs.built(name, "sm_90a")
        assert [file.read_bytes() for file in (tmp_path / "cuda").glob(f"{name}-*")] == [program]


def test_rows_are_those_of_the_table_or_all_combinations():
    rows = [(row.model, row.batch, row.dtype) for row in chosen((), (), (), None, None)]
    assert len(rows) == 8
    assert ("bert-base", 32, "bfloat16") in rows
    assert ("resnet50", 1, "float32") in rows
    rows = chosen(("vgg16",), (2, 4), (), 64, None)
    assert rows == [Row("vgg16", batch, "bfloat16", 64) for batch in (2, 4)]
    assert [Row.of(row.words) for row in rows] == rows


def test_the_share_of_the_best_is_that_of_the_h200_page():
    """ResNet-50 and MobileNetV2 of docs/results/h200.md."""
    times = {
        "graph by device": {"device_us": 451.0},
        "graph": {"call_us": 839.0},
        "xla": {"call_us": 666.0, "back_to_back_us": 587.0},
        torch_side.COMPILED: {"call_us": 847.0, "device_us": 510.0},
        torch_side.EAGER: {"call_us": 838.0, "device_us": 826.0},
    }
    assert f"{tables.share_of_best(times):.2f} {tables.share_of_best_call(times):.2f}" == "1.13 0.79"
    times |= {"graph by device": {"device_us": 390.0}, torch_side.COMPILED: {"call_us": 349.0, "device_us": 272.0}}
    assert f"{tables.share_of_best(times):.2f}" == "0.70"


def test_pytorch_that_is_missing_says_what_to_install(tmp_path):
    if importlib.util.find_spec("torch") is None:
        with pytest.raises(AspenError, match="absent: pip install torch"):
            torch_side.measure(torch_side.EAGER, ROW.words, "1", str(tmp_path / "x.npz"))


def test_one_process_at_a_time_takes_times(tmp_path, monkeypatch):
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path))

    def is_free():
        (file,) = tmp_path.iterdir()
        with file.open() as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    with lock.timing():
        assert not is_free()
    assert is_free()
    monkeypatch.setattr(lock.tempfile, "gettempdir", lambda: str(tmp_path / "nowhere"))
    with pytest.raises(AspenError, match="cannot be opened: No such file or directory; set TMPDIR"), lock.timing():
        pass


def test_what_a_library_raises_in_a_process_of_its_own_is_told():
    with pytest.raises(AspenError, match="KeyError: 'nothing'"):
        child.measure_in_child("benchmarks.gpu.ours", ("nothing",), {"JAX_PLATFORMS": "cpu"})
