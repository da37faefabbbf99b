"""Sweeps with several jobs: what Snakemake plans for them, and the program that makes their tables."""

import re

import pytest
from project import ROOT, Project
from sweep_journals import read_records, session_of
from trainyard.config.load import read_config
from trainyard.planning.plan import plan_sweep

OWN = {"function": "mine:run", "grid": {"x": [1, 2, 3, 4]}, "metric": "loss", "mode": "min"}
CONFIG = {
    "sweeps": {
        "one": {**OWN, "slots": {"gpus_per_node": 2}},
        "several": {**OWN, "slots": {"jobs": 3, "gpus_per_node": 1}},
    }
}
ON_SLURM = ("-np", "--profile", str(ROOT / "profiles/slurm"))

# A Slurm with an empty queue. A job that is submitted leaves a file.
SLURM = {
    "sbatch": "touch submitted; exit 1",
    "sinfo": "echo 'gpu*|up|1-00:00:00|4|8|16000|gpu:2|(null)'",
    "scontrol": "printf 'AccountingStorageType = accounting_storage/slurmdbd\\nMaxArraySize = 1001\\n'",
    "sacctmgr": "echo lab",
    "sacct": "echo lab",
    "squeue": "exit 0",
}


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    made.write(CONFIG)
    (tmp_path / "mine.py").write_text("def run(config, context):\n    return {'loss': config['x']}\n")
    return made


def record(project, event, *places, **content):
    """Record this end of some trials of the sweep with several jobs."""
    trials = list(plan_sweep(read_config(project.config_file), "several", project.results).state.trials)
    with session_of(project.results / "sweeps/several") as journal:
        for place in places:
            journal.append("started", trial=trials[place], attempt=1)
            journal.append(event, trial=trials[place], attempt=1, **content)


def messages(output):
    return re.findall(r"^Job \d+: (.*)$", output, re.MULTILINE)


def test_the_dry_run_shows_how_many_jobs_of_what_size_are_requested(project):
    output = project.snakemake(*ON_SLURM, "--", "sweeps")
    counts = dict(re.findall(r"^(\w+) +(\d+)$", output.split("Job stats:")[1], re.MULTILINE))
    assert counts == {
        "sweep": "1",
        "sweep_job": "3",
        "sweep_tables": "1",
        "table_sweeps": "2",
        "sweeps": "1",
        "total": "8",
    }
    assert "requests 3 jobs with 1 slot of 1 GPU and 1 CPU; " in output
    assert "; 3 GPU-hours requested (3 x 1 GPU x 60 min)" in output
    request = r"GPUs per node: 1, CPUs per node: 1, memory per node: [^,]*, walltime: 60 min"
    assert sum(bool(re.match(rf"sweep several: .*{request}", each)) for each in messages(output)) == 3


def test_what_is_set_for_sweeps_holds_for_each_of_several_jobs(project):
    options = ["--set-resources", "sweep:mem_mb=12345", "sweep:runtime=30", "--set-threads", "sweep=3"]
    output = project.snakemake(*ON_SLURM, *options, "--", "sweeps")
    request = r"CPUs per node: 3, memory per node: 12.35 GB \(as set\), walltime: 30 min"
    assert sum(bool(re.match(rf"sweep \w+: .*{request}", each)) for each in messages(output)) == 4
    assert "; 1.5 GPU-hours requested (3 x 1 GPU x 30 min)" in output


def test_trials_that_failed_run_again_if_the_tables_are_forced(project):
    record(project, "finished", 0, 1, 2, seconds=1.0, metrics={"loss": 1.0})
    record(project, "failed", 3, error="ValueError: no")
    project.run(*project.script("sweep", "--sweep", "several", "--tables"))
    folder = project.results / "sweeps/several"
    assert len((folder / "trials.csv").read_text().splitlines()) == 5
    target = "results/sweeps/several/trials.csv"
    again = messages(project.snakemake(*ON_SLURM, "--forcerun", target, "--", target))
    assert len(again) == 4, "the jobs, too: the trial that failed runs again"
    assert sum("only if it is needed" in each for each in again) == 2, "one is enough"


def test_tables_with_trials_left_to_run_let_all_jobs_run_again(project):
    """Snakemake would otherwise take the jobs for done, and end here again."""
    record(project, "finished", 0, seconds=1.0, metrics={"loss": 1.0})
    folder = project.results / "sweeps/several"
    (folder / "jobs").mkdir()
    for number in range(3):
        (folder / f"jobs/{number}.done").touch()
    done = project.run(*project.script("sweep", "--sweep", "several", "--tables"), check=False)
    assert done.returncode != 0
    assert "3 of 4 trials are without a result; the others are kept" in done.stdout + done.stderr
    assert list((folder / "jobs").iterdir()) == []
    assert not (folder / "trials.csv").exists()
    assert [each["event"] for each in read_records(folder)] == ["started", "finished", "left"], "nothing ran"


def test_a_sweep_without_a_trial_to_run_submits_no_job(project):
    (project.folder / "bin").mkdir()
    for name, text in SLURM.items():
        (project.folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (project.folder / "bin" / name).chmod(0o755)
    project.environment["PATH"] = f"{project.folder}/bin:{project.environment['PATH']}"
    record(project, "finished", 0, 1, 2, 3, seconds=1.0, metrics={"loss": 1.0})
    output = project.snakemake(*ON_SLURM[1:], "--", "results/sweeps/several/trials.csv")
    assert output.count("is done: no trial is left for it") == 3
    assert (project.results / "sweeps/several/trials.csv").exists()
    assert not (project.folder / "submitted").exists()
    assert "Nothing to be done" in project.snakemake(*ON_SLURM, "--", "results/sweeps/several/trials.csv")
