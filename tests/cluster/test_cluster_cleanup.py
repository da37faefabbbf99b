"""Taking the cluster down, also after it was killed, restores the state of the machine."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from project import ROOT
from slurm_cluster.cluster import Cluster
from slurm_cluster.namespaces import all_processes, processes_with_mount, run
from slurm_cluster.waiting import wait_until

pytestmark = pytest.mark.slow

KINDS_OF_NAMESPACE = ("mnt", "net", "uts", "ipc", "pid")
OF_THE_CLUSTER = "slurm|munge|mysql|mariadb|trainyard|ty-"
PROGRAM = [sys.executable, "-m", "slurm_cluster"]
WITH_CLUSTER = "import time; from slurm_cluster.cluster import Cluster\nwith Cluster(): time.sleep(600)"


@pytest.fixture
def state(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state folder for a second cluster, independent of the one that all tests share."""
    folder = Path(tempfile.mkdtemp(prefix="trainyard-"))
    folder.rmdir()
    monkeypatch.setenv("TRAINYARD_CLUSTER", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tools"))  # for processes that the tests start
    yield folder
    Cluster().down()


def machine() -> dict[str, object]:
    """The state of the machine that the cluster must not change."""
    etc = [Path("/etc/hosts"), *Path("/etc").glob("slurm/**/*"), *Path("/etc").glob("munge/**/*")]
    addresses = subprocess.run(["ip", "-oneline", "address"], capture_output=True, text=True, check=True).stdout
    return {
        "mounts": Path("/proc/self/mounts").read_text(),
        "addresses": re.sub(r"\b(valid|preferred)_lft \S+", "", addresses),  # the time for which they are leased
        "routes": subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout,
        "name": os.uname().nodename,
        "etc": {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in etc},
        "folders": [names(folder) for folder in ("/etc", "/run", "/dev/shm", "/var/log", "/var/lib")],
        "clusters": sorted(path.name for path in Path("/tmp").glob("trainyard-*") if "cluster" not in path.name),
    }


def names(folder: str) -> list[str]:
    """The files of a folder that may be the cluster's: other tests and an apt-get run at the same time."""
    return sorted(name for name in os.listdir(folder) if re.search(OF_THE_CLUSTER, name))


def namespaces(mark: str | None = None) -> set[str | None]:
    """The namespaces in use on the machine, or by the cluster with this mark."""
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
    with Cluster() as cluster:  # as a test run, which leaves it up
        assert set(cluster.host_states().values()) == {"idle"}
    assert "idle" in program("status")
    assert "down in" in program("down")
    assert "no cluster was up" in program("down")


@pytest.mark.parametrize("stage", ["munge/socket", "slurmd/n4", "record.json"])
def test_the_cluster_of_a_killed_test_run_ends_with_it_and_the_next_one_removes_its_files(
    state: Path, stage: str
) -> None:
    """It is killed early or late while it starts the cluster, or while it uses it."""
    before = machine()
    with subprocess.Popen([sys.executable, "-c", WITH_CLUSTER]) as run:
        wait_until((state / stage).exists, what=stage, while_running=run, poll_seconds=0.01)
        run.send_signal(signal.SIGKILL)
    mark = Cluster().mark
    wait_until(lambda: not processes_with_mount(mark), what="the end of its processes")
    assert state.exists()
    with Cluster() as cluster:
        assert set(cluster.host_states().values()) == {"idle"}
    assert machine() == before


def test_a_start_that_fails_leaves_nothing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine()
    monkeypatch.setattr("slurm_cluster.config.gres_conf", lambda _: "NodeName=n1 Name=gpu File=/dev/no-such-device\n")
    monkeypatch.setattr("slurm_cluster.cluster.START_SECONDS", 3)
    with pytest.raises(RuntimeError, match="to be ready"), Cluster():
        pass
    assert processes_with_mount(f"trainyard-cluster:{state}") == []
    assert machine() == before
