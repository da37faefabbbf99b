"""Jobs that sbatch refuses, and jobs that end before their program starts: the summary says why."""

import re
import sys

import pytest
import yaml
from project import ROOT
from submitting import nothing_is_left, snakemake_command

CONFIG = {"sweeps": {"s": {"command": "echo {lr} > {trial_dir}/log", "grid": {"lr": [0.1, 0.2]}}}}
REFUSALS = {
    "slurm_partition=nope": "invalid partition specified: nope",
    "constraint=nope": "Invalid feature specification",
    "mem_mb=10000000": "Memory specification can not be satisfied",
}


def run(cluster, folder, config, *options):
    """The output of a run that fails, and its summary, which is the only output on standard output."""
    done = cluster.run(snakemake_command(folder, config, *options), cwd=folder, check=False)
    assert done.returncode == 1, done.stdout
    assert done.stdout.startswith("Trainyard: ended before everything was done")
    return done.stdout + done.stderr, done.stdout


@pytest.mark.parametrize("setting", REFUSALS)
def test_what_sbatch_says_is_in_the_summary_and_nothing_is_retried(cluster, shared_dir, setting):
    output, summary = run(cluster, shared_dir, CONFIG, "--set-resources", f"sweep:{setting}", "--", "sweeps")
    words = REFUSALS[setting]
    assert re.search(f"failed    sweep s: its job cannot be submitted: .*{words}", summary)
    assert re.search(rf"The job of sweep s cannot be submitted, and is not retried: .*{words}", output)
    assert "sbatch call" not in output
    assert "Trying to restart" not in output


def test_a_plan_names_what_sbatch_would_refuse(cluster, shared_dir):
    command = snakemake_command(shared_dir, CONFIG, "-n", "--set-resources", "sweep:slurm_partition=nope", "--", "all")
    done = cluster.run(command, cwd=shared_dir)
    (line,) = [line for line in (done.stdout + done.stderr).splitlines() if "nope" in line]
    assert line.startswith("sweep s: there is no partition 'nope'")
    assert "available: gpu " in line


@pytest.mark.parametrize(("partition", "code"), [("nope", 1), ("gpu", 0)])
def test_trainyard_plan_fails_if_sbatch_would_refuse_a_job(cluster, shared_dir, partition, code):
    (shared_dir / "trainyard.yaml").write_text(yaml.safe_dump(CONFIG))
    program = [sys.executable, str(ROOT / "scripts/trainyard/cli/commands.py"), "plan", "--profile", "slurm"]
    for as_json in ([], ["--json"]):
        command = [*program, "--set-resources", f"sweep:slurm_partition={partition}", *as_json]
        done = cluster.run(command, cwd=shared_dir, check=False)
        assert done.returncode == code, done.stderr


def test_a_folder_that_the_nodes_do_not_see_is_named(cluster, tmp_path):
    _, summary = run(cluster, tmp_path, CONFIG, "--retries", "0", "--", "sweeps")
    (job,) = re.findall(r"failed    sweep s: Slurm job (\d+) ended before its program started\n", summary)
    log = tmp_path / f"results/logs/slurm/rule_sweep/s/{job}.log"
    assert f"{log}: Slurm could not write it: does the node see this folder?" in summary
    nothing_is_left(cluster)


def test_a_job_without_its_environment_module_ends_and_says_so(cluster, shared_dir):
    config = CONFIG | {"env_modules": ["nomodule/1.0"]}
    _, summary = run(cluster, shared_dir, config, "--retries", "0", "--sdm", "env-modules", "--", "sweeps")
    (job,) = re.findall(r"failed    sweep s: Slurm job (\d+) ended before its program started\n", summary)
    tail = summary.partition(f"results/logs/slurm/rule_sweep/s/{job}.log:\n")[2]
    assert "module: command not found" in tail
    assert "Error in rule" not in tail
    nothing_is_left(cluster)
