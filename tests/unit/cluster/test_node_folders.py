"""Folders on a node's own disk last as long as the processes that use them."""

import errno
import fcntl
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from trainyard.cluster import host
from trainyard.cluster.node_folders import HELD_MARK, hold_until_end, private_folder, remove_unheld, shared_folder


@pytest.fixture(params=[""])
def temporary(tmp_path, monkeypatch, request):
    """The temporary folder, below that of the test by the name that a test gives."""
    folder = tmp_path / request.param
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("temporary", ["é", "a b", "$HOME", 'qu"ote', "long" * 9], indirect=True)
def test_a_private_folder_has_a_short_and_plain_path(tmp_path, temporary):
    with private_folder("ty-test-", max_path_length=len(str(tmp_path)) + 30) as folder:
        assert folder.parent == Path("/tmp")
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.parametrize(("kind", "tmp"), [("nfs4", "ext4"), ("lustre", "nfs4")])
def test_a_private_folder_is_in_tmp_if_other_nodes_may_see_the_temporary_folder(temporary, monkeypatch, kind, tmp):
    """Another node would remove it from a network file system. If /tmp is on one, no folder is removed there."""
    monkeypatch.setattr(host, "file_system_type", lambda path: kind if path == temporary else tmp)
    prefix = f"ty-own-{os.getpid()}-"  # no other test removes it
    with tempfile.TemporaryDirectory(prefix=prefix, dir="/tmp", ignore_cleanup_errors=True) as left:
        os.utime(left, (0, 0))
        with private_folder(prefix, max_path_length=1000) as folder:
            assert folder.parent == Path("/tmp")
            assert Path(left).exists() == (tmp == "nfs4")


def test_where_folders_cannot_be_locked_a_private_one_is_used_and_no_other_is_removed(temporary, monkeypatch):
    """As a file system answers that supports no locks, of which a test has none."""

    def refuse(*_):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refuse)
    (temporary / "ty-test-other").mkdir()
    with private_folder("ty-test-", max_path_length=1000) as folder:
        assert folder.parent == temporary
        remove_unheld(temporary, "ty-test-*")
        assert folder.exists()
    assert [each.name for each in temporary.iterdir()] == ["ty-test-other"]


def test_a_folder_that_another_user_has_filled_meanwhile_is_used_at_once(tmp_path, monkeypatch):
    """Both see that it is incomplete, and one fills it: the other must not wait until that one has ended."""
    flock, path, filled = fcntl.flock, tmp_path / "shared", list[Path]()

    def fill(folder):
        filled.append(folder)
        (folder / "complete").touch()

    def use():
        return shared_folder(path, is_complete=lambda folder: (folder / "complete").exists(), fill=fill)

    def fill_before(lock, operation):
        """Exchanging a shared lock for an exclusive one releases it first, and the other user may come before."""
        if operation & fcntl.LOCK_EX:
            monkeypatch.undo()
            flock(lock, fcntl.LOCK_UN)
            others.enter_context(use())
            operation |= fcntl.LOCK_NB  # would otherwise wait for ever
        flock(lock, operation)

    with ExitStack() as others:
        monkeypatch.setattr(fcntl, "flock", fill_before)
        with use() as folder:
            assert filled == [folder]
    assert not path.exists()


def test_a_job_removes_what_killed_jobs_have_left_and_nothing_that_may_be_in_use(tmp_path):
    names = ("ty-ray-left", "ty-ray-held", "snakemake-left", "snakemake-held", "snakemake-of-others", "snakemake-own")
    folders = {name: tmp_path / name for name in names}
    with ExitStack() as stack:
        for name, folder in folders.items():
            folder.mkdir()
            if name in ("snakemake-left", "snakemake-held"):
                (folder / HELD_MARK).touch()
            if name.endswith("-held"):
                lock = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
            os.utime(folder, (0, 0))
        hold_until_end(folders["snakemake-own"])
        kept = {each.name for each in tmp_path.iterdir()}
    assert kept == set(names) - {"ty-ray-left", "snakemake-left"}
