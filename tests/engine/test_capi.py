"""Saved graphs run without Python: by aspen-run, and by a program in C that is built against the installed header."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import aspen_jax
from aspen_jax import TileGraph, aspen
from aspen_jax.errors import InputError
from tests.pages import run_page

ROOT = Path(__file__).parents[2]


def installed(path: str) -> Path:
    """A file of the package; in an editable installation it has two folders."""
    spec = importlib.util.find_spec("aspen_jax")
    assert spec is not None
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    return next((folder / path for folder in folders if (folder / path).exists()), folders[0] / path)


PROGRAM = installed("bin/aspen-run")
RNG = np.random.default_rng(5)

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="this build has no C library: pip install . brings it")


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> Any:
        x = nn.relu(nn.Dense(24)(x))
        return {"scores": nn.softmax(nn.Dense(5)(x)), "hidden": x.astype(jnp.bfloat16)}


X = RNG.standard_normal((6, 7), np.float32)
VARIABLES = Model().init(jax.random.key(0), X)


@aspen
def predict(variables, x, offset):
    return Model().apply(variables, x + offset)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a model's graph, its weights and an input; an array of another shape too."""
    folder = tmp_path_factory.mktemp("model")
    graph = predict.graph(VARIABLES, X, 0.25)
    graph.save(folder / "model.aspen")
    graph.save_weights(folder / "model.safetensors", variables=VARIABLES, offset=0.25)
    np.save(folder / "x.npy", X)
    np.save(folder / "other.npy", X[:2])
    return folder


def run(folder: Path, *arguments: object, program: Path = PROGRAM) -> subprocess.CompletedProcess[str]:
    command = [str(program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)


def test_a_flax_model_gives_the_bits_that_python_gets(folder: Path) -> None:
    given = ["--weights", "model.safetensors", "--input", "x=x.npy"]
    ran = run(folder, "model.aspen", *given, "--runs", 3, "--workers", 2, "--output", "results")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.search(r"^  variables.params.Dense_0.kernel +float32\[7,24\] +weight$", ran.stdout, re.MULTILINE)
    assert re.search(r"^  x +float32\[6,7\] +x.npy$", ran.stdout, re.MULTILINE)
    assert re.search(r"^workers 2, runs 3: minimum \d+\.\d+ ms, median \d+\.\d+ ms$", ran.stdout, re.MULTILINE)
    graph = TileGraph.load(folder / "model.aspen")
    assert graph.result_names == ("result.hidden", "result.scores")
    for name, expected in zip(graph.result_names, graph.run(VARIABLES, X, 0.25), strict=True):
        result = np.load(folder / "results" / f"{name}.npy")
        assert result.shape == expected.shape
        assert result.tobytes() == expected.tobytes()
    np.testing.assert_allclose(result, predict(VARIABLES, X, 0.25)["scores"], rtol=1e-5)


def test_inputs_that_are_not_given_are_random(folder: Path) -> None:
    ran = run(folder, "model.aspen", "--input", "1=random")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(re.findall(r" random$", ran.stdout, re.MULTILINE)) == 6


DTYPES = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "bfloat16", "float32")


@pytest.mark.parametrize("dtype", [*DTYPES, "int64", "uint64", "float64"])
def test_every_dtype_comes_through_both_kinds_of_files(dtype: str, tmp_path: Path) -> None:
    with jax.enable_x64(dtype.endswith("64")):
        kind = jnp.dtype(dtype)
        x, w = (RNG.integers(0, 2 if dtype == "bool" else 256, 40 * kind.itemsize, np.uint8).view(kind) for _ in range(2))
        graph = aspen(lambda x, w, s: (x, w.reshape(8, 5).T, s)).graph(x, w, w[0])
    graph.save(tmp_path / "g")
    graph.save_weights(tmp_path / "w", w=w, s=w[0])
    np.save(tmp_path / "x.npy", x)
    ran = run(tmp_path, "g", "--weights", "w", "--input", "x=x.npy", "--output", ".", "--runs", 1)
    assert (ran.returncode, ran.stderr) == (0, "")
    for index, expected in enumerate((x, w.reshape(8, 5).T.copy(), w[0])):
        result = np.load(tmp_path / f"result.{index}.npy")
        assert (result.shape, result.tobytes()) == (expected.shape, expected.tobytes())
        if dtype != "bfloat16":
            assert result.dtype == kind
    assert run(tmp_path, "g").returncode == 0  # random numbers of this dtype


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no graph is given"),
        (["none"], "cannot open 'none': No such file"),
        (["."], "'.' is no regular file"),
        (["x.npy"], "do not begin with ASPENTG"),
        (["model.safetensors"], "no tile graph"),
        (["model.aspen", "x.npy"], "two graphs"),
        (["model.aspen", "--weights", "x.npy"], "the safetensors file"),
        (["model.aspen", "--input", "x=other.npy"], "'shape': (2, 7)"),
        (["model.aspen", "--input", "x=model.aspen"], "no .npy file"),
        (["model.aspen", "--input", "y=x.npy"], "names 'y', which is no input"),
        (["model.aspen", "--input", "x"], "pass NAME=FILE"),
        (["model.aspen", "--runs", "0"], "--runs is '0'"),
        (["model.aspen", "--workers", "2000"], "number of workers is 2000"),
        (["model.aspen", "--workers"], "needs a value"),
        (["model.aspen", "--output", "x.npy"], "x.npy"),
        (["model.aspen", "--fast"], "no option '--fast'"),
    ],
)
def test_what_cannot_be_done_is_said(folder: Path, arguments: list[str], message: str) -> None:
    ran = run(folder, *arguments)
    assert ran.returncode == 2
    assert ran.stderr.startswith("aspen-run: ")
    assert message in ran.stderr


def test_the_program_says_what_it_is(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout == f"{aspen_jax.__version__}\n"
    options = set(re.findall(r"--\w+", run(tmp_path, "--help").stdout))
    assert options == set(re.findall(r"^\| `(--\w+)", (ROOT / "docs/reference/c.md").read_text(), re.MULTILINE)) | {"--help"}


@pytest.mark.skipif(shutil.which("aspen-run") is None, reason="the package is not installed as a whole")
def test_the_command_becomes_the_program(tmp_path: Path) -> None:
    """Without importing JAX: that alone would take a second."""
    environment = os.environ | {"PYTHONVERBOSE": ""}
    ran = subprocess.run(["aspen-run", "--version"], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
    assert ran.stdout == f"{aspen_jax.__version__}\n"


def compiled(folder: Path, *options: str) -> Path:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("there is no C compiler")
    flags = run(folder, "--flags").stdout.split()
    command = [compiler, *options, "-Wall", "-Wextra", "-Werror", "-pedantic", str(ROOT / "examples/run_graph.c"), *flags]
    built = subprocess.run([*command, "-o", "run_graph"], capture_output=True, text=True, cwd=folder, timeout=120)
    assert built.returncode == 0, built.stderr
    return folder / "run_graph"


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_a_child_forked_at_any_moment_can_parse_run_and_end(tmp_path: Path) -> None:
    flags = run(tmp_path, "--flags").stdout.split()
    source = ROOT / "tests/cpp/capi_fork_test.cc"
    options = ["-std=c++20", "-O1", "-pthread", "-DASPEN_SMALL_TESTS=0", "-I", str(ROOT)]
    command = ["c++", *options, str(source), *flags, "-o", "forks"]
    built = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([tmp_path / "forks"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_flax_model_runs_in_a_program_in_c(folder: Path) -> None:
    program = compiled(folder, "-std=c11")
    ran = run(folder, "model.aspen", "model.safetensors", program=program)
    assert (ran.returncode, ran.stderr) == (0, "")
    expected = predict(VARIABLES, jnp.zeros_like(X), 0.25)["scores"][0, 0]
    name, number = ran.stdout.split()
    assert name == "result.scores"
    assert float(number) == pytest.approx(float(expected), rel=1e-4)
    assert run(folder, "x.npy", program=program).stderr.startswith("run_graph: ")


def test_the_header_documents_every_function_of_the_reference_page(tmp_path: Path) -> None:
    declared = set(re.findall(r"\b(aspen_\w+)\(", re.sub(r"/\*.*?\*/", "", installed("include/aspen.h").read_text(), flags=re.S)))
    assert declared == set(re.findall(r"`(aspen_\w+)`", (ROOT / "docs/reference/c.md").read_text()))
    symbols = subprocess.run(["nm", "-D", "--defined-only", installed("lib/libaspen.so")], capture_output=True, text=True)
    assert {line.split()[-1] for line in symbols.stdout.splitlines()} == declared


@pytest.mark.parametrize("page", ["run_without_python"])
def test_the_page_works_to_its_end(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = ROOT / "docs/how-to" / f"{page}.md"
    run_page.__wrapped__(path)
    (command,) = re.findall(r"^    aspen-run (.*)$", path.read_text(), re.MULTILINE)
    ran = run(tmp_path, *command.split())
    assert (ran.returncode, ran.stderr) == (0, "")
    np.testing.assert_allclose(np.load("results/result.npy"), np.load("expected.npy"), rtol=1e-4, atol=1e-6)
    assert len(run(tmp_path, "classifier.aspen", "classifier.safetensors", program=compiled(tmp_path)).stdout.split()) == 2


def test_weights_that_fit_no_input_are_refused(tmp_path: Path) -> None:
    graph = predict.graph(VARIABLES, X, 0.25)
    with pytest.raises(InputError, match=r"'weights.params.Dense_0.bias' is no input of the graph, whose inputs are variables"):
        graph.save_weights(tmp_path / "w", weights=VARIABLES)
    with pytest.raises(InputError, match=r"'x' is float32\[2, 7\] and the graph takes float32\[6, 7\]"):
        graph.save_weights(tmp_path / "w", x=X[:2])
    assert list(tmp_path.iterdir()) == []


def stranger(folder: Path, names: tuple[str, ...]) -> Path:
    """A graph of as many results, with these names."""
    graph = aspen(lambda x: tuple(x + k for k in range(len(names)))).graph(X)
    dataclasses.replace(graph, result_names=names, input_names=("x\x1b]0;title\x07",)).save(folder / "stranger.aspen")
    return folder / "stranger.aspen"


def test_names_of_a_stranger_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = stranger(tmp_path, ("a\x1b[31m", "b\r\n\x9b", "c\u202ed", "é"))
    ran = run(tmp_path, path, "--runs", 1, "--output", "out")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert set(ran.stdout) <= {*map(chr, range(32, 127)), "\n", "é"}
    for shown in (r"x\x1b]0;title\x07", r"a\x1b[31m", r"b\x0d\x0a\x9b", r"c\u202ed"):
        assert shown in ran.stdout
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["a_[31m.npy", "b___.npy", "c_d.npy", "é.npy"]
    ran = run(tmp_path, "\x1b[2J")
    assert ran.stderr.startswith(r"aspen-run: cannot open '\x1b[2J'")


@pytest.mark.parametrize("names", [("a/b", "a_b", "c"), ("a\x01", "a\x02"), ("x" * 300, "0"), ("y" * 300, "y" * 301)])
def test_two_outputs_never_share_a_file(names: tuple[str, ...], tmp_path: Path) -> None:
    ran = run(tmp_path, stranger(tmp_path, names), "--runs", 1, "--output", "out", "--input", "0=x.npy")
    assert ran.returncode == 2  # there is no such input yet
    np.save(tmp_path / "x.npy", X)
    ran = run(tmp_path, stranger(tmp_path, names), "--runs", 1, "--output", "out", "--input", "0=x.npy")
    assert (ran.returncode, ran.stderr) == (0, "")
    results = [np.load(file) for file in (tmp_path / "out").iterdir()]
    assert sorted(float((result - X).mean().round()) for result in results) == list(range(len(names)))


def test_outputs_that_cannot_be_written_are_found_before_the_runs(tmp_path: Path) -> None:
    path = stranger(tmp_path, ("a", "b"))
    (tmp_path / "file").touch()
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/b.npy")
    for folder in ("file", "file/deeper", "/proc/nothing", "pipe"):
        ran = run(tmp_path, path, "--output", folder)
        assert ran.returncode == 2
        assert folder in ran.stderr
        assert "workers" not in ran.stdout


@pytest.mark.parametrize("kind", ["pipe", "folder", "/dev/zero", "/proc/self/maps"])
def test_no_file_is_waited_for(folder: Path, tmp_path: Path, kind: str) -> None:
    named = Path(kind) if kind.startswith("/") else tmp_path / kind
    if kind == "pipe":
        os.mkfifo(named)
    elif kind == "folder":
        named.mkdir()
    for arguments in ([named], ["model.aspen", "--weights", named], ["model.aspen", "--input", f"x={named}"]):
        ran = run(folder, *arguments)
        assert (ran.returncode, ran.stderr[:11]) == (2, "aspen-run: ")
        assert "workers" not in ran.stdout
