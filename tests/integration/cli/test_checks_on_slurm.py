"""What `check` and the doctor say of jobs on a cluster, whose commands print what a test wants."""

import json
import sys

import pytest
from project import ROOT
from sweep_journals import record_attempt, session_of
from trainyard.checks.sbatch_requests import request_jobs
from trainyard.config.load import check_config
from trainyard.planning.plan import plan_sweep

SWEEP = {"command": "echo {lr}", "grid": {"lr": [0.1]}, "workdir": "trial", "slots": {"gpus_per_node": 1}}
NODES = "gpu*|up|1-00:00:00|4|8|16000|gpu:2|(null)"
PROFILE = {"executor": "slurm", "jobs": 1}


@pytest.fixture
def site(slurm, project):
    """The project on a cluster with a partition `gpu`; its profile `slurm` names another one."""
    slurm.prints("sinfo", NODES)
    slurm.prints("sacctmgr", "lab")
    slurm.prints("sacct", "")
    slurm.runs("sbatch", "echo invalid partition specified: nope; exit 1")
    (project.folder / "trainyard.yaml").write_text(json.dumps({"sweeps": {"s": SWEEP}}))
    (project.folder / "profiles/slurm").mkdir(parents=True)
    defaults = {"slurm_account": "lab", "slurm_partition": "nope", "runtime": 60}
    profile = json.dumps(PROFILE | {"default-resources": defaults})
    (project.folder / "profiles/slurm/config.yaml").write_text(profile)
    return project


def test_check_names_a_partition_that_does_not_exist(site):
    done = site.run(sys.executable, str(ROOT / "scripts/check.py"), "--profile", "slurm", "--json", check=False)
    assert done.returncode == 1, done.stdout
    (failure,) = [each for each in json.loads(done.stdout)["findings"] if each["verdict"] == "fails"]
    assert failure["message"] == "there is no partition 'nope'"
    assert "set slurm_partition in the profile; available: gpu (4 nodes" in failure["remedy"]


def test_the_gpus_of_a_sweep_are_tested_once_nothing_is_pending(site, monkeypatch):
    (trial,) = plan_sweep(check_config({"sweeps": {"s": SWEEP}}), "s", site.results).state.trials
    with session_of(site.results / "sweeps/s") as journal:
        record_attempt(journal, trial, seconds=1.0)
    monkeypatch.chdir(site.folder)
    requests, refused = request_jobs(site.folder / "trainyard.yaml", site.folder / "profiles/slurm")
    assert not refused
    (request,) = requests
    assert (request.job, request.gpus) == ("sweep s, nothing pending", "1")
