"""Batches that are spread over devices and processes run where they lie: nothing is gathered."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SHARDED = Path(__file__).parent / "sharded_processes.py"
COLLECTIVES = Path(__file__).parent / "collective_processes.py"


def start(directory: Path, flags: str, *arguments: str, script: Path = SHARDED, mode: str = "choice") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        env=dict(os.environ, XLA_FLAGS=flags, JAX_PLATFORMS="cpu", ASPEN_DISABLE_PASSES=mode),
    )


def finish(process: subprocess.Popen[str]) -> None:
    try:
        output, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert output.strip().endswith("all is well")


def test_four_devices(tmp_path):
    finish(start(tmp_path, "--xla_force_host_platform_device_count=4"))


def test_four_devices_by_default(tmp_path):
    finish(start(tmp_path, "--xla_force_host_platform_device_count=4", "replicated", mode=""))


def test_two_processes(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [start(tmp_path, "", address, number) for number in ("0", "1")]
    for process in processes:
        finish(process)


@pytest.mark.parametrize("mode", ["", "choice"], ids=["default", "forced"])
@pytest.mark.parametrize("devices", [4, 8])
def test_collectives_of_more_devices_than_cores_end(devices, mode, tmp_path):
    """XLA goes on from our call to a collective, which waits for the other devices' calls."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    finish(start(tmp_path, flags, "40", script=COLLECTIVES, mode=mode))
