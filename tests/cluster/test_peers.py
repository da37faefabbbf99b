"""The comparison with other ways to run trials: what a run of it measures, on the real Slurm."""

import subprocess

import pytest
from peers.participants import participants
from peers.runner import ROOT, Run
from peers.works import works

pytestmark = pytest.mark.slow

PEERS = participants()
WORKS = works(scale=0.05, short_trials=10)
PATIENCE = 20  # the limits are for an idle machine


def measured(cluster, folder, peer: str, work: str) -> dict:
    run = Run(cluster, PEERS[peer], WORKS[work], 1, folder / peer, PATIENCE)
    result = run.measure()
    assert result["reason"] == "", (folder / peer / "output.txt").read_text()
    return result


@pytest.mark.parametrize("peer", ["sbatch", "srun-steps", "trainyard"])
def test_the_same_work_by_several_participants(cluster, shared_dir, peer):
    result = measured(cluster, shared_dir, peer, "depth")
    log = (shared_dir / peer / "trials.log").read_text()
    assert {line.split()[3] for line in log.splitlines()} <= {"n1", "n2"}  # the other hosts are drained
    assert result["over_seconds"] >= result["seconds"] > result["first_seconds"] > 0
    assert result["over_bound"] >= 1
    assert result["gpu_seconds"] > 0
    assert set(cluster.host_states().values()) == {"idle"}


def test_trials_crash_are_killed_and_resumed(cluster, shared_dir):
    result = measured(cluster, shared_dir, "array-descending", "trouble")
    assert result["person_steps"] >= 1
    assert result["lost_seconds"] == 0  # what had finished is not run again
    assert result["repeated_seconds"] > 0
    assert "crash" in (shared_dir / "array-descending/trials.log").read_text()


def test_others_hold_half_of_the_cluster(cluster, shared_dir):
    result = measured(cluster, shared_dir, "sbatch", "crowded")
    assert result["gpu_seconds"] < 100  # without those of the others
    log = (shared_dir / "sbatch/trials.log").read_text()
    assert len({line.split()[3] for line in log.splitlines()}) > 2


def test_a_run_over_its_limit_is_ended_with_a_reason(cluster, shared_dir):
    run = Run(cluster, PEERS["sbatch"], WORKS["depth"], 1, shared_dir / "late", 0.001)
    assert "not over after 0 s" in run.measure()["reason"]
    assert set(cluster.host_states().values()) == {"idle"}


@pytest.fixture(scope="session")
def packages():
    """The environment of the participants that are Python packages."""
    subprocess.run(["make", "--no-print-directory", ".tools/peers/ready"], cwd=ROOT, check=True)


# Not Ray Tune: `ray start` gives up after 30 s (a constant in its code), too early on a busy machine.
PACKAGES = [peer.name for peer in PEERS.values() if peer.programs and peer.name != "ray-tune"]


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("work", ["short", "trouble"])
@pytest.mark.parametrize("peer", [*PACKAGES, "trainyard-function"])
def test_the_same_work_by_python_packages(cluster, shared_dir, peer, work):
    result = measured(cluster, shared_dir, peer, work)
    lines = [line.split() for line in (shared_dir / peer / "trials.log").read_text().splitlines()]
    assert {line[4] for line in lines} <= {"0", "1"}  # each trial has one GPU
    assert result["gpu_seconds"] > 0
    if work == "trouble":
        assert not [*(shared_dir / peer).glob("crash-*")], "a trial was started to crash"
        assert [line[0] for line in lines].count("crash") <= 1, "it may be killed before it does"
        assert [line[:2] for line in lines].count(["start", str(WORKS[work].crashing_trial)]) >= 2, "it runs again"
        assert result["person_steps"] >= 1
