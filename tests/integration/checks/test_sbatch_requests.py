"""The sbatch lines of a config come from Snakemake's Slurm plugin; nothing is run, removed or submitted."""

import os

import pytest
import yaml
from project import ROOT, TINY
from sweep_journals import record_attempt, session_of
from trainyard.checks.sbatch_requests import first_error, request_jobs
from trainyard.config.load import check_config
from trainyard.planning.plan import plan_sweep

# What the plugin and the profile query of Slurm. A job that is really submitted leaves a file.
SLURM = {
    "sbatch": 'case "$*" in *--test-only*) echo "Job 7 to start at 2026-11-21T03:12:36";; *) touch submitted;; esac',
    "sinfo": 'case "$*" in "-o %P") echo "gpu*";; *) echo "gpu*|up|1-00:00:00|4|8|16000|gpu:a100:2|nvlink";; esac',
    "scontrol": "printf 'AccountingStorageType = accounting_storage/slurmdbd\\nMaxArraySize = 1001\\n'",
    "sacctmgr": 'case "$*" in *"list user"*) echo lab;; esac',
    "sacct": "echo lab",
    "squeue": "exit 1",
}
CONFIG = {
    **TINY,
    "sweeps": {
        "s": {**TINY["sweeps"]["lr"], "slots": {"gpus_per_node": 2}},
        "several": {**TINY["sweeps"]["lr"], "slots": {"jobs": 3, "gpus_per_node": 1}},
    },
    "scaling": {"x": {"dataset": "tiny", "train": {"model": "cnn", "batch_size": 16}, "scales": ["1x1"]}},
}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with a config, on a site whose Slurm tests lines; returns a function that takes the profile's lines."""
    (tmp_path / "bin").mkdir()
    for name, text in SLURM.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    folder = tmp_path / "it's mine"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "profile").mkdir()
    shipped = (ROOT / "profiles/slurm/config.yaml").read_text()

    def request(lines="", **replaced):
        text = shipped
        for name, value in replaced.items():
            text = text.replace(f"  # {name}: ", f"  {name}: {value} # ").replace(f"{name}: slurm", f"{name}: {value}")
        (folder / "profile/config.yaml").write_text(f"{text}\n{lines}\n")
        return request_jobs(check_config(CONFIG), folder / "config.yaml", folder / "profile")

    yield request
    assert not (folder / "submitted").exists()


def test_every_job_has_the_line_of_a_run_also_if_it_is_done(site, tmp_path):
    done = tmp_path / "it's mine/results/sweeps/s/trials.csv"
    done.parent.mkdir(parents=True)
    done.write_text("trial\n")
    with session_of(done.parent) as journal:
        for trial in plan_sweep(check_config(CONFIG), "s", done.parents[2]).state.trials:
            record_attempt(journal, trial)
    requests, refusals = site(slurm_account="lab", gpu_type="a100")
    assert refusals == {}
    assert {each.job: each.dataset for each in requests} == {
        "stage tiny": None,
        "sweep s": "tiny",
        "sweep_job several_0": "tiny",
        "train x_1x1": "tiny",
    }
    sweep = next(each for each in requests if each.job == "sweep s")
    assert sweep.accepted
    assert sweep.response == "Job 7 to start at 2026-11-21T03:12:36"
    assert str(sweep).startswith("1 node, 2 CPUs, 2 a100 GPUs per node")
    assert (sweep.options.account, sweep.options.partition) == ("lab", "gpu")
    assert done.read_text() == "trial\n"
    assert [each.name for each in done.parents[2].iterdir()] == ["sweeps"], "nothing was run"


def test_what_the_plugin_refuses_is_named_in_its_own_words(site):
    requests, refusals = site("set-resources:\n  train: {slurm_account: labb}\n", slurm_account="lab")
    assert [each.job for each in requests] == ["stage tiny", "sweep s", "sweep_job several_0"]
    ((error, jobs),) = refusals.items()
    assert jobs == ["train x_1x1"]
    assert "The given account labb appears to be invalid" in error


@pytest.mark.parametrize(
    ("lines", "replaced", "message"),
    [
        ("slurm-partition-config: gone.yaml", {}, "WorkflowError:\nPartition configuration file not found"),
        ("", {"gpu_type": "'a 100'"}, "UserError: gpu_type: 'a 100' is not a GPU type"),
        ("", {"executor": "local"}, "the executor is local: set `executor: slurm` in the profile"),
    ],
)
def test_if_snakemake_itself_fails_its_error_is_shown(site, lines, replaced, message):
    requests, refusals = site(lines, **replaced)
    assert requests == []
    ((error, jobs),) = refusals.items()
    assert jobs == ["any job"]
    assert message in error


def test_the_first_error_is_shown_or_the_last_lines():
    crash = "Building DAG of jobs...\nUserError: 1 mistake:\n  sweeps.s.train: wrong\n"
    assert first_error(crash) == crash.partition("\n")[2].strip()
    assert first_error("\n".join("abcdefg")) == "c\nd\ne\nf\ng"
