"""What the doctor's job really reports from this machine, as a node and as a job."""

import os
import shutil
import subprocess

import pytest
from trainyard.checks import node_probe
from trainyard.checks.node_probe import LOCK, JobReport, read_job, read_nodes
from trainyard.planning.claims import ClaimLog
from trainyard.utils.import_path import helper_command
from trainyard.utils.locks import hold


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_node_reports_locks_and_cpus_truthfully(tmp_path):
    JobReport(cpus_per_node=2).write(tmp_path)
    ClaimLog(tmp_path).append("login node")
    probe = [*helper_command("checks.node_probe"), "node", str(tmp_path)]
    with hold(tmp_path / LOCK):
        subprocess.run(["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), *probe], check=True)
    ((node, found),) = read_nodes(tmp_path).items()
    assert {each.name: each.verdict for each in found} == {
        "locks": "ok",
        "shared files": "ok",
        "temporary files": "ok",
        "CPUs": "fails",
        "Python": "ok",
        "GPU": "ok",
    }
    node_probe.probe_node(tmp_path)
    free = {each.name: each for each in read_nodes(tmp_path)[node]}
    assert (free["locks"].verdict, free["shared files"].verdict, free["CPUs"].verdict) == ("warns", "ok", "ok")
    assert [entry.session for entry in ClaimLog(tmp_path).read()] == ["login node", node, node]
    shutil.rmtree(tmp_path / "claims")  # as on a node that does not see the folder of the login node
    node_probe.probe_node(tmp_path)
    (shared,) = [each for each in read_nodes(tmp_path)[node] if each.name == "shared files"]
    assert (shared.verdict, "was written a second time" in shared.message) == ("fails", True)


def test_outside_of_slurm_the_job_reports_that_there_is_none(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    subprocess.run([*helper_command("checks.node_probe"), "job", str(tmp_path)], check=True, env=environment)
    report = read_job(tmp_path)
    assert report is not None
    assert ["SLURM_JOB_ID is not set" in each.message for each in report.findings] == [True]
