"""The copy of a dataset on a node's local disk: its location, its sharing, and its removal."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from project import ROOT
from slurm_cluster.waiting import wait_until
from trainyard.cluster import host, node_folders, slurm_allocation
from trainyard.cluster.node_folders import remove_copies_at_exit
from trainyard.config.datasets import Synthetic
from trainyard.data import node_copy
from trainyard.data.node_copy import choose_local_folder, local_copy
from trainyard.data.staged import DataError, Staged
from trainyard.data.staging import stage
from trainyard.utils import terminal
from trainyard.utils.files import file_digest

GIB = 2**30


@pytest.fixture
def staged(tmp_path) -> Staged:
    return stage(Synthetic(source="synthetic", images=32, val_images=8, height=8, width=8), tmp_path / "data")


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


MOUNTS = [
    SimpleNamespace(mountpoint=mountpoint, fstype=kind, opts=options)
    for mountpoint, kind, options in (
        ("/", "ext4", "rw"),
        ("/home", "nfs4", "rw"),
        ("/home/x", "tmpfs", "rw"),
        ("/data", "autofs", "rw,fd=6,direct"),
        ("/data", "nfs4", "rw"),
        ("/dev", "tmpfs", "rw"),
        ("/live", "overlay", "rw,lowerdir=/run/root,upperdir=/dev,workdir=/run/work"),
        ("/container", "overlay", "rw,lowerdir=/l,upperdir=/not/in/this/container,workdir=/w"),
    )
]
TYPES = [("/home/me", "nfs4"), ("/home/x/y", "tmpfs"), ("/data/set", "nfs4"), ("/homes/me", "ext4"),
         ("/live/tmp", "tmpfs"), ("/container/tmp", "overlay")]  # fmt: skip


@pytest.mark.parametrize(("path", "kind"), TYPES)
def test_a_file_system_is_that_of_the_innermost_mount(tmp_path, path, kind):
    assert host.file_system_type(type(tmp_path)(path), MOUNTS) == kind


def test_a_symbolic_link_is_on_the_file_system_of_its_target(tmp_path):
    (tmp_path / "results").symlink_to("/home/me/results")
    assert host.file_system_type(tmp_path / "results/data", MOUNTS) == "nfs4"


# policy, environment beside the disk, the file systems of data and disk, free bytes; whether it is used,
# and what is said. The job has 10 GiB of memory.
CHOICES = [
    ("auto", {"SLURM_JOB_ID": "7"}, "nfs4", "xfs", 100 * GIB, True, ""),
    ("auto", {"SLURM_JOB_ID": "7"}, "ext4", "xfs", 100 * GIB, False, ""),
    ("auto", {}, "nfs4", "xfs", 100 * GIB, False, ""),
    ("off", {"SLURM_JOB_ID": "7"}, "nfs4", "xfs", 100 * GIB, False, ""),
    ("auto", {"SLURM_JOB_ID": "7"}, "nfs4", "lustre", 100 * GIB, False, "is on lustre"),
    ("auto", {"SLURM_JOB_ID": "7"}, "nfs4", "xfs", GIB, False, "has too little space"),
    ("auto", {"SLURM_JOB_ID": "7"}, "nfs4", "tmpfs", GIB, True, ""),
    ("auto", {"SLURM_JOB_ID": "7"}, "nfs4", "tmpfs", 1000, False, "has too little space"),
    ("{disk}", {}, "ext4", "ramfs", GIB, True, ""),
    ("{disk}", {}, "ext4", "lustre", 100 * GIB, True, ""),
    ("{disk}/$SLURM_JOB_ID", {}, "ext4", "xfs", 100 * GIB, True, ""),
    ("{disk}", {}, "ext4", "xfs", GIB, False, "has too little space"),
    ("/proc/nowhere", {}, "ext4", "xfs", 100 * GIB, False, "is not writable"),
]


@pytest.fixture
def on_node(monkeypatch, staged):
    """Sets the variables of a job, the file systems of data and disks, and what is free on them."""

    def set_up(environment, *, data="xfs", disk="xfs", free=0, memory=10 * GIB):
        for name in ("SLURM_JOB_ID", "SLURM_TMPDIR", "TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(host, "file_system_type", lambda path: data if path == staged.folder else disk)
        monkeypatch.setattr(node_copy.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
        monkeypatch.setattr(slurm_allocation, "available_memory_bytes", lambda: memory)

    return set_up


@pytest.mark.parametrize(("policy", "environment", "data", "kind", "free", "used", "said"), CHOICES)
def test_where_a_copy_is_made(staged, disk, on_node, policy, environment, data, kind, free, used, said):
    on_node(environment | {"TMPDIR": disk}, data=data, disk=kind, free=free)
    folder, message = choose_local_folder(staged, policy.format(disk=disk))
    assert (folder is not None and folder.is_relative_to(disk)) == used
    assert said in message
    assert bool(message) == bool(said)


@pytest.mark.parametrize("policy", ["auto", "{disk}"])
def test_a_copy_in_memory_is_limited_by_the_memory_of_the_job_and_not_by_the_free_space(staged, disk, on_node, policy):
    for name, gib in (("train-images.npy", 2), ("train-labels.npy", 1)):
        os.truncate(staged.folder / name, gib * GIB)
    for memory, used in ((11 * GIB, False), (13 * GIB, True)):
        on_node({"TMPDIR": disk, "SLURM_JOB_ID": "7"}, data="nfs4", disk="tmpfs", free=100 * GIB, memory=memory)
        folder, message = choose_local_folder(staged, policy.format(disk=disk))
        assert (folder == disk) == used
    assert message == ""
    on_node({}, disk="tmpfs", free=100 * GIB, memory=600 * 2**20)
    folder, message = choose_local_folder(staged, str(disk))
    assert folder is None
    assert message == (
        f"{host.node_name()} reads {staged.folder} without a copy on its local disk: {disk} is in host memory, and "
        "3.0 GiB are more than 25% of the 0.6 GiB that this job has"
    )


def test_a_copy_is_shared_and_removed_by_its_last_user(staged, disk):
    with local_copy(staged, str(disk)) as first:
        assert first.message.startswith("copied data to ")
        assert (first.staged.split("train").images == staged.split("train").images).all()
        with local_copy(staged, str(disk)) as second:
            assert (second.staged.folder, second.message) == (first.staged.folder, "")
        assert first.staged.folder.exists(), "it is still in use"
    assert list(disk.iterdir()) == []


def test_a_copy_tells_its_progress(staged, disk, monkeypatch, caplog):
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    with caplog.at_level(logging.INFO), local_copy(staged, str(disk)):
        size = sum((staged.folder / name).stat().st_size for name in staged.meta.files)
    lines = [record.message for record in caplog.records]
    assert len(lines) == len(staged.meta.files), "each is one chunk"
    assert lines[-1].startswith(f"{host.node_name()}: copying data: {size:,} of {size:,} bytes")


def test_a_copy_that_this_job_has_needs_no_more_space(staged, disk, on_node):
    """A worker that starts later finds the disk full of that copy."""
    on_node({}, free=100 * GIB)
    with local_copy(staged, str(disk)) as first:
        on_node({}, free=0)
        assert choose_local_folder(staged, str(disk)) == (disk, "")
        assert first.staged.folder.parent == disk


def test_a_copy_in_a_less_preferred_folder_is_found(staged, disk, on_node, tmp_path):
    on_node({"SLURM_JOB_ID": "7", "SLURM_TMPDIR": tmp_path, "TMPDIR": disk}, data="nfs4", free=100 * GIB)
    with local_copy(staged, str(disk)):
        chosen = choose_local_folder(staged, "auto")
        assert chosen == (disk, "")


def test_a_failed_copy_is_removed_and_the_shared_files_are_read(staged, disk, monkeypatch):
    monkeypatch.setattr(node_copy, "file_digest", lambda path: file_digest(path) + "x" * (path.parent != staged.folder))
    with local_copy(staged, str(disk)) as copy:
        assert copy.staged is staged
        assert "differs from what was written to it" in copy.message
        assert list(disk.iterdir()) == []


def test_staged_files_that_have_changed_are_an_error(staged, disk):
    with open(staged.folder / "val-labels.npy", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    with (
        pytest.raises(DataError, match=r"val-labels.npy has changed since it was staged"),
        local_copy(staged, str(disk)),
    ):
        pass
    assert list(disk.iterdir()) == []


HOLDER = """
import sys, time
sys.path.insert(0, {scripts!r})
from pathlib import Path
from trainyard.data.staged import Staged
from trainyard.data.node_copy import local_copy
with local_copy(Staged(Path({data!r})), {disk!r}) as copy:
    print(copy.staged.folder.name, "made" if copy.message else "found", flush=True)
    time.sleep(600)
"""


def holders(staged, disk, count):
    code = HOLDER.format(scripts=str(ROOT / "scripts"), data=str(staged.folder), disk=str(disk))
    return [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(count)]


def test_concurrent_processes_make_one_copy_and_a_job_removes_it_at_its_end(staged, disk):
    with remove_copies_at_exit(str(disk)):
        started = holders(staged, disk, 4)
        said = sorted(process.stdout.readline().split()[1] for process in started)
        assert said == ["found", "found", "found", "made"]
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert len(list(disk.iterdir())) == 1, "no process was left to remove it"
    assert list(disk.iterdir()) == []


def test_in_a_folder_that_nodes_share_each_has_its_own_copy_and_removes_no_other(staged, disk, monkeypatch):
    """As on NFS and Lustre, where a lock of a folder holds on one node only: here, nothing seems held."""
    monkeypatch.setattr(fcntl, "flock", lambda lock, operation: None)
    monkeypatch.setenv("SLURMD_NODENAME", "n1-2")
    with local_copy(staged, str(disk)) as copy:
        long_ago = time.time() - 2 * node_folders.ORPHAN_SECONDS
        os.utime(copy.staged.folder, (long_ago, long_ago))
        monkeypatch.setenv("SLURMD_NODENAME", "n1")
        with remove_copies_at_exit(str(disk)), local_copy(staged, str(disk)) as other:
            assert other.staged.folder != copy.staged.folder
            assert len(list(disk.iterdir())) == 2
        assert list(disk.iterdir()) == [copy.staged.folder]


def test_copies_of_earlier_jobs_are_removed_unless_they_are_in_use(staged, disk, monkeypatch):
    (holder,) = holders(staged, disk, 1)
    held = disk / holder.stdout.readline().split()[0]
    left = disk / held.name.replace("+local-", "+1234-")
    left.mkdir()
    (left / "train-images.npy").touch()
    long_ago = time.time() - 2 * node_folders.ORPHAN_SECONDS
    for path in (held, left):
        os.utime(path, (long_ago, long_ago))
    with remove_copies_at_exit(str(disk)):
        assert list(disk.iterdir()) == [held]
        holder.kill()
        holder.communicate()
    wait_until(lambda: not list(disk.iterdir()), what="the copy is removed")
