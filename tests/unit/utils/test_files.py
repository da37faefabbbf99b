"""A write is complete or has no effect, and a lock ends with its holder."""

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
from trainyard.utils.errors import StorageError
from trainyard.utils.files import LockHeldError, atomic_write, hold_lock
from trainyard.utils.import_path import SCRIPTS


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_write(path) as file:  # noqa: PT012
        file.write("half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_text_is_utf_8_in_any_locale(tmp_path):
    """Readers, such as pandas and browsers, expect it."""
    code = "import sys, pathlib; from trainyard.utils.csv_files import write_table; import pandas\n"
    code += "write_table(pandas.DataFrame({'tag': ['\\u03b1 \\u2026']}), pathlib.Path(sys.argv[1]))"
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-c", code, str(tmp_path / "t.csv")]
    subprocess.run(command, env={**os.environ, **locale, "PYTHONPATH": str(SCRIPTS)}, check=True)
    assert (tmp_path / "t.csv").read_bytes().decode("utf-8") == "tag\n\u03b1 \u2026\n"


def test_a_write_replaces_the_file(tmp_path):
    path = tmp_path / "new" / "table.csv"
    with atomic_write(path) as file:
        file.write("new")
    assert path.read_text() == "new"


HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from trainyard.utils.files import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(3600)
"""


def test_a_lock_names_its_holder_and_is_released_when_that_is_killed(tmp_path):
    path = tmp_path / ".lock"
    scripts = next(folder for folder in sys.path if folder.endswith("scripts"))
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(path), scripts], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockHeldError, match=f"in use by process {holder.pid} on "), hold_lock(path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    messages = []
    with hold_lock(path, wait_seconds=PATIENCE_SECONDS, notify=messages.append):
        pass


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

    def end(message):
        messages.append(message)
        holder.kill()

    lock = hold_lock(path, is_given_up=slurm_queries.is_given_up, notify=end)
    with nullcontext() if restarts else pytest.raises(LockHeldError, match=" in job 7, since"), lock:
        assert f"in use by process {holder.pid} on " in messages[0]
    holder.kill()
    holder.wait()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_named_with_its_remedy(tmp_path, monkeypatch, number):
    """As NFS mounted with `nolock` and Lustre with `noflock` answer, of which a test can have neither."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with (
        pytest.raises(StorageError, match=r"cannot be locked \(.*\): mount this file system with locks"),
        hold_lock(tmp_path / "study/.lock"),
    ):
        pytest.fail("the lock is not held")
