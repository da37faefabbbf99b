"""The live jobs of a user, and how a job has ended."""

import pytest
from trainyard.cluster import slurm_queries, user_jobs
from trainyard.utils.errors import UserError

# As Slurm 22.05 prints them.
PREEMPTED = "JobId=3 JobState={state} StartTime=2026-11-22T03:39:20 PreemptTime={preempted} WorkDir=/home/ann"
IN_GRACE, BEFORE, NEVER = "2026-11-22T03:39:24", "2026-11-22T03:00:00", "None"


def test_a_folder_may_have_any_characters():
    job = user_jobs.parse_user_job("7|RUNNING|2026-11-22T03:41:24|None|rule_sweep_wildcards_s|/home/my project|x")
    assert (job.job, job.state, job.comment) == ("7", "RUNNING", "rule_sweep_wildcards_s")
    assert str(job.folder) == "/home/my project|x"


def test_lines_of_comments_are_no_jobs(monkeypatch):
    answer = (
        "7|RUNNING|2026-11-22T03:41:24|None|first\nsecond|/home/ann\n"
        "8|PENDING|2026-11-22T03:41:24|Priority|rule_a|/home/ann\n"
    )
    monkeypatch.setattr(user_jobs, "run_slurm_command", lambda *command: answer)
    assert [job.job for job in user_jobs.list_user_jobs()] == ["8"]


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
    pending, running = (user_jobs.parse_user_job(line.format(state)) for state in ("PENDING", "RUNNING"))
    assert (pending.why_hopeless, running.why_hopeless) == (why, "")
    assert pending.waits_for_limit is reason.startswith(("QOS", "Assoc"))


def test_the_request_of_a_job_is_read(monkeypatch):
    answer = (
        "JobId=3 Account=(null) QOS=normal JobState=PENDING TimeLimit=01:30:00 Partition=gpu,long "
        "TRES=cpu=4,mem=8G,node=1,gres/gpu=2"
    )
    monkeypatch.setattr(user_jobs, "run_slurm_command", lambda *command: answer)
    resources = {"cpu": 4, "mem": 8192, "node": 1, "gres/gpu": 2}
    assert user_jobs.describe_request("3") == user_jobs.Request("", "normal", "gpu", 90, resources)


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
    monkeypatch.setattr(user_jobs, "run_slurm_command", lambda *command: answer)
    assert user_jobs.final_state("3") == expected


@pytest.mark.parametrize(("answer", "expected"), [("CANCELLED by 0\n", "CANCELLED"), ("", "")])
def test_the_accounting_knows_what_the_controller_has_forgotten(monkeypatch, answer, expected):
    def run(*command):
        if command[0] == "scontrol":
            raise UserError("slurm_load_jobs error: Invalid job id specified")
        return answer

    for module in (user_jobs, slurm_queries):
        monkeypatch.setattr(module, "run_slurm_command", run)
    assert user_jobs.final_state("3") == expected
