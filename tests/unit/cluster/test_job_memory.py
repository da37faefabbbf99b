"""The host memory of a job is sampled from its processes or its control group, and recorded for later jobs."""

import os
import subprocess
import sys

import pytest
from slurm_cluster.waiting import wait_until
from trainyard.cluster import job_memory, slurm_allocation
from trainyard.cluster.job_memory import MemoryRecord, read_records, record_memory

MIB = 2**20
PROCESS = "memory = bytearray(100 * 2**20); print('up', flush=True); input()"


@pytest.fixture
def job(slurm, monkeypatch):
    monkeypatch.setattr(job_memory, "INTERVAL_SECONDS", 0.05)
    return slurm.allocate("n0", "n1", line="Nodes=n[0-1] CPU_IDs=0 Mem=8000 GRES=")


@pytest.mark.parametrize("variables", [["SLURM_JOB_ID"], ["TRAINYARD_JOB_ID"]], ids=["a job", "a trial's command"])
def test_the_processes_of_a_job_are_those_with_its_id(tmp_path, job, variables):
    mine, other = (
        subprocess.Popen(
            [sys.executable, "-c", PROCESS],
            env=os.environ | {"SLURM_JOB_ID": "1"} | dict.fromkeys(variables, number),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in (job, f"{job}1")
    )
    assert mine.stdout.readline() == other.stdout.readline() == b"up\n", "a first sample before would be recorded"
    with record_memory(tmp_path, processes=2, order_job=1):
        wait_until(lambda: read_records(tmp_path), what="the record")
        assert not read_records(tmp_path)[0].ended
        for process in (mine, other):
            process.communicate(b"\n")
    [record] = read_records(tmp_path)
    assert 100 <= record.peak_mib < 150, "of one of the two processes; 100 MiB and an interpreter"
    assert record.process_peak_mib == -(-record.peak_mib // 2)
    assert (record.job, record.requested_mib, record.ended) == (job, 8000, True)
    assert (tmp_path / "memory-1.json").exists(), "this is the second job of a sweep"


def test_memory_that_a_process_shares_with_its_forks_counts_once(tmp_path, job):
    forks = "import os; [os.fork() for _ in range(2)]; "  # four processes
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS.replace("print", f"{forks}print")],
        env=os.environ | {"SLURM_JOB_ID": job},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    up = process.stdout.read(4 * len(b"up\n"))  # the processes may write their lines into each other
    assert up.count(b"up") == up.count(b"\n") == 4
    with record_memory(tmp_path, processes=1):
        pass
    process.communicate(b"\n" * 4)
    assert 100 <= read_records(tmp_path)[0].peak_mib < 200


def test_the_highest_peak_per_process_is_kept(tmp_path, job):
    (tmp_path / "memory.json").write_text(
        '{"job": "1", "processes": 1, "requested_mib": null, "process_peak_mib": 9000}'
    )
    (tmp_path / "memory-2.json").write_text("{torn")
    with record_memory(tmp_path, processes=1, order_job=1):
        pass
    assert [each.process_peak_mib for each in read_records(tmp_path)] == [9000, 9000]


def test_outside_of_a_job_nothing_is_recorded(tmp_path):
    with record_memory(tmp_path, processes=1):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        (
            "0::/system.slice/slurmstepd.scope/job_5/step_0/user/task_0",
            {
                "system.slice/slurmstepd.scope/job_5/memory.stat": f"anon {70 * MIB}\nfile 9\nshmem {5 * MIB}\n",
                "system.slice/slurmstepd.scope/job_5/memory.events": "oom 1\noom_kill 2\n",
            },
        ),
        (
            "4:memory:/slurm/uid_0/job_5/step_0",
            {
                "memory/slurm/uid_0/job_5/memory.stat": f"total_rss {70 * MIB}\ntotal_shmem {5 * MIB}\n",
                "memory/slurm/uid_0/job_5/memory.oom_control": "under_oom 0\noom_kill 2\n",
            },
        ),
    ],
)
def test_the_control_group_of_a_job_counts_its_memory_without_the_page_cache(tmp_path, monkeypatch, membership, files):
    monkeypatch.setattr(slurm_allocation, "PROC", tmp_path / "proc")
    monkeypatch.setattr(slurm_allocation, "CGROUPS", tmp_path / "groups")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"1:cpu:/job_5/step_0\n{membership}\n")
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text)
    usage = job_memory.JobUsage("5")
    assert (usage.used_mib(), usage.oom_kills()) == (75, 2)
    other = job_memory.JobUsage("55")
    assert (other.used_mib(), other.oom_kills()) == (0, 0)


def test_a_sample_raises_the_peaks():
    record = MemoryRecord(job="1", processes=4, requested_mib=None, process_peak_mib=30)
    assert record.with_sample(100, 0).process_peak_mib == 30
    higher = record.with_sample(200, 1).with_sample(50, 1)
    assert (higher.peak_mib, higher.process_peak_mib, higher.oom_kills) == (200, 50, 1)
