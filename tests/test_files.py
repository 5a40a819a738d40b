"""Files that are no files: pipes, devices, folders and what never ends are refused at once, wherever a file is named."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aspen_jax.schedule as sched
from aspen_jax import TileGraph
from aspen_jax.cache.measurement_file import MeasurementFile
from aspen_jax.cli import main
from aspen_jax.errors import InputError
from aspen_jax.files import read_file, read_text
from aspen_jax.graph.tilegraph import TileGraph as Graph
from tests.tile_graphs import small_net

ENDLESS = ["/dev/zero", "/proc/self/maps", "/proc/self/mem"]


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A read that waits is a failure, and not of the whole session."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=["pipe", "folder", "link", *ENDLESS])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "named"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "link":
        path.symlink_to("/dev/zero")
    else:
        return Path(request.param)
    return path


def test_no_file_is_read(no_file: Path) -> None:
    with pytest.raises(OSError, match=r"regular file|Is a directory|its size|Input/output"):
        read_file(no_file)


@pytest.mark.parametrize(
    "read",
    [
        TileGraph.load,
        sched.Machine.load,
        lambda path: sched.Costs.load(path, small_net(), sched.Machine([sched.Cpu(1)])),
        sched.NativePolicy,
    ],
)
def test_no_reader_of_users_files_takes_it(read: Callable[[Path], Any], no_file: Path) -> None:
    with pytest.raises(OSError, match=str(no_file)):
        read(no_file)


@pytest.mark.parametrize("name", ["certificate", "key", "roots"])
def test_no_certificate_is_read_from_it(name: str, no_file: Path) -> None:
    security = pytest.importorskip("aspen_jax.split.security")
    with pytest.raises(InputError, match="cannot be read"):
        security.Tls.load(**{name: no_file})


def test_the_command_line_refuses_it(no_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", str(no_file)]) == 2
    assert capsys.readouterr().err.startswith(f"aspen: {no_file}: ")
    assert main(["explain", f"{no_file}.py:f"]) == 2


def test_a_measurement_file_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASPEN_CACHE_DIR", str(tmp_path))
    file = MeasurementFile("measured", {})
    _, path = file.update({}, int, int)
    assert path is not None
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(RuntimeWarning, match="is ignored, as if nothing had been measured"):
        assert file.read(int) == {}


def test_a_file_is_read_to_its_end_and_no_further(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert read_file(file, 0) == b""
    file.write_text("ä")
    assert read_text(file, 2) == "ä"
    with pytest.raises(OSError, match="2 bytes, more than 1"):
        read_file(file, 1)
    (tmp_path / "link").symlink_to(file)
    assert read_file(tmp_path / "link") == "ä".encode()
    with pytest.raises(OSError, match="link"):
        read_file(tmp_path / "link", follow_links=False)


def test_a_file_beyond_the_memory_is_refused(tmp_path: Path) -> None:
    """A file of holes takes no room on disk, and says that it has more bytes than there is memory."""
    file = tmp_path / "holes"
    with open(file, "wb") as opened:
        try:
            opened.truncate(1 << 43)
        except OSError:
            pytest.skip("this file system has no files of holes")
    with pytest.raises(OSError, match="too large"):
        Graph.load(file)


def test_descriptors_are_given_back(no_file: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(OSError, match=str(no_file)):
            read_file(no_file)
    assert len(os.listdir("/proc/self/fd")) == before


def test_errors_show_escapes_of_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", str(tmp_path / "a\x1b[31mred\x9b\u202e")]) == 2
    assert "a\\x1b[31mred\\x9b\\u202e" in capsys.readouterr().err
