"""Launch lines are what a user would type: compared with their golden texts."""

import sys

import pytest
from trainyard.errors import UserError
from trainyard.launchers import AGENT, TRAIN, training_line
from trainyard.slurm import Allocation

OPTIONS = ["--config", "c.yaml", "--study", "s"]


def test_one_node_is_a_standalone_torchrun():
    line = training_line("1x4", OPTIONS, log_dir="/logs", allocation=None)
    assert " ".join(line) == (
        f"{sys.executable} {AGENT} --nproc-per-node 4 --log-dir /logs --standalone "
        f"{TRAIN} --scale 1x4 --config c.yaml --study s"
    )


def test_several_nodes_are_a_torchrun_each_that_meet_at_the_first():
    allocation = Allocation(job="1234567", nodes=("n3", "n4"), end_time=0)
    line = training_line("2x8", OPTIONS, log_dir="/logs", allocation=allocation)
    assert " ".join(line) == (
        "srun --nodes 2 --ntasks 2 --ntasks-per-node 1 --kill-on-bad-exit=1 "
        f"{sys.executable} {AGENT} --nproc-per-node 8 --log-dir /logs --nnodes 2 "
        "--rdzv-backend c10d --rdzv-id 1234567 --rdzv-endpoint n3:24567 "
        f"{TRAIN} --scale 2x8 --config c.yaml --study s"
    )


def test_several_nodes_need_a_job_with_as_many():
    with pytest.raises(UserError, match="scale 2x1 needs 2 nodes, but this is not a Slurm job"):
        training_line("2x1", OPTIONS, log_dir="/logs", allocation=None)
    three = Allocation(job="7", nodes=("a", "b", "c"), end_time=0)
    with pytest.raises(UserError, match="needs 2 nodes, but the job has 3"):
        training_line("2x1", OPTIONS, log_dir="/logs", allocation=three)
