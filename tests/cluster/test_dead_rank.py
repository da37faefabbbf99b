"""A training on several nodes ends soon after one rank has died, and its last line says why."""

import sys
from pathlib import Path

import pytest
import yaml
from slurm_cluster.cluster import Cluster
from slurm_cluster.waiting import wait_until
from yard import ROOT, TINY

# One of two ranks ends in the given way.
FRAGILE = """
import os, signal
from trainyard.training.models import SmallConvNet

class Fragile(SmallConvNet):
    def forward(self, images):
        if os.environ["RANK"] == "1":
            {end}
        return super().forward(images)

def build(*, channels, classes):
    return Fragile(channels=channels, classes=classes, width=4)
"""
ENDS = {
    "raises": (
        "raise RuntimeError('planned trouble')",
        "RuntimeError: planned trouble",
    ),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "Signal 9 (SIGKILL)"),
}


def start(cluster: Cluster, folder: Path, end: str) -> int:
    (folder / "fragile.py").write_text(FRAGILE.format(end=end))
    train = {"model": "fragile:build", "batch_size": 8, "epochs": 2}
    config = {**TINY, "scaling": {"s": {"dataset": "tiny", "train": train, "scales": ["2x1"]}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    program = f"{sys.executable} {ROOT}/scripts/"
    script = (
        f"export PYTHONPATH={folder}\n{program}stage.py --config config.yaml --dataset tiny\n"
        f"exec {program}train.py --scale 2x1 --config config.yaml --study s"
    )
    shape = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--gres=gpu:1", "--nodelist=n1,n2"]
    return cluster.submit(script, *shape, cwd=folder)


@pytest.mark.parametrize("how", ENDS)
def test_a_dead_rank_ends_the_job_with_its_error_in_the_last_line(cluster, shared_dir, how):
    end, words = ENDS[how]
    job = start(cluster, shared_dir, end)
    state = cluster.wait_until_out_of_queue(job)
    output = (shared_dir / f"slurm-{job}.out").read_text()
    assert state == "FAILED", output
    assert output.splitlines()[-1].startswith(f"rank 1 on n2 ended the training: {words}")
    wait_until(lambda: not cluster.processes_left(), what="all processes to end")
