"""What is installed: its parts, its version, its promises to whoever imports it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aspen_jax
from aspen_jax import _engine
from aspen_jax.ops.opcodes import OPCODES

ROOT = Path(__file__).parents[1]


def test_the_version_is_that_of_the_distribution() -> None:
    assert aspen_jax.__version__ == importlib.metadata.version("aspen_jax")


def test_the_promised_names_are_public() -> None:
    promised = {"aspen", "TileGraph", "AspenError", "CUSTOM_CALL_TARGET", "num_workers", "set_num_workers"}
    assert promised <= set(aspen_jax.__all__)
    assert [name for name in aspen_jax.__all__ if not hasattr(aspen_jax, name)] == []


def test_the_distribution_holds_the_module_and_of_the_sources_the_headers_that_others_include() -> None:
    files = [Path(str(file)) for file in importlib.metadata.files("aspen_jax") or []]
    assert any(file.name.startswith("_engine.") and file.suffix == ".so" for file in files)
    sources = {file for file in files if file.name.endswith((".cc", ".h", ".inc", ".a", "CMakeLists.txt"))}
    kernels = {
        Path("aspen_jax/targets/cuda/include/cuda/kernels") / header.name for header in (ROOT / "cuda/kernels").glob("*.h")
    }
    engine = {header.relative_to(ROOT) for header in (ROOT / "aspen_jax/engine").glob("*.h")}
    assert Path("aspen_jax/engine/policy.h") in engine
    assert sources == kernels | engine | {Path("aspen_jax/include/aspen.h")}
    assert {Path("aspen_jax/lib/libaspen.so"), Path("aspen_jax/bin/aspen-run")} <= set(files)


def test_the_module_is_one_for_all_python_versions_from_3_12_on() -> None:
    (wheel,) = [file for file in importlib.metadata.files("aspen_jax") or [] if file.name == "WHEEL"]
    tags = [line.split()[1] for line in wheel.read_text().splitlines() if line.startswith("Tag:")]
    python = "cp312-abi3-" if sys.version_info >= (3, 12) else "cp311-cp311-"
    assert [tag for tag in tags if not tag.startswith(python)] == []


def test_the_licences_of_compiled_libraries_come_along() -> None:
    files = [Path(str(file)) for file in importlib.metadata.files("aspen_jax") or []]
    assert {file.name for file in files if file.parent == Path("aspen_jax/licences")} == {"nanobind.txt", "robin_map.txt"}
    directory = Path(aspen_jax.__file__).parent / "licences"
    assert "Redistributions in binary form" in (directory / "nanobind.txt").read_text()
    assert "Permission is hereby granted" in (directory / "robin_map.txt").read_text()


def test_every_installed_requirement_has_a_free_licence() -> None:
    command = [sys.executable, str(ROOT / "tools" / "licences.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert "| jax | " in result.stdout
    assert "| numpy | " in result.stdout


def test_a_licence_that_is_unknown_or_not_free_fails_the_report(tmp_path: Path) -> None:
    for name, lines in {"aspen_jax": "Requires-Dist: closed\nLicense-Expression: Apache-2.0", "closed": ""}.items():
        (tmp_path / f"{name}-1.dist-info").mkdir()
        (tmp_path / f"{name}-1.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1\n{lines}\n")
    report = [sys.executable, str(ROOT / "tools" / "licences.py")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    refused = subprocess.run(report, capture_output=True, text=True, env=environment, timeout=120)
    assert refused.returncode == 1
    assert "closed 1: its metadata names no licence" in refused.stderr
    permitted = subprocess.run([*report, "--permit", "closed"], capture_output=True, text=True, env=environment, timeout=120)
    assert permitted.returncode == 0, permitted.stderr
    with (tmp_path / "closed-1.dist-info" / "METADATA").open("a") as metadata:
        metadata.write("License-Expression: MIT AND LicenseRef-Proprietary\n")
    assert subprocess.run(report, capture_output=True, env=environment, timeout=120).returncode == 1


def test_every_source_file_is_installed() -> None:
    directory = Path(aspen_jax.__file__).parent
    sources = {path.relative_to(ROOT / "aspen_jax") for path in (ROOT / "aspen_jax").rglob("*.py")}
    assert [path for path in sorted(sources) if not (directory / path).exists()] == []
    assert (directory / "py.typed").exists()


def test_the_command_is_installed() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="aspen")
    assert callable(script.load())


def test_importing_needs_no_compiler_and_no_other_program(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PATH"}
    command = [sys.executable, "-P", "-W", "error", "-c", "import aspen_jax; print(aspen_jax.__version__)"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment | {"PATH": ""}, timeout=120)
    assert (result.stdout, result.stderr) == (f"{aspen_jax.__version__}\n", "")


def test_importing_leaves_what_is_not_asked_for(tmp_path: Path) -> None:
    program = """
import sys
import aspen_jax
assert not {"aspen_jax.api", "aspen_jax.ops", "aspen_jax.graph"} & set(sys.modules)
assert set(aspen_jax.__all__) <= set(dir(aspen_jax))
from aspen_jax import *
assert aspen_jax.aspen is aspen and aspen(lambda x: x + 1)(1.0) == 2.0
try:
    aspen_jax.nothing
except AttributeError as error:
    assert "'nothing'" in str(error)
"""
    command = [sys.executable, "-P", "-W", "error", "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")


def test_sources_without_their_engine_say_what_to_do(tmp_path: Path) -> None:
    """As in a checkout after `pip install .`, where Python finds the sources first; no other package is asked for before."""
    sources = tmp_path / "aspen_jax"
    sources.mkdir()
    (sources / "__init__.py").write_text((ROOT / "aspen_jax" / "__init__.py").read_text())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [sys.executable, "-S", "-c", "import aspen_jax"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert result.returncode == 1
    message = result.stderr.splitlines()[-1]
    assert message.startswith(f"ImportError: {sources} is source code without its compiled engine: start Python as `python -P`, ")
    assert message.endswith("or run `pip install -e .` to use this one")


@pytest.mark.skipif(sys.platform != "linux" or shutil.which("readelf") is None, reason="needs ELF and readelf")
@pytest.mark.parametrize("name", [Path(str(_engine.__file__)).name, "lib/libaspen.so", "bin/aspen-run"])
def test_what_reads_files_of_strangers_is_hardened(name: str) -> None:
    files = [file for folder in aspen_jax.__path__ for file in Path(folder).glob(name)]
    if not files:
        pytest.skip("this build has no C library: pip install . brings it")
    for file in files:
        command = ["readelf", "-Wdl", "--dyn-syms", str(file)]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "GNU_RELRO" in said
        assert re.search(r"BIND_NOW|Flags:.*\bNOW\b", said), f"pointers that the loader fills into {file} can be written"
        assert "__stack_chk_fail" in said, f"return addresses of {file} have no guard"


def test_python_and_the_engine_agree_on_block_opcodes() -> None:
    assert _engine.block_opcodes() == {name: (opcode.number, opcode.arity) for name, opcode in OPCODES.items()}


def test_children_of_tests_import_what_is_installed() -> None:
    """Without -P, code that is started in the checkout would find the sources first, which may have no engine."""
    command = re.compile(r'sys\.executable,(?!\s*"-P")[^]]*"-c"')
    allowed = {"import aspen_jax"}  # of the test above
    for path in Path(__file__).parent.rglob("*.py"):
        for found in command.finditer(path.read_text()):
            assert any(path.read_text()[found.end() :].startswith(f', "{code}"]') for code in allowed), (path.name, found[0])
