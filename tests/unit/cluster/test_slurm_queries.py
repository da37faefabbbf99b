"""What Slurm's commands print on sites that are not like the test cluster."""

import os
from contextlib import nullcontext

import pytest
from trainyard.cluster import slurm_queries
from trainyard.utils.errors import UserError


@pytest.fixture
def printed(monkeypatch):
    """The output of every Slurm command, which a test sets."""
    output = [""]
    monkeypatch.setattr(slurm_queries, "run_slurm_command", lambda *_: output[0])
    return output


def test_the_names_of_clusters_are_no_partitions(printed):
    """With SLURM_CLUSTERS=alpha,beta."""
    line = "gpu*|up|1-00:00:00|4|8|16000|gpu:a100:2|nvlink"
    printed[0] = f"CLUSTER: alpha\n{line}\n\nCLUSTER: beta\n{line.replace('gpu*', 'long')}\n"
    assert [each.name for each in slurm_queries.list_partitions()] == ["gpu", "long"]


def test_the_names_of_clusters_are_no_state_of_a_job(printed):
    printed[0] = "CLUSTER: alpha\nPENDING: Resources\n\nCLUSTER: beta\n"
    assert slurm_queries.job_state("7") == "PENDING: Resources"
    printed[0] = "CLUSTER: alpha\n\nCLUSTER: beta\n"
    assert slurm_queries.job_state("7") == ""


@pytest.mark.parametrize("line", ["slurm: a banner of the site", "gpu|up|soon|4|8|16000|(null)|(null)"])
def test_other_output_is_an_error_and_no_traceback(printed, line):
    printed[0] = f"{line}\n"
    with pytest.raises(UserError, match="sinfo printed a line that cannot be read as a partition"):
        slurm_queries.list_partitions()


def test_the_settings_of_partitions_are_parsed(printed):
    printed[0] = (
        "PartitionName=gpu AllowGroups=ALL QoS=N/A DefaultTime=00:20:00 GraceTime=0 PreemptMode=OFF State=UP\n"
        "PartitionName=spot AllowGroups=ALL QoS=part GraceTime=120 PreemptMode=CANCEL State=UP\n"
    )
    gpu, spot = slurm_queries.list_partition_settings()
    assert gpu == slurm_queries.PartitionSettings("gpu", qos="", preempt_mode="OFF", grace_seconds=0)
    assert spot == slurm_queries.PartitionSettings("spot", qos="part", preempt_mode="CANCEL", grace_seconds=120)


def test_variables_of_the_users_shell_change_no_output(tmp_path, monkeypatch):
    program = tmp_path / "scontrol"
    names = ("SLURM_TIME_FORMAT", "SQUEUE_FORMAT", "SINFO_PARTITION", "SACCT_FORMAT", "SCONTROL_ALL", "SLURM_CONF")
    program.write_text(f"#!/bin/sh\necho {' '.join(f'${{{name}:-none}}' for name in names)}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in names:
        monkeypatch.setenv(name, "relative")
    assert slurm_queries.run_slurm_command("scontrol").split() == ["none"] * 5 + ["relative"]


@pytest.mark.parametrize(
    ("error", "is_known"), [("slurm_load_jobs error: Invalid job id specified", False), ("Socket timed out", True)]
)
def test_a_job_has_left_the_queue_only_if_slurm_says_so(monkeypatch, error, is_known):
    def fail(*_):
        raise UserError(error)

    monkeypatch.setattr(slurm_queries, "run_slurm_command", fail)
    assert slurm_queries.has_ended("7") is not is_known
    with pytest.raises(UserError, match=error) if is_known else nullcontext():
        assert slurm_queries.job_state("7") == ""


# As Slurm 22.05 prints them.
PREEMPTED = "JobId=3 JobState={state} StartTime=2026-11-22T03:39:20 PreemptTime={preempted} WorkDir=/home/ann"
IN_GRACE, BEFORE, NEVER = "2026-11-22T03:39:24", "2026-11-22T03:00:00", "None"


def test_a_folder_may_have_any_characters():
    job = slurm_queries.parse_user_job("7|RUNNING|2026-11-22T03:41:24|None|rule_sweep_wildcards_s|/home/my project|x")
    assert (job.job, job.state, job.comment) == ("7", "RUNNING", "rule_sweep_wildcards_s")
    assert str(job.folder) == "/home/my project|x"


def test_lines_of_comments_are_no_jobs(monkeypatch):
    answer = (
        "7|RUNNING|2026-11-22T03:41:24|None|first\nsecond|/home/ann\n"
        "8|PENDING|2026-11-22T03:41:24|Priority|rule_a|/home/ann\n"
    )
    monkeypatch.setattr(slurm_queries, "run_slurm_command", lambda *command: answer)
    assert [job.job for job in slurm_queries.list_user_jobs()] == ["8"]


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("PartitionTimeLimit", "its walltime is above the limit of its partition"),
        ("QOSMaxWallDurationPerJobLimit", "it requests more than this limit allows a job"),
        ("AssocMaxGRESPerJob", "it requests more than this limit allows a job"),
        ("BadConstraints", "no node can satisfy its constraints"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "nodes that it requires are down, drained or do not respond"),
        ("JobHeldUser", "it is held until it is released (`scontrol release`)"),
        ("launch failed requeued held", "it is held until it is released (`scontrol release`)"),
        ("Priority", ""),
        ("Resources", ""),
        ("ReqNodeNotAvail", ""),
        ("QOSMaxGRESPerUser", ""),
        ("AssocGrpCpuLimit", ""),
        ("BeginTime", ""),
    ],
)
def test_a_reason_that_does_not_pass_by_itself_is_explained(reason, why):
    line = f"7|{{}}|2026-11-22T03:41:24|{reason}|rule_sweep|/home"
    pending, running = (slurm_queries.parse_user_job(line.format(state)) for state in ("PENDING", "RUNNING"))
    assert (pending.why_hopeless, running.why_hopeless) == (why, "")
    assert pending.waits_for_limit is reason.startswith(("QOS", "Assoc"))


def test_the_request_of_a_job_is_read(monkeypatch):
    answer = (
        "JobId=3 Account=(null) QOS=normal JobState=PENDING TimeLimit=01:30:00 Partition=gpu,long "
        "TRES=cpu=4,mem=8G,node=1,gres/gpu=2"
    )
    monkeypatch.setattr(slurm_queries, "run_slurm_command", lambda *command: answer)
    resources = {"cpu": 4, "mem": 8192, "node": 1, "gres/gpu": 2}
    assert slurm_queries.describe_request("3") == slurm_queries.Request("", "normal", "gpu", 90, resources)


@pytest.mark.parametrize(
    ("state", "preempted", "expected"),
    [
        ("PREEMPTED", IN_GRACE, "PREEMPTED"),
        ("FAILED", IN_GRACE, "PREEMPTED"),
        ("FAILED", BEFORE, "FAILED"),  # preempted, requeued, then failed
        ("FAILED", NEVER, "FAILED"),
        ("COMPLETED", IN_GRACE, "COMPLETED"),
        ("CANCELLED", IN_GRACE, "CANCELLED"),
    ],
)
def test_a_job_that_failed_in_its_grace_period_was_preempted(monkeypatch, state, preempted, expected):
    answer = PREEMPTED.format(state=state, preempted=preempted)
    monkeypatch.setattr(slurm_queries, "run_slurm_command", lambda *command: answer)
    assert slurm_queries.final_state("3") == expected


@pytest.mark.parametrize(("answer", "expected"), [("CANCELLED by 0\n", "CANCELLED"), ("", "")])
def test_the_accounting_knows_what_the_controller_has_forgotten(monkeypatch, answer, expected):
    def run(*command):
        if command[0] == "scontrol":
            raise UserError("slurm_load_jobs error: Invalid job id specified")
        return answer

    monkeypatch.setattr(slurm_queries, "run_slurm_command", run)
    assert slurm_queries.final_state("3") == expected
