"""Trainyard as a wheel on a cluster: from an empty folder to the report, with the profile of `trainyard init`."""

import re

import pytest
from installing import SCRIPT, installed_project
from submitting import nothing_is_left
from trainyard.config.parser import read_file

pytestmark = pytest.mark.slow


def test_a_script_goes_from_nothing_to_a_report(cluster, shared_dir):
    (shared_dir / "work").mkdir()
    project = installed_project(shared_dir / "environment", shared_dir / "work")
    (project.folder / "train.py").write_text(SCRIPT)

    environment = {name: project.environment[name] for name in ("PATH", "PWD")}

    def trainyard(*words, check=True):
        command = [str(project.root / "bin/trainyard"), *words]
        done = cluster.run(command, cwd=project.folder, env=environment, check=check)
        return done.stdout + done.stderr

    assert "wrote profiles/slurm/config.yaml" in trainyard("init")
    profile = read_file(project.folder / "profiles/slurm/config.yaml")
    assert profile["default-resources"]["slurm_partition"]
    said = trainyard("doctor", "--job", check=False)
    assert re.search(r"Python +ok +n1: Python .*, torch \(not installed\), Ray", said)
    assert "sweep train: 20 of 20 trials pending" in trainyard("plan", "--profile", "slurm")
    output = trainyard("run", "--profile", "slurm")
    assert "sweep train: 20 trials finished, 0 failed" in output
    assert re.search("write the report: trainyard report$", output, re.MULTILINE)
    (log,) = (project.folder / "results/logs/slurm").rglob("*.log")
    assert "Slurm" in log.read_text()
    trainyard("report")
    assert (project.folder / "report.html").exists()
    nothing_is_left(cluster)
