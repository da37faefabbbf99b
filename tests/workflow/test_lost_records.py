"""Results without Snakemake's own record of them (`.snakemake`): copied without it, or an older copy restored."""

import json
import re
import shutil

import pytest
from project import FULL, Project

FUNCTION = {"function": "mine:run", "grid": {"x": [1, 2]}, "metric": "loss", "mode": "min"}
CONFIG = {"sweeps": {"one": FUNCTION, "several": {**FUNCTION, "slots": {"jobs": 2}}}}
GROWN = {"sweeps": {name: {**sweep, "grid": {"x": [1, 2, 3]}} for name, sweep in CONFIG["sweeps"].items()}}


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Project:
    """The results of CONFIG, without Snakemake's record of them."""
    made = Project(tmp_path_factory.mktemp("copied"))
    made.write(CONFIG)
    (made.folder / "mine.py").write_text("def run(config, context):\n    return {'loss': config['x'], 'other': 1.0}\n")
    made.snakemake("--", "sweeps")
    shutil.rmtree(made.folder / ".snakemake")
    return made


@pytest.fixture
def project(copied, tmp_path) -> Project:
    shutil.copytree(copied.folder, tmp_path, dirs_exist_ok=True)
    return Project(tmp_path)


def jobs_to_run(output: str) -> list[str]:
    """The first words of the messages of the jobs that a dry run (`-np`) would run, without those of targets."""
    messages = re.findall(r"^Job \d+: ([^;,\n]*)", output, re.MULTILINE)
    return sorted(message for message in messages if not message.startswith("all "))


def test_added_trials_run_once_without_snakemakes_record(project):
    assert "Nothing to be done" in project.snakemake("-n", "--", "sweeps")
    project.write(GROWN)
    planned = project.snakemake("-n", "--", "sweeps")
    assert "sweep one: 1 of 3 trials pending" in planned
    assert "sweep several: 1 of 3 trials pending" in planned
    assert project.snakemake("--", "sweeps").count("3 trials finished") >= 2
    for name in CONFIG["sweeps"]:
        table = (project.results / f"sweeps/{name}/trials.csv").read_text()
        assert [row.split(",")[1] for row in table.splitlines()] == ["x", "1", "2", "3"]
    shutil.rmtree(project.folder / ".snakemake")
    assert "Nothing to be done" in project.snakemake("-n", "--", "sweeps")


def test_an_older_copy_of_the_results_is_brought_up_to_date(project):
    """Snakemake's record is of newer results, with more trials."""
    shutil.copytree(project.results / "sweeps", project.folder / "older")
    project.write(GROWN)
    project.snakemake("--", "sweeps")
    shutil.rmtree(project.results / "sweeps")
    shutil.copytree(project.folder / "older", project.results / "sweeps")
    assert "sweep one: 1 of 3 trials pending" in project.snakemake("-n", "--", "sweeps")


def test_fewer_trials_and_another_metric_change_the_tables(project):
    other = json.loads(json.dumps(CONFIG))
    other["sweeps"]["one"]["metric"] = "other"
    other["sweeps"]["several"]["grid"]["x"] = [1]
    project.write(other)
    jobs = ["sweep one: table", "sweep several: table", "sweep several: tables of all jobs"]
    assert [job for job in jobs_to_run(project.snakemake("-np", "--", "sweeps")) if "table" in job] == jobs


def test_trials_whose_journals_were_lost_run_again(project):
    for folder in ("sessions", "claims"):
        shutil.rmtree(project.results / "sweeps/one" / folder)
    assert "sweep one: 2 of 2 trials pending" in project.snakemake("-n", "--", "sweeps")


@pytest.mark.slow
def test_each_kind_of_result_is_made_again_for_another_config_without_snakemakes_record(done, tmp_path):
    project = Project(tmp_path)
    shutil.copytree(done.folder, project.folder, dirs_exist_ok=True)
    shutil.rmtree(project.folder / ".snakemake")
    project.write(FULL)
    assert "Nothing to be done" in project.snakemake("-n")
    changed = json.loads(json.dumps(FULL))
    changed["pricing"] = {"gpu_hour": 3.5}
    project.write(changed)
    tables = ["scaling ranks: table", "scaling width: table"]
    assert jobs_to_run(project.snakemake("-np", "--", "sweeps", "scaling")) == tables
    changed["datasets"]["prices"]["val_fraction"] = 0.5
    changed["scaling"]["ranks"]["train"]["lr"] = 0.03
    changed["sweeps"]["trees"]["trees"]["rounds"] = 7
    project.write(changed)
    output = project.snakemake("-np")
    for job in ("dataset prices: staging", "scaling ranks: training at 1x1", "sweep trees: 2 of 2 trials pending"):
        assert job in output
    jobs = jobs_to_run(project.snakemake("-np", "--", "scaling"))
    assert all(job.startswith("scaling") for job in jobs), "only what a target needs"
