"""Files of the cache folder, where others can write it."""

import fcntl
import hashlib
import os
import secrets
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aspen_jax.cache import disk_cache
from aspen_jax.cache.measurement_file import MeasurementFile
from aspen_jax.cost import measured
from aspen_jax.targets.cuda.code import image

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, str(tmp_path))
    return tmp_path


def test_what_was_written_is_read(folder):
    file = folder / "deep" / "file.json"
    disk_cache.write(file, b"first")
    disk_cache.write(file, b"second")
    assert disk_cache.read(file, 6, ours=True) == b"second"
    assert list(file.parent.iterdir()) == [file]
    with pytest.raises(OSError, match="too large"):
        disk_cache.read(file, 5)


def test_only_regular_files_are_read(folder):
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        disk_cache.read(folder / "pipe", 9)
    with pytest.raises(OSError, match="not a regular file"):
        disk_cache.read(Path("/dev/zero"), 9)
    with pytest.raises(OSError, match="symbolic links"):
        disk_cache.read(folder / "zero", 9)


def test_no_link_is_followed_when_writing(folder, monkeypatch):
    victim = folder / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(secrets, "token_hex", lambda size: "guessed")
    (folder / "file.guessed").symlink_to(victim)
    with pytest.raises(FileExistsError):
        disk_cache.write(folder / "file", b"other")
    assert victim.read_text() == "precious"


def test_a_file_that_cannot_be_put_in_place_is_removed(folder):
    (folder / "file" / "inside").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        disk_cache.write(folder / "file", b"content")
    assert [item.name for item in folder.iterdir()] == ["file"]


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_code_that_others_can_write_is_not_believed(folder, mode):
    file = folder / "x.bin"
    image._write(file, b"code")
    assert image._read(file) == b"code" == file.read_bytes()[len(hashlib.sha256().digest()) :]
    file.chmod(mode)
    assert image._read(file) is None


@pytest.mark.parametrize("entry", [[[1], int("9" * 400)], [[2**31], 1]])
def test_numbers_too_large_are_ignored_with_a_warning(entry):
    file = MeasurementFile("measured", {})
    file.update({"a": entry}, parse=lambda entry: entry, to_json=lambda entry: entry)
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert file.read(measured._measured) == {}


def test_a_tilde_is_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, "~/kept")
    assert disk_cache.cache_folder() == tmp_path / "kept"
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, "~")
    assert disk_cache.cache_folder() == tmp_path
    monkeypatch.setenv(disk_cache.CACHE_VARIABLE, "~nobody-of-this-name/kept")
    assert disk_cache.cache_folder() == Path("~nobody-of-this-name/kept")


def put(number):
    MeasurementFile("measured", {}).update({f"entry {number}": number}, int, int)


def test_entries_that_threads_and_processes_put_at_once_are_all_kept(monkeypatch):
    """Each waits after it has read, so that without a lock the last one would overwrite what the others wrote."""
    monkeypatch.setattr("aspen_jax.cache.measurement_file.write", slow_write)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put, range(8)))
    code = "from tests.cache.test_disk_cache import put\nfor number in range({0}, {0} + 10): put(number)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path[1:], str(ROOT)])}  # what is installed comes first
    processes = [subprocess.Popen([sys.executable, "-P", "-c", code.format(begin)], env=environment) for begin in (100, 200)]
    assert [process.wait(120) for process in processes] == [0, 0]
    expected = {*range(8), *range(100, 110), *range(200, 210)}
    assert set(MeasurementFile("measured", {}).read(int).values()) == expected


def slow_write(file, content):
    time.sleep(0.02)
    disk_cache.write(file, content)


def test_a_lock_that_is_never_given_back_is_waited_for_only_so_long(folder, monkeypatch):
    monkeypatch.setattr(disk_cache, "_PATIENCE", 0.1)
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    put(1)
    os.close(descriptor)
    put(2)
    assert MeasurementFile("measured", {}).read(int) == {"entry 1": 1, "entry 2": 2}
