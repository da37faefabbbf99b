"""A lock ends with its holder; and two drivers never mix, even on a file system whose locks are local to a node.

Such a node is a mount and a PID namespace in which another file lies over the lock file, so that both get the lock.
"""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest
from project import ROOT
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from trainyard.cluster import slurm_queries
from trainyard.planning.journal import Journal
from trainyard.utils import locks
from trainyard.utils.errors import StorageError, UserError
from trainyard.utils.event_log import read_events
from trainyard.utils.locks import LockHeldError, hold

DRIVER = """
import logging, sys, time
from pathlib import Path
from trainyard.planning.journal import Journal
from trainyard.utils import locks

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
locks.BEAT_SECONDS, locks.WATCH_SECONDS = 0.1, float(sys.argv[2])
try:
    with Journal.opened(Path(sys.argv[1]), wait_seconds=float(sys.argv[3])) as journal:
        print("it drives", flush=True)
        while sys.stdin.readline():
            journal.append("finished", durable=True, trial=sys.argv[4], attempt=1)
            print("recorded", flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
"""
# Another file over the lock file, another host name, and PIDs of its own.
ANOTHER_NODE = ["unshare", "--mount", "--propagation=private", "--uts", "--pid", "--fork", "--kill-child",
                "--mount-proc", "sh", "-c",
                'hostname another && mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh"]  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


@pytest.fixture
def start(path, tmp_path):
    """Starts a driver on this node or on another one."""
    running = []

    def start_driver(name, *, elsewhere=False, watch=3600.0, wait=0.0):
        command = [sys.executable, "-c", DRIVER, str(path), str(watch), str(wait), name]
        if elsewhere:
            if os.geteuid():
                (pytest.fail if os.environ.get("CI") else pytest.skip)("only root can create namespaces")
            over = tmp_path / f"{name}.lock"
            over.touch()
            lock = path.with_name(f".{path.name}.lock")
            lock.touch()
            command = [*ANOTHER_NODE, str(over), str(lock), *command]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
        environment.pop("SLURM_JOB_ID", None)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        running.append(subprocess.Popen(command, text=True, env=environment, **pipes))
        return running[-1]

    yield start_driver
    for each in running:
        with each:
            each.kill()


def record_end(driver):
    driver.stdin.write("\n")
    driver.stdin.flush()


def test_a_second_driver_on_another_node_stops_with_the_name_of_the_first(start, path):
    first = start("a")
    assert first.stdout.readline() == "it drives\n"
    second = start("b", elsewhere=True)
    expected = f"process {first.pid} on {os.uname().nodename}"
    assert f"waiting for {path.parent}, in use by {expected}" in second.stdout.readline()
    assert f"LockHeldError {path.parent} is in use by {expected}" in second.stdout.readline()
    record_end(first)
    assert first.stdout.readline() == "recorded\n"


def test_a_second_driver_waits_if_it_may_and_continues_once_the_first_has_ended(start):
    first = start("a", elsewhere=True)
    assert first.stdout.readline() == "it drives\n"
    second = start("b", elsewhere=True, wait=PATIENCE_SECONDS)
    while "unless" in (line := second.stdout.readline()):
        pass
    assert "on another, since" in line
    first.stdin.close()
    assert second.stdout.readline() == "it drives\n"


def test_a_driver_killed_on_this_node_is_followed_at_once(start, path):
    first = start("a")
    assert first.stdout.readline() == "it drives\n"
    first.kill()
    first.wait()
    second = start("b")
    assert second.stdout.readline().endswith("which does not run any more\n")
    assert second.stdout.readline() == "it drives\n"
    second.stdin.close()
    second.wait()
    assert {each.name for each in path.parent.iterdir()} == {"journal.jsonl", ".journal.jsonl.lock"}


def test_a_driver_killed_on_another_node_is_followed_once_its_record_stays_unchanged(start):
    first = start("a", elsewhere=True)
    assert first.stdout.readline() == "it drives\n"
    first.kill()
    first.wait()
    second = start("b", watch=1.0)
    assert "waiting for" in (said := second.stdout.readline())
    assert "unless it shows no sign of life for 1 s" in said
    assert second.stdout.readline().endswith("which does not run any more\n")
    assert second.stdout.readline() == "it drives\n"


def take_over(path):
    """Let another driver hold the journal, as after this one was suspended for longer than the other watched."""
    place = path.with_name(f".{path.name}.driver")
    place.write_bytes(locks.Holder(7, "n2", "2026-01-31 10:00:00").encode())


def test_a_driver_whose_sweep_was_taken_over_writes_nothing_more_and_removes_nothing(path):
    with Journal.opened(path) as journal:
        journal.append("started", trial="a", attempt=1)
        take_over(path)
        with pytest.raises(UserError, match=r"process 7 on n2, since .* has taken over; process"):
            journal.append("finished", durable=True, trial="a", attempt=1)
        journal.append("interrupted", durable=True, trial="b", attempt=1)
    assert [event["event"] for event in read_events(path)] == ["started"]
    assert path.with_name(f".{path.name}.driver").exists(), "it is the other's"


@pytest.mark.parametrize("fails", [True, False])
def test_what_waits_for_the_disk_is_left_to_a_driver_that_takes_over_meanwhile(path, monkeypatch, fails):
    """Lines that a failed sync may have lost, and the removal of checkpoints from which the other may resume."""
    told = []

    def sync_slowly(fd):
        take_over(path)
        with path.open("a") as of_the_other:
            of_the_other.write('{"event":"session","time":1.0}\n')
        monkeypatch.undo()
        if fails:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with Journal.opened(path) as journal:
        monkeypatch.setattr(os, "fsync", sync_slowly)
        journal.append("finished", durable=True, then=lambda: told.append(True), trial="a", attempt=1)
        with pytest.raises(UserError, match=r"process 7 on n2, since .* has taken over; process"):
            wait_until(journal.is_synced, what="the sync")
    assert [event["event"] for event in read_events(path)] == ["finished", "session"]
    assert told == []


def test_the_job_of_a_killed_driver_is_looked_up(path, slurm, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    slurm.prints("squeue", "")
    left = locks.Holder(1, "n1", "2026-01-31 10:00:00", job="7")
    path.with_name(f".{path.name}.driver").write_bytes(left.encode())
    began = time.monotonic()
    with Journal.opened(path):
        pass
    assert time.monotonic() - began < locks.WATCH_SECONDS, "nothing had to be watched"


def test_a_damaged_record_is_replaced(path, monkeypatch):
    monkeypatch.setattr(locks, "WATCH_SECONDS", 0.1)
    path.with_name(f".{path.name}.driver").write_text("{")
    with Journal.opened(path):
        pass


def test_a_driver_that_runs_on_this_node_is_respected_even_without_its_lock(path, monkeypatch):
    monkeypatch.setattr(locks, "BEAT_SECONDS", 0.1)
    record = locks.hold_record(path.with_name(f".{path.name}.driver"), locks.Holder.this_process())
    with Journal.opened(path), pytest.raises(LockHeldError), record:
        pytest.fail("there would be two")


def test_a_copy_of_results_that_are_in_use_can_be_used(path, monkeypatch):
    monkeypatch.setattr(locks, "WATCH_SECONDS", 1.0)
    with Journal.opened(path):
        shutil.copytree(path.parent, path.parent / "copy")
        with Journal.opened(path.parent / "copy" / path.name):
            pass


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
    messages = []
    with hold(path, wait_seconds=PATIENCE_SECONDS, notify=messages.append):
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

    def end(message):
        messages.append(message)
        holder.kill()

    lock = hold(path, is_given_up=slurm_queries.is_given_up, notify=end)
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
