"""The CPUs that a process may use: of its CPU set, its allocation and its control group."""

import os

import pytest
from trainyard.cluster import slurm_allocation


def test_threads_are_those_of_the_cpu_set_and_the_allocation(monkeypatch):
    mine = os.sched_getaffinity(0)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert slurm_allocation.available_cpus() <= len(mine)
    os.sched_setaffinity(0, {min(mine)})
    try:
        assert slurm_allocation.available_cpus() == 1
    finally:
        os.sched_setaffinity(0, mine)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert slurm_allocation.available_cpus() == 1


CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("text", "cpus"), [("max 100000", CPUS), ("250000 100000", min(2, CPUS)), ("199999 100000", 1), ("50000 100000", 1)]
)
def test_the_quota_of_a_control_group_counts_whole_cpus(tmp_path, monkeypatch, text, cpus):
    monkeypatch.setattr(slurm_allocation, "CGROUPS", tmp_path)
    (tmp_path / "cpu.max").write_text(text)
    assert slurm_allocation.available_cpus() == cpus
