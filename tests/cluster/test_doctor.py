"""The doctor on a real Slurm: it tests the sbatch lines that would be submitted, and checks nodes from inside."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from project import ROOT, TINY
from slurm_cluster.cluster import Cluster

pytestmark = pytest.mark.slow

SLOTS = {"gpus_per_node": 2}
OWN = {"function": "beside_the_config:run", "grid": {"lr": [0.1]}, "slots": {"gpus_per_node": 1}}
CONFIG = {
    **TINY,
    "sweeps": {"s": {**TINY["sweeps"]["lr"], "slots": SLOTS}, "own": OWN},
    "scaling": {"x": {"dataset": "tiny", "train": {"model": "cnn", "batch_size": 16}, "scales": ["2x2"], "repeats": 2}},
}
JOBS = ("stage tiny", "sweep own", "sweep s", "train x_2x2", "x_2x2_repeat-2")
PARTITIONS = {"gpu": {"max_runtime": 1440, "max_threads": 8, "max_gpu": 2, "available_gpu_models": ["a100"]}}
# A folder of the login node alone, on which no program can be executed.
NOEXEC = 'mount -t tmpfs -o noexec tmpfs "$TMPDIR" && exec "$@"'


def doctor(
    cluster: Cluster, folder: Path, temporary: Path, *options: str, lines: str = "", **site: str
) -> subprocess.CompletedProcess[str]:
    """Run it on CONFIG with the shipped profile, in which these default resources are set, and lines appended."""
    text = (ROOT / "profiles/slurm/config.yaml").read_text()
    for name, value in site.items():
        text, found = re.subn(rf"^  (# )?{name}: .*$", f"  {name}: {value}", text, flags=re.MULTILINE)
        assert found == 1
    (folder / "profile").mkdir(exist_ok=True)
    (folder / "profile/config.yaml").write_text(f"{text}\n{lines}\n")
    (folder / "partitions.yaml").write_text(yaml.safe_dump({"partitions": PARTITIONS}))
    (folder / "beside_the_config.py").write_text("def run(config, context):\n    pass\n")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    command = [sys.executable, f"{ROOT}/scripts/doctor.py", "--config", "config.yaml", "--profile", "profile"]
    in_namespace = ["unshare", "--mount", "sh", "-c", NOEXEC, "sh", *command, *options]
    return cluster.run(in_namespace, cwd=folder, env={"TMPDIR": str(temporary)}, check=False)


def findings(output: str) -> list[tuple[str, str, str]]:
    """Name, verdict and text of each finding, with the remedy in the text."""
    found: list[tuple[str, str, str]] = []
    for line in output.splitlines():
        name, verdict, text = line[:24].strip(), line[24:33].strip(), line[33:].strip()
        if verdict in ("ok", "warning", "FAILS", "unknown"):
            found.append((name, verdict, text))
        elif found and line.startswith(" " * 24):
            found[-1] = (*found[-1][:2], f"{found[-1][2]} {text}")
    return found


def submitted(cluster: Cluster, folder: Path) -> list[str]:
    """The names of the jobs that were submitted from a folder."""
    return [job.name for job in cluster.jobs() if job.folder.startswith(str(folder))]


def test_a_good_site_passes_and_nodes_are_checked_from_inside(cluster, shared_dir, tmp_path):
    """Also in an odd folder with modules beside the config, a relative partition file and a noexec temporary folder."""
    lines, folder = "slurm-partition-config: partitions.yaml", shared_dir / "it's mine"
    folder.mkdir()
    done = doctor(cluster, folder, tmp_path, "--job", lines=lines, slurm_account="lab", gpu_type="a100")
    found = findings(done.stdout)
    texts = {name: text for name, _, text in found}
    assert {name for name, verdict, _ in found if verdict == "FAILS"} == {"GPU"}, done.stdout
    assert all(job in done.stdout for job in JOBS), done.stdout
    assert "1 node, 2 CPUs, 2 a100 GPUs per node" in texts["sweep s"]
    assert re.search(
        r"submitted job \d+: sbatch .*--nodes=2 .*--account=lab .*--gres=gpu:a100:2", " ".join(done.stdout.split())
    )
    assert re.search(r"Slurm job \d+ on n1, n2; GPUs per node: 2 a100", texts["node"])
    expected = {
        "shared files": "n1, n2: files and hard links of others are there",
        "locks": "n1, n2: a lock of the login node holds here",
        "temporary files": "GiB free in /tmp",
        "CPUs": "n1, n2: a step can use its",
        "network": "n2 reached n1 at 10.77.0.1 through eth0; all-reduce with gloo",
        "Ray": "started on n1, ran a task and ended in",
        "GPU": "n1, n2: Slurm allocated 2, but there is no NVIDIA driver",
        "preemption": "partition gpu: jobs are not preempted",
    }
    assert {name: text in texts[name] for name, text in expected.items()} == dict.fromkeys(expected, True), texts
    assert all(len(line.rstrip()) <= 100 for line in done.stdout.splitlines())
    assert done.returncode == 1
    assert submitted(cluster, folder) == ["trainyard-doctor"]
    assert list((folder / "results").iterdir()) == [], "nothing is left"


@pytest.fixture
def short_qos(cluster: Cluster) -> Iterator[None]:
    """A quality of service with a limit on walltimes, which the accounting enforces."""
    settings = cluster.state / "etc/slurm/slurm.conf"
    before = settings.read_text()
    settings.write_text(f"{before}\nAccountingStorageEnforce=limits\n")
    cluster.run(["sacctmgr", "--immediate", "add", "qos", "short", "MaxWall=30"])
    cluster.run(["sacctmgr", "--immediate", "modify", "user", "root", "set", "qos+=short"])
    cluster.run(["scontrol", "reconfigure"])
    yield
    settings.write_text(before)
    cluster.run(["sacctmgr", "--immediate", "delete", "qos", "short"])
    cluster.run(["scontrol", "reconfigure"])


OVERRIDES = """
set-resources:
  train: {slurm_account: labb}
  stage: {runtime: 1441}
"""


def test_what_is_wrong_fails_with_a_remedy_and_no_job_is_submitted(cluster, shared_dir, tmp_path, short_qos):
    done = doctor(
        cluster, shared_dir, tmp_path, "--job", lines=OVERRIDES, gpu_type="h100", slurm_account="lab", qos="short"
    )
    assert done.returncode == 1
    failures = {name: text for name, verdict, text in findings(done.stdout) if verdict == "FAILS"}
    expected = {
        "jobs": "not submit train x_2x2, train x_2x2_repeat-2: The given account labb appears to be invalid",
        "stage tiny": "above the limit of gpu, 1-00:00:00",
        "sweep s": "2 h100 GPUs per node",
        "limits": "1441 minutes of walltime, but QOS short allows 30",
    }
    assert {name: text in failures.get(name, "") for name, text in expected.items()} == dict.fromkeys(expected, True), (
        done.stdout
    )
    output = " ".join(done.stdout.split())
    assert "request what is available: gpu " in output
    assert "no job was submitted because a check failed" in output
    assert submitted(cluster, shared_dir) == []
