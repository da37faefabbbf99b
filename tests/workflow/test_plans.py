"""The output of `-n` for each ready-made config on the Slurm profile, compared with its golden file.

To update the golden files: PYTHONPATH=tools python tests/workflow/test_plans.py
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from slurm_cluster.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("plans")
NAMES = (
    "depth-sweep",
    "mnist-4x8",
    "guide-scaling",
    "tinyimagenet-resnet50",
    "own-script",
    "own-programs",
    "trees-sweep",
)


def start(name: str, folder: Path, option: str = "-n") -> subprocess.Popen:
    program = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(ROOT / "Snakefile"), option]
    config = ["--configfile", str(ROOT / f"config/{name}.yaml"), "--directory", str(folder)]
    profile = ["--profile", str(ROOT / "profiles/slurm")]
    return subprocess.Popen([*program, *profile, *config], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def plan_of(started: subprocess.Popen) -> str:
    output, errors = started.communicate(timeout=PATIENCE_SECONDS)
    assert started.returncode == 0, output + errors
    return output


def plans(folder: Path) -> dict[str, str]:
    started = {name: start(name, folder) for name in NAMES}
    return {name: plan_of(each).replace(str(folder), "FOLDER") for name, each in started.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("plans")


@pytest.fixture(scope="module")
def found(folder):
    return plans(folder)


@pytest.mark.parametrize("name", NAMES)
def test_a_ready_made_config_has_its_golden_plan(found, name):
    assert found[name] == (GOLDEN / f"{name}.txt").read_text()


def test_snakemake_lists_every_job_if_its_output_is_requested(found, folder):
    listed = plan_of(start("own-script", folder, "-np"))
    jobs = re.findall(r"^Job \d+: (.*)$", listed, re.MULTILINE)
    (planned,) = re.findall("^sweep .* pending", found["own-script"], re.MULTILINE)
    assert [job for job in jobs if job.startswith(planned)]
    assert {"overview", "all studies are complete"} < set(jobs)
    assert listed.count("Job stats:") == 2


def test_a_dry_run_writes_no_results(found, folder):
    assert {path.name for path in folder.iterdir()} <= {".snakemake"}


def test_every_config_has_a_golden_plan_except_the_demo():
    assert {path.stem for path in (ROOT / "config").glob("*.yaml")} == {*NAMES, "config"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = plans(Path(temporary))
    for name, text in found.items():
        (GOLDEN / f"{name}.txt").write_text(text)
