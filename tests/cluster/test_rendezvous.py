"""The nodes of a training meet on sites whose nodes call themselves loopback, and other users cannot interfere."""

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from slurm_cluster import config
from slurm_cluster.cluster import Cluster
from slurm_cluster.waiting import wait_until
from trainyard.scaling.rendezvous import SECONDS
from yard import ROOT, TINY, WAITING

# A node's own name in its /etc/hosts, as some sites have it, and as Debian's installer writes it.
LOOPBACK_LINES = {"localhost": "127.0.0.1 localhost {name}", "Debian": "127.0.0.1 localhost\n127.0.1.1 {name}"}
NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
# Python imports it at its start: the program of one node does not get further.
HANGING = """
import os, sys, time
if os.uname().nodename == "n2" and "scaling.agent" in sys.orig_argv:
    time.sleep(3600)
"""


@pytest.fixture
def hosts_files(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[None]:
    """Each host has a hosts file of its own, in which its own name is a loopback address."""
    for host in cluster.hosts.values():
        others = [f"{config.address(name)} {name}" for name in (config.HEAD, *config.HOSTS) if name != host.name]
        file = host.path("/tmp") / "hosts"
        file.write_text("\n".join([LOOPBACK_LINES[request.param].format(name=host.name), *others, ""]))
        host.run(["mount", "--bind", "/tmp/hosts", "/etc/hosts"], cwd="/")
    yield
    for host in cluster.hosts.values():
        host.run(["umount", "/etc/hosts"], cwd="/")


def start(cluster: Cluster, folder: Path, **environment: str) -> int:
    """Submit a training on n1 and n2, which waits for the file `go`."""
    (folder / "waiting.py").write_text(WAITING)
    train = {"model": "waiting:build", "batch_size": 8, "epochs": 1}
    study = {"dataset": "tiny", "train": train, "scales": ["2x1"]}
    (folder / "config.yaml").write_text(yaml.safe_dump({**TINY, "scaling": {"s": study}}))
    program = f"{sys.executable} {ROOT}/scripts/"
    lines = [f"export {name}={value}" for name, value in {"PYTHONPATH": folder, **environment}.items()]
    lines += [f"{program}stage.py --config config.yaml --dataset tiny"]
    lines += [f"exec {program}train.py --scale 2x1 --config config.yaml --study s"]
    shape = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--gres=gpu:1", "--nodelist=n1,n2"]
    return cluster.submit("\n".join(lines), *shape, cwd=folder)


def listening(cluster: Cluster, name: str) -> set[tuple[str, int]]:
    """Addresses and ports at which the programs of a job listen on a host, over IPv4; over IPv6, they must not."""
    host = cluster.hosts[name]
    programs = [process.pid for process in host.processes_left() if process.name != "srun"]
    sockets = {os.readlink(path) for pid in programs for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    found = set()
    for file in ("tcp", "tcp6"):
        for line in Path(f"/proc/{host.inside.first.pid}/net/{file}").read_text().splitlines()[1:]:
            address, state, inode = (line.split()[column] for column in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in sockets:
                packed, port = address.split(":")
                assert file == "tcp", f"{name} listens at {address}"
                found.add((socket.inet_ntoa(bytes.fromhex(packed)[::-1]), int(port, 16)))
    return found


@pytest.mark.parametrize("hosts_files", LOOPBACK_LINES, indirect=True)
def test_nodes_whose_names_are_loopback_addresses_train_and_another_user_gets_nowhere(
    cluster: Cluster, shared_dir: Path, hosts_files: None
) -> None:
    shared_dir.chmod(0o777)  # the pickle of the other user would make a folder
    shutil.copy(ROOT / "tests/strangers.py", shared_dir)
    job = start(cluster, shared_dir)
    output = shared_dir / f"slurm-{job}.out"
    wait_until(
        lambda: len(list(shared_dir.glob("started-*"))) == 2 or not cluster.run(["squeue", "--noheader"]).stdout,
        what="both ranks",
        poll_seconds=0.5,
    )
    first, second = (listening(cluster, name) for name in ("n1", "n2"))
    assert {address for address, _ in first} == {"10.77.0.1"}, output.read_text()
    assert {address for address, _ in second} == {"10.77.0.2"}
    ports = [str(port) for _, port in first]
    for host in (1, 2):
        attack = [*NOBODY, "/usr/bin/python3", f"{shared_dir}/strangers.py", "10.77.0.1", *ports]
        assert "default_pg" in cluster.host(host).run(attack, cwd="/").stdout, "it has written to the store"
    (shared_dir / "go").touch()
    assert cluster.wait_for_job(job).state == "COMPLETED", output.read_text()
    assert not (shared_dir / "pickle-was-loaded").exists()


def test_a_node_that_does_not_start_ends_the_training_with_its_name(cluster: Cluster, shared_dir: Path) -> None:
    (shared_dir / "sitecustomize.py").write_text(HANGING)
    job = start(cluster, shared_dir, **{SECONDS: "1"})
    state = cluster.wait_until_out_of_queue(job)
    output = (shared_dir / f"slurm-{job}.out").read_text()
    assert state == "FAILED", output
    last = output.splitlines()[-1]
    assert last == "the nodes of the training did not meet: n2 did not start within 5 s", output
    wait_until(lambda: not cluster.processes_left(), what="all processes to end")
