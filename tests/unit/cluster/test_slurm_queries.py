"""What Slurm's commands print on sites that are not like the test cluster."""

from contextlib import nullcontext

import pytest
from trainyard.cluster import slurm_queries
from trainyard.utils.errors import UserError


def test_the_names_of_clusters_are_no_partitions(slurm):
    """With SLURM_CLUSTERS=alpha,beta."""
    line = "gpu*|up|1-00:00:00|4|8|16000|gpu:a100:2|nvlink"
    slurm.prints("sinfo", f"CLUSTER: alpha\n{line}\n\nCLUSTER: beta\n{line.replace('gpu*', 'long')}\n")
    assert [each.name for each in slurm_queries.list_partitions()] == ["gpu", "long"]


def test_the_names_of_clusters_are_no_state_of_a_job(slurm):
    slurm.prints("squeue", "CLUSTER: alpha\nPENDING: Resources\n\nCLUSTER: beta\n")
    assert slurm_queries.job_state("7") == "PENDING: Resources"
    slurm.prints("squeue", "CLUSTER: alpha\n\nCLUSTER: beta\n")
    assert slurm_queries.job_state("7") == ""


@pytest.mark.parametrize("line", ["slurm: a banner of the site", "gpu|up|soon|4|8|16000|(null)|(null)"])
def test_other_output_is_an_error_and_no_traceback(slurm, line):
    slurm.prints("sinfo", line)
    with pytest.raises(UserError, match="sinfo printed a line that cannot be read as a partition"):
        slurm_queries.list_partitions()


def test_the_settings_of_partitions_are_parsed(slurm):
    slurm.prints(
        "scontrol",
        "PartitionName=gpu AllowGroups=ALL QoS=N/A DefaultTime=00:20:00 GraceTime=0 PreemptMode=OFF State=UP\n"
        "PartitionName=spot AllowGroups=ALL QoS=part GraceTime=120 PreemptMode=CANCEL State=UP\n",
    )
    gpu, spot = slurm_queries.list_partition_settings()
    assert gpu == slurm_queries.PartitionSettings("gpu", qos="", preempt_mode="OFF", grace_seconds=0)
    assert spot == slurm_queries.PartitionSettings("spot", qos="part", preempt_mode="CANCEL", grace_seconds=120)


def test_variables_of_the_users_shell_change_no_output(slurm, monkeypatch):
    names = ("SLURM_TIME_FORMAT", "SQUEUE_FORMAT", "SINFO_PARTITION", "SACCT_FORMAT", "SCONTROL_ALL", "SLURM_CONF")
    slurm.runs("scontrol", f"echo {' '.join(f'${{{name}:-none}}' for name in names)}")
    for name in names:
        monkeypatch.setenv(name, "relative")
    assert slurm_queries.run_slurm_command("scontrol").split() == ["none"] * 5 + ["relative"]


def test_a_name_that_slurm_cuts_within_a_character_is_output_like_any_other(slurm):
    slurm.runs("sacct", r"printf 'na\303+\n'")
    assert slurm_queries.keeps_accounting()


@pytest.mark.parametrize(
    ("error", "is_known"), [("slurm_load_jobs error: Invalid job id specified", False), ("Socket timed out", True)]
)
def test_a_job_has_left_the_queue_only_if_slurm_says_so(slurm, error, is_known):
    slurm.fails("squeue", error)
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


def test_lines_of_comments_are_no_jobs(slurm):
    slurm.prints(
        "squeue",
        "7|RUNNING|2026-11-22T03:41:24|None|first\nsecond|/home/ann\n"
        "8|PENDING|2026-11-22T03:41:24|Priority|rule_a|/home/ann\n",
    )
    assert [job.job for job in slurm_queries.list_user_jobs()] == ["8"]


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("PartitionTimeLimit", "its walltime is above the limit of its partition"),
        ("QOSMaxWallDurationPerJobLimit", "it requests more than this limit allows a job"),
        ("AssocMaxGRESPerJob", "it requests more than this limit allows a job"),
        ("BadConstraints", "no node can satisfy its constraints"),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", ""),
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


def test_the_request_of_a_job_is_read(slurm):
    slurm.prints(
        "scontrol",
        "JobId=3 Account=(null) QOS=normal JobState=PENDING TimeLimit=01:30:00 Partition=gpu,long "
        "TRES=cpu=4,mem=8G,node=1,gres/gpu=2",
    )
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
def test_a_job_that_failed_in_its_grace_period_was_preempted(slurm, state, preempted, expected):
    slurm.prints("scontrol", PREEMPTED.format(state=state, preempted=preempted))
    assert slurm_queries.final_state("3") == expected


@pytest.mark.parametrize(("answer", "expected"), [("CANCELLED by 0\n", "CANCELLED"), ("", "")])
def test_the_accounting_knows_what_the_controller_has_forgotten(slurm, answer, expected):
    slurm.fails("scontrol", "slurm_load_jobs error: Invalid job id specified")
    slurm.prints("sacct", answer)
    assert slurm_queries.final_state("3") == expected


def user_job(state="RUNNING", *, reason="None", comment="rule_sweep_wildcards_s", folder="/home"):
    return slurm_queries.parse_user_job(f"7|{state}|2026-11-22T03:41:24|{reason}|{comment}|{folder}")


def test_jobs_are_counted_with_the_reason_for_which_they_wait():
    states = {"COMPLETED": "None", "RUNNING": "None", "PENDING": "QOSMaxGRESPerUser", "COMPLETING": "None"}
    jobs = [user_job(state, reason=reason) for state, reason in states.items()]
    jobs += [user_job("PENDING", reason="Priority")] * 2 + [user_job("PENDING", reason="PartitionTimeLimit")]
    assert slurm_queries.describe_jobs(jobs) == (
        "1 job running, 1 job pending: QOSMaxGRESPerUser, 1 job completing, 2 jobs pending: Priority, "
        "1 job pending: its walltime is above the limit of its partition"
    )


@pytest.mark.parametrize(
    ("comment", "is_of"),
    [
        ("rule_sweep_wildcards_s", True),
        ("rule_sweep_job_wildcards_s_12", True),
        ("rule_prefix_sweep_job_wildcards_s_0", True),
        ("rule_sweep_job_suffix_wildcards_s_0", True),
        ("rule_sweep_wildcards_s_0", False),
        ("rule_sweep_job_wildcards_s_0_1", False),
        ("rule_train_wildcards_s_1x2", False),
    ],
)
def test_a_job_belongs_to_a_sweep_by_its_comment(comment, is_of):
    assert user_job(comment=comment).is_of("s") is is_of


def test_the_jobs_of_a_folder_are_those_that_run_in_it_and_none_if_slurm_does_not_respond(slurm, tmp_path):
    (link := tmp_path / "link").symlink_to(tmp_path)
    line = "{}|RUNNING|2026-11-22T03:41:24|None|rule_sweep_wildcards_s|{}\n"
    slurm.prints("squeue", line.format(7, tmp_path) + line.format(8, "/home"))
    assert [job.job for job in slurm_queries.list_jobs_in(link)] == ["7"]
    slurm.fails("squeue")
    assert slurm_queries.list_jobs_in(tmp_path) == []
