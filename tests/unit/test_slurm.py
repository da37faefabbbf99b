"""What Slurm prints is understood: the line below was printed by Slurm 22.05 for a job on two nodes."""

import math
import time

import pytest
from trainyard import slurm

LINE = (
    "JobId=1 JobName=wrap UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=root "
    "QOS=normal JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 "
    "RunTime=00:00:02 TimeLimit=00:05:00 TimeMin=N/A SubmitTime=2026-11-20T23:59:09 EligibleTime=2026-11-20T23:59:09 "
    "AccrueTime=2026-11-20T23:59:09 StartTime=2026-11-20T23:59:10 EndTime=2026-11-21T00:04:10 Deadline=N/A "
    "SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-11-20T23:59:10 Scheduler=Backfill Partition=gpu "
    "AllocNode:Sid=head:990 ReqNodeList=(null) ExcNodeList=(null) NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=2 "
    "NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=2,mem=2000M,node=2,billing=2,gres/gpu=4 Socks/Node=* "
    "NtasksPerN:B:S:C=1:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryCPU=1000M MinTmpDiskNode=0 Features=(null) "
    "DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null) Command=(null) WorkDir=/ "
    "Comment=two words  StdErr=/dev/null StdIn=/dev/null StdOut=/dev/null Power= TresPerNode=gres:gpu:a100:2 "
)


def test_a_job_is_parsed():
    fields = slurm.parse_job(LINE)
    assert fields["NodeList"] == "n[1-2]"
    assert fields["TRES"] == "cpu=2,mem=2000M,node=2,billing=2,gres/gpu=4"
    assert fields["EndTime"] == "2026-11-21T00:04:10"


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_times_are_those_of_this_machines_clock(monkeypatch, zone):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    expected = time.mktime((2026, 11, 21, 0, 4, 10, 0, 0, -1))
    try:
        assert slurm.parse_time("2026-11-21T00:04:10") == expected
    finally:
        monkeypatch.undo()
        time.tzset()


def test_no_end_is_never():
    assert slurm.parse_time("Unknown") == math.inf


def test_outside_of_slurm_there_is_no_allocation_and_no_deadline(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert slurm.allocation() is None
    assert slurm.deadline() == math.inf
