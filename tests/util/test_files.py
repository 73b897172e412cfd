"""Files on the disk: content before the name, and the name before we go on."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from focusfl.util import files


def test_content_is_synced_then_renamed_then_the_folder_is_synced(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        order.append(("sync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        fsync(descriptor)

    def replaced(old, new):
        order.append(("rename", str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    files.write_text(tmp_path / "a", "1")
    (_, temporary), rename, folder = order
    assert temporary.endswith(".tmp")
    assert rename == ("rename", str(tmp_path / "a")) and folder == ("sync", str(tmp_path))


def test_a_folder_that_cannot_be_synced_is_an_error_unless_the_file_system_never_can(tmp_path, monkeypatch):
    def failing(code):
        def fsync(descriptor):
            raise OSError(code, os.strerror(code))

        return fsync

    monkeypatch.setattr(os, "fsync", failing(22))  # EINVAL
    files.sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", failing(5))  # EIO
    with pytest.raises(OSError, match="Input/output"):
        files.sync_folder(tmp_path)


def test_what_killed_processes_left_is_removed(tmp_path):
    (tmp_path / "a").mkdir()
    for name in (".b.json.123.tmp", "a/.c.safetensors.7.tmp", "a/.tmpIzegcP", "a/kept.tmp", ".lock"):
        (tmp_path / name).touch()
    files.remove_temporary_files(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [".lock", "kept.tmp"]


def test_the_umask_decides_who_may_read_whatever_library_wrote_it(tmp_path):
    (tmp_path / "plain").touch()
    mode = (tmp_path / "plain").stat().st_mode
    for name, private in (("open", False), ("secret", True)):
        files.write(tmp_path / name, lambda path: save_file({"a": torch.zeros(1)}, path), private)
        assert (tmp_path / name).stat().st_mode == (mode & ~0o077 if private else mode)
