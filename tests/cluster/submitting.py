"""Run Trainyard on the cluster as a user on its login node does."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from project import ROOT
from slurm_cluster.cluster import DEFAULT_STATE, Cluster
from slurm_cluster.hosts import job_environment
from slurm_cluster.prerequisites import PrerequisiteMissing
from slurm_cluster.site import FIRST, Site
from slurm_cluster.waiting import wait_until

NO_CLUSTER = "no Slurm cluster: "
# Snakemake that polls the queue every second. The plugin adds ten seconds to the interval with each poll.
IMPATIENT = """
import sys
from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

Executor.next_seconds_between_status_checks = property(lambda self: 1, lambda self, seconds: None)
main(sys.argv[1:])
"""

# A Snakefile without Trainyard's programs: a job records its start, and ends once there is a file `go-<output>`.
GATED_JOBS = f"""
import sys
sys.path.insert(0, "{ROOT}/scripts")
from trainyard.cli import slurm_executor
slurm_executor.register()

rule work:
    output: "{{name}}"
    params: lambda wildcards: config.get(wildcards.name)
    shell:
        "trap 'exit 1' TERM; echo {{output}} >> starts; "
        "until [ -e go-{{output}} ]; do sleep 0.1; done; touch {{output}}"
"""


@contextmanager
def cluster_or_skip(site: Site = FIRST, *, name: str = "") -> Iterator[Cluster]:
    """A cluster of this process of pytest; on machines that cannot run one, skip the test or, under CI, fail.

    All but the first site need a name.
    """
    state = os.environ.get("TRAINYARD_CLUSTER", DEFAULT_STATE), os.environ.get("PYTEST_XDIST_WORKER"), name
    with ExitStack() as stack:
        try:
            running = stack.enter_context(Cluster(Path("-".join(filter(None, state))), site=site))
        except PrerequisiteMissing as missing:
            refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
            refuse(f"{NO_CLUSTER}{missing}")
        yield running


def snakemake(cluster: Cluster, folder: Path, config: dict, *options: str) -> str:
    """Run a config on the Slurm profile in a folder of the shared file system; returns the output."""
    done = cluster.run(snakemake_command(folder, config, *options), cwd=folder, env={"PYTHONPATH": str(folder)})
    return done.stdout + done.stderr


@contextmanager
def snakemake_in_background(
    cluster: Cluster, folder: Path, config: dict, *options: str, snakefile: Path = ROOT / "Snakefile"
) -> Iterator[subprocess.Popen[str]]:
    """Snakemake as it runs; it is killed at the end. Its output goes to the file snakemake.out."""
    command = cluster.command(snakemake_command(folder, config, *options, snakefile=snakefile), cwd=folder)
    with (folder / "snakemake.out").open("w") as output:
        environment = job_environment({"PYTHONPATH": str(folder)})
        started = subprocess.Popen(command, env=environment, text=True, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def snakemake_command(folder: Path, config: dict, *options: str, snakefile: Path = ROOT / "Snakefile") -> list[str]:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    program = [sys.executable, "-c", IMPATIENT, "--snakefile", str(snakefile)]
    common = ["--profile", str(ROOT / "profiles/slurm"), "--configfile", "config.yaml", "--latency-wait", "5"]
    common += ["--slurm-init-seconds-before-status-checks", "1"]
    return [*program, *common, *options]


# The duration of a trial is proportional to its blocks.
TIMED = """
import time

def run(config, context):
    time.sleep({seconds} * config["blocks"])
    context.report(val_accuracy=0.5)
"""


def depth_sweep_twice(cluster: Cluster, folder: Path, *, seconds_per_block: float) -> tuple[Path, Path]:
    """Run 20 trials of 4 to 80 blocks without measurements, then again with the journal of the first run.

    Returns the folders with the results of the two runs, on one GPU and on two.
    """
    results = []
    for run, gpus in enumerate((1, 2)):
        place = folder / f"run-{run}"
        place.mkdir()
        (place / "timed.py").write_text(TIMED.format(seconds=seconds_per_block))
        results.append(place / "results/sweeps/depth")
        if run:
            for shared in ("sessions", "claims"):
                shutil.copytree(results[0] / shared, results[run] / shared)
        sweep = {
            "function": "timed:run",
            "grid": {"blocks": {"start": 4, "stop": 80, "step": 4}},
            "slots": {"gpus_per_node": gpus},
            "retrain": run,
        }
        snakemake(cluster, place, {"sweeps": {"depth": sweep}, "pricing": {"gpu_hour": 2.5}}, "--", "sweeps")
        nothing_is_left(cluster)
    return results[0], results[1]


def run_on_two_nodes(cluster: Cluster, folder: Path, script: str, *, cpus: int) -> None:
    """Run a script as one job with two GPUs on each of two nodes; it must complete and leave no process."""
    shape = ["--nodes=2", "--ntasks-per-node=1", f"--cpus-per-task={cpus}", "--gres=gpu:2"]
    job = cluster.submit(script, *shape, cwd=folder)
    ended = cluster.wait_for_job(job)
    assert ended.state == "COMPLETED", (folder / f"slurm-{job}.out").read_text()
    nothing_is_left(cluster)


def nothing_is_left(cluster: Cluster) -> None:
    """Wait until Slurm has released all hosts: it records the end of a job before its last processes have ended."""
    wait_until(lambda: set(cluster.host_states().values()) == {"idle"}, what="all hosts to be idle")
    wait_until(lambda: not cluster.processes_left(), what="all processes to end")
    assert cluster.gpus_allocated() == 0
