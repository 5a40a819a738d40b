"""Ops, passes and devices from outside of the package, as docs/how-to/extend.md makes them; each test in a process of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from aspen_jax import AspenError, extend
from aspen_jax.ops import CONVERTERS, FAMILIES
from aspen_jax.ops.sort import SORT
from aspen_jax.passes import stages_of
from aspen_jax.targets import registry
from aspen_jax.targets.cpu.target import CpuTarget
from tests.pages import ROOT, run_apart

PAGE = ROOT / "docs/how-to/extend.md"
pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="a kernel needs a C++ compiler")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where the page's program runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment(**variables: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("ASPEN_DISABLE_PASSES", "XLA_FLAGS")}
    return {**own, **variables}


def run(folder: Path, program: str, page: Path = PAGE, **variables: str) -> str:
    """Run a program behind that of the page, whose names it knows, and give what it prints."""
    begin = f"""
import pathlib, sys
sys.path.append({str(ROOT)!r})
from tests import pages
globals().update(pages.run_page(pathlib.Path({str(page)!r})))
print("PAGE IS OVER")
"""
    command = [sys.executable, "-P", "-W", "error", "-c", begin + program]
    found = subprocess.run(
        command, env=environment(**variables), cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout.partition("PAGE IS OVER\n")[2]


@pytest.mark.parametrize(
    "variables", [{"ASPEN_TIME_CHOICES": "on"}, {"ASPEN_DISABLE_PASSES": "choice"}, {"ASPEN_TIME_CHOICES": "off"}], ids=str
)
def test_the_page_runs_as_readers_run_it_and_in_tiles(folder, variables):
    said = run_apart(PAGE, environment(**variables))
    if "ASPEN_TIME_CHOICES" in variables:
        assert "nearest" in said  # nothing is timed, so the kernel runs


def test_the_kernel_is_right_for_any_view_and_shape(folder):
    run(
        folder,
        """
import itertools
seed = int(np.random.SeedSequence().entropy % 2**32)
print("seed", seed)
random = np.random.default_rng(seed)
for rows, codes, depth in itertools.product((0, 1, 5, 300), (1, 7), (0, 1, 16, 37)):
    x, codebook = random.standard_normal((rows, depth), np.float32), random.standard_normal((depth, codes), np.float32)
    function = aspen(lambda x, codebook: nearest(x[::-1], codebook.T) + 1, strict=True)
    found = np.asarray(function(x, codebook))
    distances = ((x[::-1, None].astype(np.float64) - codebook.T) ** 2).sum(-1)
    least = distances.min(1) if rows else np.zeros(0)
    np.testing.assert_allclose(np.take_along_axis(distances, found[:, None] - 1, 1)[:, 0], least, rtol=1e-5)
graph = aspen(nearest).graph(np.ones((3000, 64), np.float32), np.ones((256, 64), np.float32))
graph.verify()
assert graph.num_tiles > 1
""",
        ASPEN_DISABLE_PASSES="choice",
    )


def test_what_kernels_refuse_stays_with_xla(folder):
    said = run(
        folder,
        """
half = aspen(lambda x, codebook: nearest(x, codebook))
x16, codebook16 = x[:, :32].astype(np.float16), codebook.astype(np.float16)
assert (half(x16, codebook16) == by_xla(x16, codebook16)).all()
print(half.explain(x16, codebook16).fallbacks[0].reason)
""",
    )
    assert said == "nearest takes float32 and a codebook that is not empty\n"


def test_a_saved_graph_runs_where_its_kernel_is_registered(folder):
    run(
        folder,
        """
graph = aspen(nearest).graph(x[:, :32], codebook)
graph.save("nearest.aspen")
np.save("x.npy", x[:, :32]), np.save("codebook.npy", codebook)
np.save("expected.npy", aspen(nearest)(x[:, :32], codebook))
from aspen_jax.cache.shared_library import shared_library
import shutil
with shared_library(pathlib.Path("nearest.cc"), "-O3", "-march=native") as library:
    shutil.copy(library, "nearest.so")
""",
        ASPEN_DISABLE_PASSES="choice",
    )
    loading = "from aspen_jax import TileGraph\nTileGraph.load('nearest.aspen')"
    assert "register kernel and op (aspen_jax.extend)" in failing(folder, loading)
    inputs = ["--input", "x=x.npy", "--input", "codebook=codebook.npy", "--output", "results", "--runs", "1"]
    run_graph = ["aspen-run", "nearest.aspen", *inputs]
    refused = subprocess.run(run_graph, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert refused.returncode == 2
    assert "no kernel named 'nearest'" in refused.stderr
    for kernels, status in [("nearest.so", 0), ("absent.so", 2), ("nearest.aspen", 2)]:
        ran = subprocess.run(
            [*run_graph, "--kernels", kernels], cwd=folder, capture_output=True, text=True, check=False, timeout=100
        )
        assert ran.returncode == status, ran.stderr
    (result,) = (folder / "results").glob("*.npy")
    np.testing.assert_array_equal(np.load(result), np.load(folder / "expected.npy"))


def failing(folder: Path, program: str) -> str:
    """The last line that a program writes which ends with an error."""
    command = [sys.executable, "-P", "-W", "error", "-c", program]
    found = subprocess.run(command, env=environment(), cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert found.returncode == 1, found.stdout + found.stderr
    return found.stderr.strip().splitlines()[-1]


MINE = 'extend.register_kernels("mine.cc")'
CC = '#include "aspen_jax/engine/kernel_library.h"\n'


@pytest.mark.parametrize(
    ("source", "program", "message"),
    [
        ("int x;", MINE, "it shows none; end its source with ASPEN_KERNELS"),
        ("int x = y;", MINE, "error"),
        (
            CC + 'ASPEN_KERNELS({"sort", [](const aspen::OpSpec&) { return aspen::PreparedOp{}; }});',
            MINE,
            "there is a kernel named 'sort' already",
        ),
        (
            CC + 'extern "C" const aspen::KernelLibrary aspen_kernels;\nconst aspen::KernelLibrary aspen_kernels = {};',
            MINE,
            "compile it again",
        ),
        ("no library", 'extend.register_kernels("mine.so")', "no kernels were loaded from 'mine.so'"),
        ("", 'extend.register_kernels("absent.cc")', "absent.cc"),
        ("", "extend.register_op(extend.OpFamily)", "register an instance"),
        ("", "extend.register_op(SORT)", "there is an op with a kernel 'sort' already"),
        ("", "extend.converts('add')(print)", "the primitive 'add' becomes an op already"),
        ("", "extend.register_pass(extend.Pass('fuse', print, ''), before='outputs')", "there is a pass 'fuse' already"),
        ("", "extend.register_pass(extend.Pass('mine', print, ''), before='none')", "cpu has no pass 'none'"),
        (
            "",
            "extend.register_pass(extend.Pass('mine', print, '', after=('rows',)), before='fuse')",
            "no pass 'rows' comes before",
        ),
        ("", "extend.register_pass(extend.Pass('mine', print, ''), before='fuse', target='tpu')", "device='tpu' is unknown"),
        ("", "extend.register_pass(extend.Pass('mine', print, ''), before='fuse', target='auto')", "once for each"),
        ("", "extend.converts(print)", "takes names of primitives"),
        ("", "extend.converts()", "takes names of primitives"),
        ("", "extend.register_target(extend.Target)", "the target Target lacks call, here"),
        ("", "extend.register_target('mine')", "register a class that derives from Target"),
        ("", "extend.converts('mine', 'add')(print)", "the primitive 'add' becomes an op already"),
        (CC + 'ASPEN_KERNELS({"mine", nullptr});', MINE, "no `prepare`; write both"),
        (
            "",
            "extend.register_target(CpuTarget)",
            "there is a device 'cpu' already",
        ),
    ],
)
def test_a_mistake_is_an_error_that_says_what_to_do(folder, source, program, message):
    (folder / "mine.cc").write_text(source)
    (folder / "mine.so").write_text(source)
    before = dict(FAMILIES), dict(CONVERTERS), registry.devices(), [stages_of(registry.named(name)) for name in ("cpu", "cuda")]
    with pytest.raises((AspenError, FileNotFoundError), match=re.escape(message)):
        exec(program, {"extend": extend, "SORT": SORT, "CpuTarget": CpuTarget})
    after = dict(FAMILIES), dict(CONVERTERS), registry.devices(), [stages_of(registry.named(name)) for name in ("cpu", "cuda")]
    assert after == before


def test_a_folder_that_cannot_be_written_is_named(folder, monkeypatch):
    monkeypatch.setenv("ASPEN_CACHE_DIR", "/proc/none")
    (folder / "mine.cc").write_text("int x;")
    with pytest.raises(AspenError, match=re.escape("cannot be kept in /proc/none/libraries") + ".*set ASPEN_CACHE_DIR"):
        extend.register_kernels("mine.cc")


def test_a_pass_for_gpus_may_be_named_as_jax_names_them(folder):
    program = """
extend.register_pass(extend.Pass("mine", lambda program: program, "It does nothing."), before="outputs", target="gpu")
from aspen_jax.passes import stages_of
from aspen_jax.targets import registry
assert any(item.name == "mine" for _, stage in stages_of(registry.named("cuda")) for item in stage)
"""
    run(folder, program)


def test_what_a_users_kernel_throws_is_told_with_its_op(folder):
    program = """
pathlib.Path("mine.cc").write_text('''
#include "aspen_jax/engine/kernel_library.h"
ASPEN_KERNELS({"one", [](const aspen::OpSpec&) -> aspen::PreparedOp { throw std::logic_error("prepare says no"); }},
              {"two", [](const aspen::OpSpec&) -> aspen::PreparedOp { throw 42; }});
''')
extend.register_kernels("mine.cc")
from aspen_jax import GraphFormatError
for kernel, message in [("one", "prepare says no"), ("two", "no std::exception")]:
    Nearest.kernel = kernel
    try:
        aspen(lambda x, c: nearest(x, c)).graph(x[:, :32], codebook).run(x[:, :32], codebook)
    except GraphFormatError as error:
        assert message in str(error) and f"op 'nearest (512 codes)' ({kernel})" in str(error), error
    else:
        raise SystemExit("nothing was said")
"""
    run(folder, program, ASPEN_DISABLE_PASSES="choice")


@pytest.mark.parametrize("wrong", ["None", "program.replace(outputs=())"])
def test_a_pass_that_loses_the_program_is_named(folder, wrong):
    program = f"""
extend.register_pass(extend.Pass("mine", lambda program: {wrong}, "It is wrong."), before="outputs")
from aspen_jax import AspenError
try:
    aspen(lambda x: jnp.tanh(x)).graph(x)
except AspenError as error:
    assert "the pass 'mine' gave no program" in str(error), error
else:
    raise SystemExit("nothing was said")
"""
    run(folder, program)


def test_attributes_are_what_their_words_mean():
    @dataclasses.dataclass(frozen=True)
    class Given(extend.Attrs):
        fill: float
        axis: int
        flip: bool
        window: tuple[int, ...]

    made = Given(2, np.int64(1), np.bool_(True), [np.int32(3), 4])
    assert made == Given(2.0, 1, True, (3, 4))
    assert made.to_words() == Given(2.0, 1, True, (3, 4)).to_words()
    for wrong in [("2", 1, True, ()), (2.0, 0.9, True, ()), (2.0, 1, True, (1.7,)), (2.0, 1, True, 3)]:
        with pytest.raises(AspenError, match=r"Given\.\w+ is .*; it must be"):
            Given(*wrong)


def test_times_of_another_version_of_a_kernel_do_not_count(folder, monkeypatch):
    """What was slow when it was timed runs once it is mended."""
    monkeypatch.setenv("ASPEN_CACHE_DIR", str(folder / "cache"))
    program = 'print(len(encode.explain(x, w, codebook).parts), end="")'
    text = PAGE.read_text()
    header, state = '#include "aspen_jax/engine/words.h"', "  const auto& op = static_cast"
    slow = text.replace(header, f"#include <chrono>\n#include <thread>\n{header}")
    slow = slow.replace(state, f"  std::this_thread::sleep_for(std::chrono::milliseconds(20));\n{state}")
    (folder / "slow.md").write_text(slow)
    assert run(folder, program, page=folder / "slow.md", ASPEN_TIME_CHOICES="on") == "0"
    assert run(folder, program, ASPEN_TIME_CHOICES="on") == "1"


def test_a_change_of_kernel_h_changes_the_version():
    """A library lays out what is in that header, so one that was compiled before a change must be refused."""
    text = re.sub(r"//[^\n]*|\s", "", (ROOT / "aspen_jax/engine/kernel.h").read_text())
    version = re.search(r"kVersion = (\d+)", (ROOT / "aspen_jax/engine/kernel_library.h").read_text())
    assert version is not None
    known = {4: "c818aa976b11ad5a"}
    told = "count kVersion up in engine/kernel_library.h, and write the new hash here"
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == known[int(version[1])], told


def test_a_converter_that_gives_another_shape_is_named(folder):
    run(
        folder,
        """
from jax.extend.core import Primitive
wrong_p = Primitive("wrong")
wrong_p.def_abstract_eval(lambda x: jax.core.ShapedArray((3,), np.float32))
extend.converts("wrong")(lambda build, equation, x: x)
from aspen_jax import AspenError
try:
    aspen(lambda x: wrong_p.bind(x)).explain(np.ones(4, np.float32))
except AspenError as error:
    assert "the converter of wrong makes float32[4], but should make float32[3]; mend the converter" in str(error), error
else:
    raise SystemExit("nothing was said")
""",
    )


def test_a_pass_can_be_switched_off_by_its_name(folder):
    program = """
import os
shown = lambda: "512 codes" in str(aspen(lambda x, c: nearest(x, c)).explain(x[:, :32], codebook))
print(shown())
os.environ["ASPEN_DISABLE_PASSES"] = "choice,renamed"
print(shown())
"""
    assert run(folder, program, ASPEN_DISABLE_PASSES="choice") == "True\nFalse\n"
