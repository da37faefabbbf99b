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
