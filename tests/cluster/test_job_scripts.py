"""What the scripts of jobs run: the program of one of Trainyard's own rules, or what the plugin has other rules run."""

import re
import sys
from pathlib import Path

import pytest
from project import ROOT
from slurm_cluster.cluster import Cluster
from submitting import nothing_is_left, snakemake, snakemake_command

pytestmark = pytest.mark.slow

# Slurm's variables as a rule sees them; two jobs of a group; a rule that starts its own step with two tasks.
RULES = f"""
import sys
sys.path.insert(0, "{ROOT}/scripts")
if config["own"]:
    from trainyard.cli import slurm_executor
    slurm_executor.register()

rule all:
    localrule: True
    input: "plain", "grouped", "tasks"

rule plain:
    output: "plain"
    threads: 2
    resources: mem_mb=500
    shell: "env | grep -E '^S(LURM|RUN|BATCH)_' | sort > plain; nproc >> plain"

rule first:
    output: "in-group"
    group: "several"
    shell: "hostname > in-group"

rule second:
    input: "in-group"
    output: "grouped"
    group: "several"
    shell: "cat in-group in-group > grouped"

rule tasks:
    output: "tasks"
    resources: mpi="srun", tasks=2, nodes=2, mem_mb=500
    shell: "{{resources.mpi}} hostname > tasks"
"""
# What differs between two jobs.
CHANGING = "JOB_ID|JOBID|JOB_UID|STEP_ID|STEPID|COMM_PORT|LAUNCHER_PORT|LAUNCH_NODE|TASK_PID|TIME|JOB_NAME|SUBMIT_DIR"


@pytest.fixture(scope="module")
def folders(cluster: Cluster) -> dict[bool, Path]:
    """The folders of two runs: by Trainyard's executor, and by the plugin alone."""
    found = {}
    for own in (True, False):
        found[own] = folder = cluster.shared / f"job-scripts-{own}"
        folder.mkdir()
        (folder / "Snakefile").write_text(RULES)
        options = ["--default-resources", "slurm_partition=gpu", "runtime=5", "mem_mb=200"]
        command = snakemake_command(folder, {"own": own}, *options, snakefile=folder / "Snakefile")
        cluster.run(command, cwd=folder)
        nothing_is_left(cluster)
    return found


# Prints the parents of the processes that run a program of Trainyard or Snakemake on this host.
PARENTS = """
import pathlib
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    words = (folder / "cmdline").read_text().split("\\0")
    program = [word for word in words if word.endswith(("/sweep.py", "snakemake"))]
    if program and "srun" not in words:
        parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        print(pathlib.Path("/proc", parent, "comm").read_text().strip(), "started", program[0], flush=True)
"""


@pytest.mark.parametrize("site", ["cluster", "second_site"])
def test_the_first_process_of_a_step_is_the_program_of_the_rule(request, site):
    cluster = request.getfixturevalue(site)
    folder = cluster.shared / "first-process"
    folder.mkdir()
    (folder / "train.py").write_text(PARENTS)
    sweep = {"command": f"{sys.executable} train.py {{lr}}", "grid": {"lr": [0.1]}, "slots": {"gpus_per_node": 1}}
    snakemake(cluster, folder, {"sweeps": {"s": sweep}}, "--", "sweeps")
    nothing_is_left(cluster)
    (output,) = folder.glob("results/sweeps/s/trials/*/output-1.log")
    started = output.read_text().splitlines()
    assert f"slurmstepd started {ROOT}/scripts/sweep.py" in started
    assert not [line for line in started if "snakemake" in line]
    (log,) = folder.glob("results/logs/slurm/rule_sweep/s/*.log")
    assert "Snakemake version" not in log.read_text()


def test_jobs_of_other_rules_are_those_of_the_plugin(folders):
    def starts(own):
        return [log.read_text().count("Snakemake version") for log in folders[own].rglob("rule_*/*.log")]

    assert starts(own=True) == starts(own=False) == [2, 2]


def test_a_rule_sees_the_same_variables_of_slurm_as_with_the_plugin(folders):
    def variables(own):
        lines = (folders[own] / "plain").read_text().splitlines()
        return {line for line in lines if not re.search(CHANGING, line.split("=")[0])}

    assert variables(own=True) - {"SBATCH_OPEN_MODE=append"} == variables(own=False)
    assert "2" in variables(own=True), "nproc prints the CPUs of the step"


def test_jobs_of_a_group_and_steps_of_a_rule_run_as_with_the_plugin(folders):
    for own in (True, False):
        assert len((folders[own] / "grouped").read_text().splitlines()) == 2
        assert sorted((folders[own] / "tasks").read_text().splitlines()) == ["n1", "n2"]
