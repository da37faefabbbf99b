"""The example partition file is read by the executor plugin, and sends jobs where its comments say."""

import logging
from types import SimpleNamespace

import pytest
from project import ROOT
from snakemake_executor_plugin_slurm.partitions import get_best_partition, read_partition_file

JOBS = [
    ({"gpu": 1, "gpu_model": "v100", "runtime": 60, "nodes": 1}, "v100"),
    ({"gpu": 8, "gpu_model": "a100_80", "runtime": 60, "nodes": 1}, "a100-80"),
    ({"gres": "gpu:2", "mpi": "srun", "tasks": 12, "nodes": 12, "runtime": 60}, "v100"),
    ({"runtime": 600, "nodes": 1}, "cpu"),
]


@pytest.mark.parametrize(("resources", "partition"), JOBS)
def test_a_job_finds_its_partition(resources, partition):
    partitions = read_partition_file(ROOT / "profiles/slurm/partitions.yaml")
    job = SimpleNamespace(resources=resources, threads=4, name="job")
    assert get_best_partition(partitions, job, logging.getLogger()) == partition
