"""What `check` says of jobs on a cluster, whose commands print what a test wants."""

import json
import sys

import pytest
from project import ROOT

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
