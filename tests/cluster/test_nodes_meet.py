"""The nodes of a training meet on sites whose nodes call themselves loopback, and other users cannot interfere."""

import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml
from project import ROOT, TINY, WAITING, stage_tiny
from slurm_cluster.cluster import Cluster
from slurm_cluster.hosts import Host
from slurm_cluster.waiting import wait_until
from trainyard.cluster.host import PORTS
from trainyard.scaling.rendezvous import SECONDS

pytestmark = pytest.mark.slow

NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
# Python imports it at its start: the program of one node does not get further.
HANGING = """
import os, sys, time
if os.uname().nodename == "n2" and "scaling.agent" in sys.orig_argv:
    time.sleep(3600)
"""


@contextmanager
def own_names_are_loopback(site: Cluster, line: str) -> Iterator[None]:
    """Give each host a hosts file of its own, in which its own name is on a loopback line."""
    for host in site.hosts.values():
        known = host.run(["cat", "/etc/hosts"], cwd="/").stdout.splitlines()
        others = [each for each in known if "localhost" not in each and host.name not in each.split()]
        (host.path("/tmp") / "hosts").write_text("\n".join([line.format(name=host.name), *others, ""]))
        host.run(["mount", "--bind", "/tmp/hosts", "/etc/hosts"], cwd="/")
    try:
        yield
    finally:
        for host in site.hosts.values():
            host.run(["umount", "/etc/hosts"], cwd="/")


def start(site: Cluster, folder: Path, **environment: str) -> int:
    """Submit a training on the first two hosts, which waits for the file `go`."""
    stage_tiny(folder / "results")
    (folder / "waiting.py").write_text(WAITING)
    train = {"model": "waiting:build", "batch_size": 8, "epochs": 1}
    study = {"dataset": "tiny", "train": train, "scales": ["2x1"]}
    (folder / "config.yaml").write_text(yaml.safe_dump({**TINY, "scaling": {"s": study}}))
    program = f"{sys.executable} {ROOT}/scripts/"
    lines = [f"export {name}={value}" for name, value in {"PYTHONPATH": folder, **environment}.items()]
    lines += [f"exec {program}train.py --scale 2x1 --config config.yaml --study s"]
    shape = [
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        f"--nodelist={','.join(list(site.hosts)[:2])}",
        "--gres=gpu:1",
    ]
    return site.submit("\n".join(lines), *shape, cwd=folder)


def listening(host: Host) -> set[tuple[str, int]]:
    """Addresses and ports at which the programs of a job listen on a host, over IPv4; over IPv6, they must not."""
    programs = [process.pid for process in host.processes_left() if process.name != "srun"]
    sockets = set()
    for pid in programs:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for path in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # it has just been closed
                    sockets.add(os.readlink(path))
    found = set()
    for file in ("tcp", "tcp6"):
        for line in Path(f"/proc/{host.inside.first.pid}/net/{file}").read_text().splitlines()[1:]:
            address, state, inode = (line.split()[column] for column in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in sockets:
                packed, port = address.split(":")
                assert file == "tcp", f"{host.name} listens at {address}"
                found.add((socket.inet_ntoa(bytes.fromhex(packed)[::-1]), int(port, 16)))
    return found


def train_under_attack(site: Cluster, folder: Path) -> None:
    """Train on two hosts, while another user writes pickles to all ports of the first one, from both."""
    folder.chmod(0o777)  # the pickle of the other user would make a folder
    shutil.copy(ROOT / "tests/store_attack.py", folder)
    job = start(site, folder)
    output = folder / f"slurm-{job}.out"
    wait_until(
        lambda: len(list(folder.glob("started-*"))) == 2 or not site.run(["squeue", "--noheader"]).stdout,
        what="both ranks",
        poll_seconds=0.5,
    )
    first, second = (listening(site.host(number)) for number in (1, 2))
    assert {address for address, _ in first} == {"10.77.0.1"}, output.read_text()
    assert {address for address, _ in second} == {"10.77.0.2"}
    ports = [str(port) for _, port in first]
    for number in (1, 2):
        attack = [*NOBODY, "/usr/bin/python3", f"{folder}/store_attack.py", "10.77.0.1", *ports]
        assert "default_pg" in site.host(number).run(attack, cwd="/").stdout, "it has written to the store"
    (folder / "go").touch()
    assert site.wait_until_out_of_queue(job) == "COMPLETED", output.read_text()
    assert not (folder / "pickle-was-loaded").exists()


def test_a_node_whose_name_is_on_its_localhost_line_trains_and_another_user_gets_nowhere(
    cluster: Cluster, shared_dir: Path
) -> None:
    with own_names_are_loopback(cluster, "127.0.0.1 localhost {name}"):
        train_under_attack(cluster, shared_dir)


def test_the_same_holds_for_debians_loopback_line_and_ranks_have_all_cpus_where_the_site_binds_tasks(
    second_site: Cluster, second_dir: Path
) -> None:
    with own_names_are_loopback(second_site, "127.0.0.1 localhost\n127.0.1.1 {name}"):
        train_under_attack(second_site, second_dir)
    assert [path.read_text() for path in second_dir.glob("started-*")] == 2 * [str(len(os.sched_getaffinity(0)))]


def test_a_node_that_does_not_start_ends_the_training_with_its_name(cluster: Cluster, shared_dir: Path) -> None:
    (shared_dir / "sitecustomize.py").write_text(HANGING)
    job = start(cluster, shared_dir, **{SECONDS: "1"})
    state = cluster.wait_until_out_of_queue(job)
    output = (shared_dir / f"slurm-{job}.out").read_text()
    assert state == "FAILED", output
    last = output.splitlines()[-1]
    assert last == "the nodes of the training did not meet: n2 did not start within 5 s", output
    wait_until(lambda: not cluster.processes_left(), what="all processes to end")


def test_a_node_that_cannot_connect_ends_the_training_with_the_address_that_it_tried(
    cluster: Cluster, shared_dir: Path
) -> None:
    firewall = ["to", "10.77.0.1", "ipproto", "tcp", "dport", f"{PORTS.start}-{PORTS.stop - 1}", "blackhole"]
    cluster.host(2).run(["ip", "rule", "add", *firewall], cwd="/")
    try:
        job = start(cluster, shared_dir, **{SECONDS: "6"})  # 30 s for the program of n2 to start
        state = cluster.wait_until_out_of_queue(job)
    finally:
        cluster.host(2).run(["ip", "rule", "delete", *firewall], cwd="/")
    output = (shared_dir / f"slurm-{job}.out").read_text()
    assert state == "FAILED", output
    last = output.splitlines()[-1]
    assert re.match(
        r"the nodes of the training did not meet: n2 could not connect to n1 at 10\.77\.0\.1, port \d+, ", last
    )
    wait_until(lambda: not cluster.processes_left(), what="all processes to end")
