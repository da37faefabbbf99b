"""The doctor on a real Slurm: it tests the sbatch lines that would be submitted, and checks a node from inside."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from slurm_cluster.cluster import Cluster
from yard import ROOT, TINY

SLOTS = {"nodes": 2, "gpus_per_node": 2}
CONFIG = {**TINY, "sweeps": {"s": {**TINY["sweeps"]["lr"], "slots": SLOTS}}, "trees": {"t": {"dataset": "tiny"}}}


def doctor(cluster: Cluster, folder: Path, *options: str, **site: str) -> subprocess.CompletedProcess:
    """Run it on CONFIG with the shipped profile, in which these default resources are set."""
    text = (ROOT / "profiles/slurm/config.yaml").read_text()
    for name, value in site.items():
        text, found = re.subn(rf"^  (# )?{name}: .*$", f"  {name}: {value}", text, flags=re.MULTILINE)
        assert found == 1
    (folder / "profile").mkdir(exist_ok=True)
    (folder / "profile/config.yaml").write_text(text)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    command = [sys.executable, f"{ROOT}/scripts/doctor.py", "--config", "config.yaml", "--profile", "profile"]
    return cluster.run([*command, *options], cwd=folder, check=False)


def line_of(output: str, name: str) -> str:
    return next(line for line in output.splitlines() if line.startswith(name))


def test_a_good_site_passes_and_a_node_is_checked_from_inside(cluster, shared_dir):
    done = doctor(cluster, shared_dir, "--job", slurm_account="lab", gpu_type="a100")
    output = done.stdout
    for name in ("Slurm", "accounting", "account", "sweep_on_nodes s", "fit_trees t", "free space", "node", "Python"):
        assert line_of(output, f"{name} ").split()[len(name.split())] == "ok", output
    output = " ".join(output.split())  # without line breaks
    assert "2 nodes, 2 CPUs, 2 a100 GPUs per node, 8000 MB, 60 min, partition gpu; could start" in output
    assert re.search(r"submitted job \d+: sbatch .*--nodes=2 .*--account=lab .*--gres=gpu:a100:1", output)
    assert re.search(r"node +ok +Slurm job \d+ on n1, n2; GPUs per node: 1 a100", output)
    assert "n1 reads and writes here" in output
    assert "eth0 reaches n2" in output
    assert re.search(r"GPU +FAILS +Slurm allocated a GPU, but the node has no NVIDIA driver", output), "fake GPUs"
    assert done.returncode == 1
    assert list((shared_dir / "results").iterdir()) == [], "nothing is left"


# What is wrong in the profile, and the messages about it.
WRONG = [
    ({"slurm_account": "labb"}, ["The given account labb appears to be invalid. Available accounts"]),
    (
        {"runtime": "1441", "gpu_type": "h100"},
        [
            "fit_trees t FAILS .* above the limit of gpu, 1-00:00:00",
            "sweep_on_nodes s FAILS .* 2 h100 GPUs .* Requested node configuration is not available",
            "request what is available: gpu .*; preempt ",
        ],
    ),
]


@pytest.mark.parametrize(("site", "words"), WRONG, ids=["account", "walltime and GPU type"])
def test_what_is_wrong_fails_with_a_remedy_and_no_job_is_submitted(cluster, shared_dir, site, words):
    done = doctor(cluster, shared_dir, "--job", **site)
    assert done.returncode == 1
    output = " ".join(done.stdout.split())
    assert all(re.search(each, output) for each in words), done.stdout
    assert "no job was submitted because a check failed" in done.stdout
    assert cluster.run(["squeue", "--noheader"]).stdout == ""
