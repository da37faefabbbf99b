"""What the doctor's job really reports from this machine, as a node and as a job."""

import os
import shutil
import subprocess

import pytest
from trainyard.checks import node_probe
from trainyard.checks.node_probe import LOCK, NONCE, read_job, read_nodes
from trainyard.planning.claims import ClaimLog
from trainyard.utils.files import write_json
from trainyard.utils.import_path import helper_command
from trainyard.utils.locks import hold


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_node_reports_locks_and_cpus_truthfully(tmp_path):
    write_json(tmp_path / NONCE, "right")
    ClaimLog(tmp_path).append("login node")
    probe = [*helper_command("checks.node_probe"), "node", str(tmp_path)]
    with hold(tmp_path / LOCK):
        subprocess.run(["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), *probe], check=True)
    (report,) = read_nodes(tmp_path)
    assert (report.nonce, report.lock_held, report.tmp_executes, report.cpus) == ("right", True, True, 1)
    assert report.machine_cpus > 1
    assert report.ray
    assert not report.import_error
    node_probe.probe_node(tmp_path)
    (free,) = read_nodes(tmp_path)
    assert (free.lock, free.lock_held) == ("", False)
    assert (report.claims, free.claims) == ("", "")
    assert [entry.session for entry in ClaimLog(tmp_path).read()] == ["login node", report.node, report.node]
    shutil.rmtree(tmp_path / "claims")  # as on a node that does not see the folder of the login node
    node_probe.probe_node(tmp_path)
    assert "was written a second time" in next(read_nodes(tmp_path)).claims


def test_outside_of_slurm_the_job_reports_that_there_is_none(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    subprocess.run([*helper_command("checks.node_probe"), "job", str(tmp_path)], check=True, env=environment)
    report = read_job(tmp_path)
    assert report is not None
    assert "SLURM_JOB_ID is not set" in report.slurm_error
