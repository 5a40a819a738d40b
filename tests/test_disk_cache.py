"""Files of the cache folder, where others can write it."""

import hashlib
import os
import secrets
from pathlib import Path

import pytest

from aspen_jax.cache import disk_cache
from aspen_jax.cache.measurement_file import MeasurementFile
from aspen_jax.cost import measured
from aspen_jax.cuda import image


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
    file.write({"a": entry})
    with pytest.warns(RuntimeWarning, match="is ignored"):
        assert file.read(measured._measured) == {}
