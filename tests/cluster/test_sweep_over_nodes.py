"""A sweep over several nodes is one Slurm job, whose Ray nobody else can use and which leaves nothing behind."""

import re
import sys
from pathlib import Path

import pytest
import yaml
from slurm_cluster import Cluster
from trainyard.journal import attempts, read_events
from waiting import wait_until
from yard import ROOT, TINY

# Each trial writes down what its process sees, then takes a while.
WITNESS = """
import os, time
from pathlib import Path
from trainyard.models import SmallConvNet

def build(*, channels, classes, seconds, note):
    seen = f"{os.uname().nodename} {os.environ['CUDA_VISIBLE_DEVICES']}"
    Path(note).write_text(seen)
    time.sleep(seconds)
    return SmallConvNet(channels=channels, classes=classes, width=4)
"""


def sweep_config(folder: Path, *, trials: int, seconds: float, gpus: int) -> dict:
    (folder / "witness.py").write_text(WITNESS)
    each = [{"seed": n, "model_args": {"seconds": seconds, "note": str(folder / f"note-{n}")}} for n in range(trials)]
    slots = {"nodes": 2, "gpus_per_node": gpus}
    sweep = {"dataset": "tiny", "train": {"model": "witness:build", "batch_size": 32}, "trials": each, "slots": slots}
    return {**TINY, "sweeps": {"s": sweep}}


def start(cluster: Cluster, folder: Path, *options: str, trials: int, seconds: float, gpus: int = 2) -> int:
    """Submit a job that stages the data and runs the sweep, as the rule does; returns its id."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(sweep_config(folder, trials=trials, seconds=seconds, gpus=gpus)))
    program = f"{sys.executable} {ROOT}/scripts/"
    script = (
        f"export PYTHONPATH={folder}\n{program}stage.py --config config.yaml --dataset tiny\n"
        f"exec {program}sweep.py --config config.yaml --sweep s"
    )
    shape = ["--nodes=2", "--ntasks-per-node=1", f"--cpus-per-task={gpus}", f"--gres=gpu:{gpus}"]
    return cluster.submit(script, *shape, *options, cwd=folder)


def journal_of(folder: Path):
    return attempts(read_events(folder / "results/sweeps/s/journal.jsonl"))


def outcomes(folder: Path):
    return [attempt.outcome for attempt in journal_of(folder)]


@pytest.fixture(autouse=True)
def nothing_left(cluster, shared_dir):
    """After the test: no process, no GPU allocated; and if the sweep ended by itself, no temporary folder, no token."""
    killed: list[str] = []
    yield killed.append
    wait_until(lambda: not any(cluster.processes_left().values()), timeout_seconds=20, what="no process is left")
    assert cluster.gpus_allocated() == 0
    if killed:
        return
    assert [path for host in cluster.hosts.values() for path in host.path("/tmp").glob("ty-*")] == []
    assert list(shared_dir.rglob(".ray-token-*")) == []


def test_twenty_trials_on_two_nodes_are_one_job_and_use_every_gpu(cluster, shared_dir):
    job = start(cluster, shared_dir, trials=20, seconds=1.0)
    ended = cluster.wait_for_job(job, timeout_seconds=120)
    said = (shared_dir / f"slurm-{job}.out").read_text()
    assert ended.state == "COMPLETED", said
    tries = journal_of(shared_dir)
    assert len({attempt.trial for attempt in tries}) == len(tries) == 20
    places = {(attempt.where["node"], attempt.where["gpu"]) for attempt in tries}
    assert len(places) == 4, "two GPUs on each of two nodes"
    assert len({node for node, _ in places}) == 2
    assert {attempt.where["job"] for attempt in tries} == {str(job)}
    seen = {tuple((shared_dir / f"note-{number}").read_text().split()) for number in range(20)}
    assert seen == places, "a trial sees its own GPU, and no other"


def test_two_sweeps_on_the_same_nodes_do_not_meet(cluster, shared_dir):
    """Each has one of the two GPUs of n1 and of n2, so that two Rays run on either node at the same time."""
    folders = [shared_dir / name for name in ("one", "other")]
    jobs = [start(cluster, folder, "--nodelist=n1,n2", trials=4, seconds=2, gpus=1) for folder in folders]
    for job, folder in zip(jobs, folders, strict=True):
        ended = cluster.wait_for_job(job, timeout_seconds=150)
        assert ended.state == "COMPLETED", (folder / f"slurm-{job}.out").read_text()
        assert outcomes(folder) == ["finished"] * 4
        assert {attempt.where["job"] for attempt in journal_of(folder)} == {str(job)}
    first, second = (journal_of(folder) for folder in folders)
    assert first[0].start < second[-1].end, "they ran at the same time"
    assert second[0].start < first[-1].end


def test_without_the_token_nobody_gets_in(cluster, shared_dir, nothing_left):
    job = start(cluster, shared_dir, "--nodelist=n1,n2", trials=4, seconds=60)
    wait_until(lambda: outcomes(shared_dir) == ["running"] * 4, timeout_seconds=60, what="all slots work")
    sockets = cluster.host(1).run(["ss", "--listening", "--tcp", "--numeric", "--processes"]).stdout
    port = re.search(r":(\d+) .*gcs_server", sockets)[1]
    intruder = [sys.executable, "-c", f"import ray; ray.init(address='10.77.0.1:{port}')"]
    for credentials in ([], ["RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=0123456789abcdef0123456789abcdef"]):
        done = cluster.host(2).run(["timeout", "8", "env", *credentials, *intruder], check=False, timeout_seconds=30)
        assert done.returncode != 0
        assert "InvalidAuthToken" in done.stdout + done.stderr
    cluster.run(["scancel", str(job)])
    cluster.wait_for_job(job)
    nothing_left("by scancel, five seconds after which the whole job gets SIGKILL")
