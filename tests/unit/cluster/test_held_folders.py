"""Folders on a node's own disk last as long as the processes that use them."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from trainyard.cluster.held_folders import private_folder, remove_unheld


@pytest.mark.parametrize("name", ["é", "a b", "$HOME", 'qu"ote', "long" * 9])
def test_a_private_folder_has_a_short_and_plain_path(tmp_path, monkeypatch, name):
    (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / name))
    with private_folder("ty-test-", max_path_length=len(str(tmp_path)) + 30) as folder:
        assert folder.parent == Path("/tmp")
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_where_folders_cannot_be_locked_a_private_one_is_used_and_no_other_is_removed(tmp_path, monkeypatch):
    """As a network file system answers, of which a test has none."""

    def refuse(*_):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "ty-test-other").mkdir()
    with private_folder("ty-test-", max_path_length=1000) as folder:
        assert folder.parent == tmp_path
        remove_unheld(tmp_path, "ty-test-*")
        assert folder.exists()
    assert [each.name for each in tmp_path.iterdir()] == ["ty-test-other"]
