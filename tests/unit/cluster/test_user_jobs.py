"""The live jobs of a user, and how a job has ended."""

import pytest
from trainyard.cluster import slurm_queries, user_jobs
from trainyard.utils.errors import UserError

# As Slurm 22.05 prints them.
PREEMPTED = "JobId=3 JobState={state} StartTime=2026-11-22T03:39:20 PreemptTime={preempted} WorkDir=/home/ann"
IN_GRACE, BEFORE, NEVER = "2026-11-22T03:39:24", "2026-11-22T03:00:00", "None"


def test_a_folder_may_have_any_characters():
    job = user_jobs.parse_live_job("7|RUNNING|2026-11-22T03:41:24|rule_sweep_wildcards_s|/home/my project|x")
    assert (job.job, job.state, job.comment) == ("7", "RUNNING", "rule_sweep_wildcards_s")
    assert str(job.folder) == "/home/my project|x"


def test_lines_of_comments_are_no_jobs(monkeypatch):
    answer = "7|RUNNING|2026-11-22T03:41:24|first\nsecond|/home/ann\n8|PENDING|2026-11-22T03:41:24|rule_a|/home/ann\n"
    monkeypatch.setattr(user_jobs, "run_slurm_command", lambda *command: answer)
    assert [job.job for job in user_jobs.list_live_jobs()] == ["8"]


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
