"""The stand-in for sbatch, which never lets the true one run, and the jobs that do not reach it."""

import os
import subprocess

import pytest
from trainyard.checks import sbatch_rehearsal
from trainyard.checks.sbatch_rehearsal import Refusal, WorkflowJob
from trainyard.checks.sbatch_stand_in import sbatch_stand_in
from trainyard.utils.errors import UserError

TRUE = """#!/bin/sh
case "$1" in
    --test-only) echo "Job 7 to start at 2026-11-21T03:12:36"; exit 3;;
    *) touch "$SUBMITTED";;
esac
"""


OTHERS = {"sinfo": "#!/bin/sh\necho nodes\n", "squeue": "#!/bin/sh\nexit 1\n"}


@pytest.fixture
def true_sbatch(tmp_path, monkeypatch):
    """The only sbatch on PATH, in a folder with other programs; it leaves a file if it is not only to test."""
    folder = tmp_path / "site's $HOME bin"
    folder.mkdir()
    for name, text in {"sbatch": TRUE, "scancel": TRUE, **OTHERS}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("SUBMITTED", str(tmp_path / "submitted"))
    yield
    assert not (tmp_path / "submitted").exists()


def run(line, stand_in):
    return subprocess.run(line, shell=True, env=stand_in.environment, text=True, capture_output=True, check=False)


def test_a_request_is_tested_and_recorded_and_nothing_is_submitted(tmp_path, true_sbatch):
    odd = tmp_path / "a 'b' $HOME"
    odd.mkdir()
    with sbatch_stand_in([odd]) as stand_in:
        assert stand_in.folder.parent == odd
        assert run("sbatch --comment 'rule_x' --wrap=\"echo 'a b'\"", stand_in).returncode == 1
        assert run("sinfo", stand_in).stdout == "nodes\n", "other programs of the same folder are found"
        assert run("squeue", stand_in).returncode == 0, "Snakemake would wait for Slurm"
        assert stand_in.records() == [
            ["3", "Job 7 to start at 2026-11-21T03:12:36", "--comment", "rule_x", "--wrap=echo 'a b'"]
        ]
    assert list(odd.iterdir()) == []


@pytest.mark.parametrize("program", ["sbatch", "scancel"])
def test_a_stand_in_that_cannot_be_executed_is_not_replaced_by_the_true_program(tmp_path, true_sbatch, program):
    with sbatch_stand_in([tmp_path]) as stand_in:
        (stand_in.folder / "bin/sbatch").chmod(0o644)
        assert run(f"{program} x", stand_in).returncode in (126, 127)


def test_the_next_folder_is_used_if_one_is_missing_or_something_else_answers(tmp_path, true_sbatch):
    for name in ("missing", "with:colon", "good"):
        (tmp_path / name).mkdir()
    (tmp_path / "missing").rmdir()
    with sbatch_stand_in([tmp_path / "missing", tmp_path / "with:colon", tmp_path / "good"]) as stand_in:
        assert stand_in.folder.parent == tmp_path / "good"
    assert list((tmp_path / "with:colon").iterdir()) == []


def test_folders_on_path_that_cannot_be_entered_or_listed_are_no_error(tmp_path, true_sbatch, monkeypatch):
    def listdir(folder):
        if "site's" in str(folder):
            raise PermissionError(13, "Permission denied", str(folder))
        return list_names(folder)

    list_names = os.listdir
    monkeypatch.setenv("PATH", f"/{'x' * 300}:{os.environ['PATH']}")
    with sbatch_stand_in([tmp_path]) as stand_in:
        assert run("sinfo", stand_in).stdout == "nodes\n"
    monkeypatch.setattr(os, "listdir", listdir)
    with sbatch_stand_in([tmp_path]) as stand_in:
        assert run("sbatch x", stand_in).returncode == 1
        assert run("sinfo", stand_in).stdout != "nodes\n", "it cannot be linked"


def test_without_a_folder_that_permits_execution_nothing_is_rehearsed(tmp_path, true_sbatch):
    with (
        pytest.raises(UserError, match=r"no program can be executed in .*gone \(mounted noexec\?\): set TMPDIR"),
        sbatch_stand_in([tmp_path / "gone"]),
    ):
        pass


# As Snakemake 9.27 prints it, shortened.
OUTPUT = """\
Exception in run_job for rule train: Invalid GPU model format: a100-80gb. Expected format: '<name>' (e.g., 'tesla')
[Sun Nov 22 03:44:19 2026]
Error in rule train:
    message: Job submission failed with exception: Invalid GPU model format: a100-80gb. Expected format: '<name>'\
 (e.g., 'tesla')For further error details see the cluster/cloud log and the log files of the involved rule(s).
    jobid: 2
    input: results/data/tiny/meta.json
    output: results/scaling/x/1x1/summary.json, results/scaling/x/1x1/history.csv
    log: results/logs/train/x-1x1.log (check log file(s) for error details)
Error in rule train:
    message: SLURM sbatch failed. The error message was 'tested'.
    sbatch call:
        sbatch --parsable
For further error details see the cluster/cloud log and the log files of the involved rule(s).
    jobid: 3
    output: results/scaling/x/1x2/summary.json, results/scaling/x/1x2/history.csv
"""


def test_the_plugins_own_words_are_found_for_each_job():
    one, other = (WorkflowJob("train", f"x_{run}", f"results/scaling/x/{run}/summary.json") for run in ("1x1", "2x1"))
    words = "Invalid GPU model format: a100-80gb. Expected format: '<name>' (e.g., 'tesla')"
    assert sbatch_rehearsal.find_words(one, OUTPUT) == words
    crash = (
        "Building DAG of jobs...\nUserError: 1 mistake, found before anything was submitted:\n  sweeps.s.train: wrong\n"
    )
    assert sbatch_rehearsal.find_words(other, crash) == crash.partition("\n")[2].strip()
    found = [("train x_1x1", words), ("train x_2x1", "other"), ("train x_4x1", words)]
    expected = [Refusal(("train x_1x1", "train x_4x1"), words), Refusal(("train x_2x1",), "other")]
    assert list(sbatch_rehearsal.group_refusals(found)) == expected


def test_a_planned_job_is_recognized():
    assert WorkflowJob("train", "x_4x2", "").is_of("train_on_nodes x_4x2")
    assert not WorkflowJob("train", "x_4x2", "").is_of("sweep x_4x2")
