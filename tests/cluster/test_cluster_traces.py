"""Taking the cluster down, in good order or after a kill, leaves the machine as it was."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster.cluster import Cluster
from slurm_cluster.namespaces import all_processes, processes_with_mount, run
from slurm_cluster.waiting import wait_until
from yard import ROOT

KINDS_OF_NAMESPACE = ("mnt", "net", "uts", "ipc", "pid")
OF_OTHERS = ("sem.mp-", "psm_", "torch_", "plasma")  # names that Python, PyTorch and Ray take in /dev/shm
PROGRAM = [sys.executable, "-m", "slurm_cluster"]
WITH_CLUSTER = "import time; from slurm_cluster.cluster import Cluster\nwith Cluster(): time.sleep(600)"


@pytest.fixture
def state(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder for a second cluster, beside the one that all tests share: the two do not meet."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-"))
    folder.rmdir()
    monkeypatch.setenv("TRAINYARD_CLUSTER", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tools"))  # for processes that the tests start
    yield folder
    Cluster().down()


def machine() -> dict[str, object]:
    """What the cluster must leave as it was."""
    etc = [Path("/etc"), Path("/etc/hosts"), *Path("/etc").glob("slurm/**/*"), *Path("/etc").glob("munge/**/*")]
    return {
        "mounts": Path("/proc/self/mounts").read_text(),
        "addresses": subprocess.run(["ip", "-oneline", "address"], capture_output=True, text=True, check=True).stdout,
        "routes": subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout,
        "name": os.uname().nodename,
        "etc": {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in etc},
        "folders": [names(folder) for folder in ("/run", "/dev/shm", "/var/log", "/var/lib")],
        "clusters": sorted(path.name for path in Path("/tmp").glob("trainyard-*")),
    }


def names(folder: str) -> list[str]:
    """What is in a folder, but for the semaphores and shared memory of tests that run beside these."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(OF_OTHERS))


def namespaces(mark: str | None = None) -> set[str | None]:
    """Those in use on the machine, or by the cluster of this mark."""
    users = processes_with_mount(mark) if mark else all_processes()
    return {process.namespace(kind) for process in users for kind in KINDS_OF_NAMESPACE} - {None}


def test_down_leaves_no_process_namespace_mount_or_file(state: Path) -> None:
    before, namespaces_before = machine(), namespaces()
    with Cluster() as cluster:
        cluster.submit("setsid --fork sleep 1234; sleep 1234", cwd=cluster.shared)
        wait_until(cluster.processes_left, what="the job to start")
        mark = cluster.mark
        its_namespaces = namespaces(mark) - namespaces_before
        assert len(its_namespaces) == len(KINDS_OF_NAMESPACE) * (1 + len(cluster.hosts))

    assert processes_with_mount(mark) == []
    assert not its_namespaces & namespaces()
    assert machine() == before


def test_up_attach_and_down_from_the_command_line(state: Path) -> None:
    def program(*arguments: str) -> str:
        return run([*PROGRAM, *arguments], shown=shlex.join(arguments)).stdout

    assert "up in" in program("up")
    assert "already up" in program("up")
    assert program("run", "--", "pwd") == f"{Path.cwd()}\n"
    with Cluster() as cluster:  # a test run uses it, and leaves it up
        assert set(cluster.host_states().values()) == {"idle"}
    assert "idle" in program("status")
    assert "down in" in program("down")
    assert "no cluster was up" in program("down")


@pytest.mark.parametrize("stage", ["munge/socket", "slurmd/n4", "record.json"])
def test_a_killed_test_run_leaves_nothing_that_the_next_one_keeps(state: Path, stage: str) -> None:
    """Killed while it starts the cluster, early or late, or while it uses it."""
    before = machine()
    with subprocess.Popen([sys.executable, "-c", WITH_CLUSTER]) as run:
        wait_until((state / stage).exists, what=stage, while_running=run, poll_seconds=0.01)
        run.send_signal(signal.SIGKILL)
    killed = processes_with_mount(Cluster().mark)
    assert killed
    with Cluster() as cluster:
        assert not any(process.alive() for process in killed)
        assert set(cluster.host_states().values()) == {"idle"}
    assert machine() == before


def test_a_start_that_fails_leaves_nothing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine()
    monkeypatch.setattr("slurm_cluster.config.gres_conf", lambda: "NodeName=n1 Name=gpu File=/dev/no-such-device\n")
    monkeypatch.setattr("slurm_cluster.cluster.START_SECONDS", 3)
    with pytest.raises(RuntimeError, match="to be ready"), Cluster():
        pass
    assert processes_with_mount(f"trainyard-cluster:{state}") == []
    assert machine() == before
