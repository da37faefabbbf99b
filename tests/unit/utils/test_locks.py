"""A lock ends with its holder."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from contextlib import nullcontext

import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS
from trainyard.cluster import slurm_queries
from trainyard.utils import locks
from trainyard.utils.errors import StorageError
from trainyard.utils.locks import LockHeldError, hold

HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from trainyard.utils.locks import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(3600)
"""


def test_a_lock_names_its_holder_and_is_released_when_that_is_killed(tmp_path):
    path = tmp_path / ".lock"
    scripts = next(folder for folder in sys.path if folder.endswith("scripts"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path), scripts], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockHeldError, match=f"in use by process {holder.pid} on "), hold(path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with hold(path, wait_seconds=PATIENCE_SECONDS):
        pass


@pytest.mark.timeout(60)
@pytest.mark.parametrize("inherited", [False, True])
def test_a_lock_file_may_be_a_link(tmp_path, inherited):
    """As in a folder whose files a tool has replaced by links to a store."""
    (tmp_path / ".lock").symlink_to(tmp_path / "stored")
    with hold(tmp_path / ".lock", inherited=inherited):
        assert (tmp_path / "stored").exists()


@pytest.mark.parametrize("restarts", ["1", None])
def test_a_requeued_job_waits_for_its_own_predecessor_and_for_no_other_program_of_this_job(
    tmp_path, monkeypatch, restarts
):
    """Slurm runs a job again while its first processes still run on a node that does not respond."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    path, scripts = tmp_path / ".lock", next(folder for folder in sys.path if folder.endswith("scripts"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path), scripts], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    if restarts:
        monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    messages = []

    def end(message, *arguments):
        messages.append(message % arguments)
        holder.kill()

    monkeypatch.setattr(locks.log, "info", end)
    lock = hold(path, is_given_up=slurm_queries.is_given_up)
    with nullcontext() if restarts else pytest.raises(LockHeldError, match=" in job 7, since"), lock:
        assert f"in use by process {holder.pid} on " in messages[0]
    holder.kill()
    holder.wait()


@pytest.mark.parametrize("inherited", [False, True])
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_named_with_its_remedy(tmp_path, monkeypatch, number, inherited):
    """As NFS mounted with `nolock` and Lustre with `noflock` answer, of which a test can have neither."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    for kind in ("lockf", "flock"):
        monkeypatch.setattr(fcntl, kind, refuse)
    with (
        pytest.raises(StorageError, match=r"cannot be locked \(.*\): mount this file system with locks"),
        hold(tmp_path / "study/.lock", inherited=inherited),
    ):
        pytest.fail("the lock is not held")
