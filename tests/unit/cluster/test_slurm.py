"""The output of Slurm's commands is parsed; Slurm 22.05 printed the lines below."""

import math
import time

import pytest
from slurm_commands import UNREACHABLE
from trainyard.cluster import slurm_allocation, slurm_queries
from trainyard.utils.errors import UserError

# `scontrol show job --details --oneliner` of `sbatch --nodes=2 --ntasks-per-node=1 --cpus-per-task=3 --gres=gpu:2`
TWO_NODES = (
    "JobId=1 JobName=rec.sh UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=root "
    "QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "DerivedExitCode=0:0 RunTime=00:00:00 TimeLimit=00:30:00 TimeMin=N/A SubmitTime=2026-11-21T00:00:10 "
    "EligibleTime=2026-11-21T00:00:10 AccrueTime=2026-11-21T00:00:10 StartTime=2026-11-21T00:00:10 "
    "EndTime=2026-11-21T00:30:10 Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-11-21T00:00:10 "
    "Scheduler=Backfill Partition=gpu AllocNode:Sid=head:12053 ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] "
    "BatchHost=n1 NumNodes=2 NumCPUs=6 NumTasks=2 CPUs/Task=3 ReqB:S:C:T=0:0:*:* "
    "TRES=cpu=6,mem=6000M,node=2,billing=6,gres/gpu=4 Socks/Node=* NtasksPerN:B:S:C=1:0:*:* CoreSpec=* "
    "JOB_GRES=gpu:a100:4   Nodes=n[1-2] CPU_IDs=5-7 Mem=3000 GRES=gpu:a100:2(IDX:0-1) MinCPUsNode=3 "
    "MinMemoryCPU=1000M MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 "
    "Licenses=(null) Network=(null) Command=/home/me/rec.sh WorkDir=/home/me StdErr=/home/me/slurm-1.out "
    "StdIn=/dev/null StdOut=/home/me/slurm-1.out Power= TresPerNode=gres:gpu:2 "
)
# The same of a job without GPUs, on one node.
NO_GPU = (
    "JobId=2 JobName=two words UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901758 Nice=0 Account=root "
    "QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "DerivedExitCode=0:0 RunTime=00:00:00 TimeLimit=00:10:00 TimeMin=N/A SubmitTime=2026-11-21T00:00:10 "
    "EligibleTime=2026-11-21T00:00:10 AccrueTime=2026-11-21T00:00:10 StartTime=2026-11-21T00:00:10 "
    "EndTime=2026-11-21T00:10:10 Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-11-21T00:00:10 "
    "Scheduler=Backfill Partition=gpu AllocNode:Sid=head:12053 ReqNodeList=(null) ExcNodeList=(null) NodeList=n1 "
    "BatchHost=n1 NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=1,mem=1000M,node=1,billing=1 "
    "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* JOB_GRES=(null)   Nodes=n1 CPU_IDs=0 Mem=1000 GRES= "
    "MinCPUsNode=1 MinMemoryCPU=1000M MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK "
    "Contiguous=0 Licenses=(null) Network=(null) Command=/home/me/rec.sh WorkDir=/home/me StdErr=/home/me/slurm-2.out "
    "StdIn=/dev/null StdOut=/home/me/slurm-2.out Power= "
)


def test_an_allocation_is_parsed():
    found = slurm_allocation.parse_allocation("1", TWO_NODES, ["n1", "n2"])
    assert found == slurm_allocation.Allocation(
        job="1",
        nodes=("n1", "n2"),
        gpus_per_node=2,
        gpu_model="a100",
        cpus_per_node=3,
        start_time=slurm_queries.parse_timestamp("2026-11-21T00:00:10"),
        end_time=slurm_queries.parse_timestamp("2026-11-21T00:30:10"),
        walltime_seconds=1800,
        memory_mib_per_node=3000,
    )

    assert str(found) == "Slurm job 1 on n1, n2; GPUs per node: 2 a100, CPUs per node: 3"


def test_an_allocation_without_gpus_is_parsed():
    found = slurm_allocation.parse_allocation("2", NO_GPU, ["n1"])
    assert (found.nodes, found.gpus_per_node, found.gpu_model, found.cpus_per_node) == (("n1",), 0, "", 1)
    assert str(found) == "Slurm job 2 on n1; GPUs per node: none, CPUs per node: 1"


@pytest.mark.parametrize(
    ("text", "model", "count"),
    [("gpu:4", "", 4), ("gpu:a100:3", "a100", 3), ("gpu:a100_3g.20gb:2,shard:8", "a100_3g.20gb", 2), ("(null)", "", 0)],
)
def test_gpus_with_and_without_a_type(text, model, count):
    found = slurm_allocation.parse_allocation("1", f"NumCPUs=1 JOB_GRES={text}", ["n1"])
    assert (found.gpu_model, found.gpus_per_node) == (model, count)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_times_are_local(monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    expected = time.mktime((2026, 11, 21, 0, 4, 10, 0, 0, -1))
    try:
        assert slurm_queries.parse_timestamp("2026-11-21T00:04:10") == expected
    finally:
        monkeypatch.undo()
        time.tzset()


def test_an_unknown_time_is_infinite():
    assert slurm_queries.parse_timestamp("Unknown") == math.inf


def test_outside_of_slurm_there_is_no_allocation(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert slurm_allocation.current_allocation() is None


def test_the_memory_of_a_job_on_this_node_is_the_smallest_limit(slurm):
    assert slurm_allocation.available_memory_bytes() > 30 * 2**20
    slurm.allocate("n1", line="Nodes=n1 CPU_IDs=0 Mem=30 GRES=")
    assert slurm_allocation.available_memory_bytes() == 30 * 2**20


@pytest.mark.parametrize(
    ("line", "limits"),
    [
        ("0::/job_1/step_0", {"job_1/memory.max": "700\n", "job_1/step_0/memory.max": "max\n"}),
        ("4:memory:/job_1", {"memory/job_1/memory.limit_in_bytes": "700\n"}),
        ("0::/not/in/this/container", {"memory.max": "700\n"}),
    ],
)
def test_limits_of_control_groups_are_those_of_all_groups_above(tmp_path, monkeypatch, line, limits):
    monkeypatch.setattr(slurm_allocation, "CGROUPS", tmp_path)
    monkeypatch.setattr(slurm_allocation, "PROC", tmp_path)
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(f"1:cpu:/elsewhere\n{line}\n")
    assert slurm_allocation.available_memory_bytes() == 700


@pytest.fixture
def job(slurm, tmp_path, monkeypatch):
    """A job on two nodes; the queries of it that Slurm refuses come first, and are those in the file `errors`."""
    job = slurm.allocate("n1", "n2")
    errors = tmp_path / "errors"
    errors.touch()
    refuse = f"if [ -s {errors} ]; then head -n 1 {errors} >&2; sed -i 1d {errors}; exit 1; fi"
    slurm.runs("scontrol", f"{refuse}; echo '{TWO_NODES.replace('JobId=1 ', f'JobId={job} ')}'", of="show job")
    monkeypatch.setattr(slurm_allocation, "RETRY_SECONDS", (0, 0, 0))
    return job


TIMEOUT = "error: Socket timed out on send/recv operation\n"


def test_a_controller_that_restarts_is_asked_again(job, tmp_path):
    (tmp_path / "errors").write_text(f"error: {UNREACHABLE}\n{TIMEOUT}")
    assert slurm_allocation.current_allocation().nodes == ("n1", "n2")


def test_what_was_known_of_a_job_counts_if_slurm_does_not_say_what_has_changed(job, tmp_path):
    known = slurm_allocation.current_allocation()
    (tmp_path / "errors").write_text(4 * TIMEOUT)
    assert slurm_allocation.refresh_allocation() is known
    assert slurm_allocation.current_allocation() is known
    assert slurm_allocation.refresh_allocation() is not known


@pytest.mark.parametrize(("error", "left"), [(TIMEOUT, 1), ("error: Invalid job id specified\n", 4)])
def test_other_errors_and_the_last_one_end_the_job(job, tmp_path, error, left):
    (tmp_path / "errors").write_text(5 * error)
    with pytest.raises(UserError, match=error.strip()):
        slurm_allocation.current_allocation()
    assert (tmp_path / "errors").read_text() == left * error


def test_of_the_tasks_of_an_array_only_the_own_one_counts(slurm, job):
    """One of the tasks has the ID of the array."""
    other = TWO_NODES.replace("NodeList=n[1-2]", "NodeList=(null)").replace(
        "2026-11-21T00:30:10", "2026-11-20T00:00:00"
    )
    slurm.prints("scontrol", f"{TWO_NODES.replace('JobId=1 ', f'JobId={job} ')}\n{other}\n", of="show job")
    found = slurm_allocation.current_allocation()
    assert (found.job, found.nodes) == (job, ("n1", "n2"))
    assert found.end_time == slurm_queries.parse_timestamp("2026-11-21T00:30:10")


def test_an_answer_about_other_jobs_is_an_error(slurm, job):
    slurm.prints("scontrol", TWO_NODES, of="show job")
    with pytest.raises(UserError, match="printed no line about this job"):
        slurm_allocation.current_allocation()


@pytest.mark.parametrize(
    ("groups", "cpus", "mib"),
    [
        ("Nodes=n1 CPU_IDs=0-127 Mem=512000 GRES=   Nodes=n2 CPU_IDs=0-63 Mem=256000 GRES= ", 64, 256000),
        ("Nodes=n1 CPU_IDs=0-31,64-95 Mem=256000 GRES=   Nodes=n2 CPU_IDs=0-127 Mem=512000 GRES= ", 64, 256000),
        ("Nodes=n1 CPU_IDs=0-31,64,66 Mem=0 GRES=   Nodes=n2 CPU_IDs=0-127 Mem=0 GRES= ", 34, None),
        ("Nodes=n[1-2] CPU_IDs=0-127 Mem=256000 GRES= ", 96, 256000),  # one of two threads a core
        (f"Nodes=n1 CPU_IDs={','.join(map(str, range(0, 99, 2)))[:127]} Mem=256000 GRES= ", 96, 256000),  # cut off
    ],
)
def test_of_nodes_that_differ_the_smallest_counts(groups, cpus, mib):
    line = TWO_NODES.replace("NumCPUs=6", "NumCPUs=192")
    start, end = line.index("Nodes=n[1-2] CPU_IDs"), line.index("MinCPUsNode")
    found = slurm_allocation.parse_allocation("1", line[:start] + groups + line[end:], ["n1", "n2"])
    assert (found.cpus_per_node, found.memory_mib_per_node) == (cpus, mib)


@pytest.mark.parametrize(
    ("requested", "count"),
    [
        ("TresPerNode=gpu:2", 2),  # as older releases print it
        ("TresPerNode=gres:gpu:a100:2", 2),
        ("TresPerNode=gres/gpu:2,gres/shard:9", 2),
        ("TresPerJob=gres/gpu:a100:4", 2),
        ("TresPerJob=gres:gpu:6 TresPerNode=gres:gpu:4", 3),
        ("TresPerNode=gres/gpu:9", 8),
        ("TresPerNode=gres/shard:9", 8),
        ("", 8),
    ],
)
def test_of_the_gpus_of_a_whole_node_those_requested_count(requested, count):
    """With OverSubscribe=EXCLUSIVE, a job is allocated all GPUs of its nodes; its steps see as many as requested."""
    line = TWO_NODES.replace("JOB_GRES=gpu:a100:4", "JOB_GRES=gpu:a100:16").replace("TresPerNode=gres:gpu:2", requested)
    found = slurm_allocation.parse_allocation("1", line, ["n1", "n2"])
    assert (found.gpus_per_node, found.gpu_model) == (count, "a100")
