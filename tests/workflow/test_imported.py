"""The workflow imported by another one: `module`, with prefixes, and as `snakedeploy deploy-workflow` writes it."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from project import ROOT, Project

pytestmark = pytest.mark.slow

STUDIES = {
    "datasets": {"tiny": {"source": "synthetic", "images": 32, "val_images": 8, "height": 8, "width": 8}},
    "sweeps": {
        "noise": {
            "command": "echo loss {x} > {trial_dir}/loss.txt && echo epoch 1 loss {x}",
            "metrics": {"pattern": r"epoch (?P<epoch>\d+) loss (?P<loss>{number})"},
            "grid": {"x": [0.5, "1e-5"]},  # Snakemake reads 1e-5 as text
            "metric": "loss",
            "mode": "min",
            "slots": {"gpus_per_node": 2},
        }
    },
}
# A workflow with a module, as the documentation shows it.
DOCUMENTED = re.search(r"```snakemake\n(.*?)```", (ROOT / "docs/install.md").read_text(), re.DOTALL)[1]
# Python writes its file when it collects the object, at the end.
OWN_OBJECT = """
class Records:
    def __init__(self):
        self.itself = self
        self.file = open("records.txt", "w")

records = Records()
records.file.write("written")
"""
# `shell.prefix` in a module would change the commands of all rules.
OWN_RULE = '\nrule own:\n    shell: "echo SCRIPTS=${{SCRIPTS:-none}}"\n'


@pytest.fixture
def importing(project):
    """A workflow in a folder of its own, which imports Trainyard; it runs in another folder."""
    source = project.folder / "source"
    source.mkdir()
    (source / "Snakefile").write_text(DOCUMENTED.replace("/path/to/trainyard", str(ROOT)))
    work = Project(project.folder / "work")
    work.folder.mkdir()
    (work.folder / "config.yaml").write_text(yaml.safe_dump({"training": STUDIES}))
    return work


def run_snakemake(project: Project, snakefile: Path, *options: str, check: bool = True) -> str:
    program = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(snakefile)]
    common = ["--profile", str(ROOT / "profiles/local"), "--directory", str(project.folder)]
    done = project.run(*program, *common, *options, check=check)
    return done.stdout + done.stderr


def test_another_workflow_runs_a_sweep_with_prefixed_rules_and_results(importing):
    snakefile = importing.folder.with_name("source") / "Snakefile"
    options = ["--profile", str(ROOT / "profiles/slurm"), "--set-resources", "training_sweep:mem_mb=12345"]
    output = run_snakemake(importing, snakefile, "-n", *options, "--", "training_all")
    planned = r"sweep noise: 2 of 2 trials pending; .* memory per node: 12.35 GB \(as set\)"
    assert re.search(planned, output), "settings of the profile for a prefixed rule are found"
    assert {path.name for path in importing.folder.iterdir()} <= {"config.yaml", ".snakemake"}

    snakefile.write_text(OWN_OBJECT + snakefile.read_text() + OWN_RULE)
    assert "SCRIPTS=none" in run_snakemake(importing, snakefile, "count_trials", "own"), "its commands are its own"
    assert (importing.folder / "records.txt").read_text() == "written"
    assert (importing.folder / "counted.txt").read_text().strip() == "3"
    rows = pd.read_csv(importing.folder / "training/results/sweeps/noise/trials.csv")
    assert rows["x"].tolist() == [0.5, 1e-5], "numbers as in a config file of Trainyard"
    assert not importing.results.exists()
    assert "Nothing to be done" in run_snakemake(importing, snakefile, "-n")

    shutil.rmtree(importing.folder / ".snakemake")
    grown = json.loads(json.dumps(STUDIES))
    grown["sweeps"]["noise"]["grid"]["x"].append(0.25)
    (importing.folder / "config.yaml").write_text(yaml.safe_dump({"training": grown}))
    output = run_snakemake(importing, snakefile, "-n", "--", "training_all")
    assert "sweep noise: 1 of 3 trials pending" in output, "also without Snakemake's record of the results"


def test_mistakes_in_the_config_of_a_module_stop_before_anything_runs(importing):
    (importing.folder / "config.yaml").write_text(yaml.safe_dump({"training": {**STUDIES, "sweps": {}}}))
    output = run_snakemake(importing, importing.folder.with_name("source") / "Snakefile", "-n", check=False)
    assert "sweps: unknown key; did you mean 'sweeps'?" in output
    assert "Traceback" not in output


@pytest.fixture
def deployed(project, monkeypatch):
    """What `snakedeploy deploy-workflow` writes for a repository on GitHub, of which git finds a copy on this disk."""
    copy = project.folder / "github.com/someone/trainyard"
    names = ("Snakefile", "workflow", "scripts", "config", "profiles", "envs", "LICENSE")
    for name in names:
        copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy.mkdir(parents=True, exist_ok=True)
        copied(ROOT / name, copy / name)
    identity = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    for words in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-m", "v1"], ["tag", "v1"]):
        subprocess.run(["git", *words], cwd=copy, check=True)
    work = Project(project.folder / "deployed")
    work.environment |= {
        "HOME": str(project.folder / "home"),
        "XDG_CACHE_HOME": str(project.folder / "cache"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{project.folder}/github.com/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
    }
    program = str(Path(sys.executable).with_name("snakedeploy"))
    project.run(program, "deploy-workflow", str(copy), str(work.folder), "--tag", "v1")
    return work


def test_a_deployed_workflow_runs(deployed):
    snakefile = deployed.folder / "workflow/Snakefile"
    assert 'github("someone/trainyard", path="workflow/Snakefile", tag="v1")' in snakefile.read_text()
    program = [str(Path(sys.executable).with_name("snakemake")), "--profile", "profiles/local"]
    done = deployed.run(*program, "-n", "--config", "scaling=none")
    assert "sweep depth: 20 of 20 trials pending" in done.stdout + done.stderr
    assert "scaling width" not in done.stdout + done.stderr, "studies can be selected as without the import"
    deployed.run(*program, "data")
    assert (deployed.results / "data/digits/meta.json").exists()
    log = (deployed.results / "logs/stage/digits.log").read_text()
    assert "digits" in log


def test_the_catalog_file_names_what_the_workflow_has():
    catalog = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert catalog["software-stack-deployment"]["conda"]
    assert all((ROOT / path).exists() for path in ("workflow/Snakefile", "config/config.yaml", "config/README.md"))
    profiles = re.findall(r"profiles/\w+", str(catalog["mandatory-flags"]))
    assert profiles
    assert all((ROOT / profile / "config.yaml").exists() for profile in profiles)
