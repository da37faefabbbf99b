"""Trainyard as a wheel: installed into an empty environment without torch, it runs from an empty folder."""

import re

import pytest
from installing import SCRIPT, installed_project
from trainyard.config.parser import read_file

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return installed_project(tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("work"))


def trainyard(project, *words, check=True):
    done = project.run(str(project.root / "bin/trainyard"), *words, check=check)
    return done.stdout + done.stderr


def test_a_script_goes_from_nothing_to_a_report_without_torch(installed):
    folder = installed.folder
    assert "there is no trainyard.yaml in" in trainyard(installed, "run", check=False)
    (folder / "train.py").write_text(SCRIPT)
    assert "next: `trainyard check`" in trainyard(installed, "init")
    assert "Nothing fails" in trainyard(installed, "check")
    plan = trainyard(installed, "plan")
    assert "sweep train: 20 of 20 trials pending" in plan
    assert re.search("sweep train +│ 20 of 20", plan), "the table"
    summary = trainyard(installed, "run").partition("Trainyard: done after")[2]
    assert "sweep train: 20 trials finished, 0 failed" in summary
    assert "best val_acc (highest)" in summary
    assert "write the report: trainyard report\n" in summary
    assert "train  20 " in trainyard(installed, "status")
    said = trainyard(installed, "report", "--profile", "slurm")
    assert f"the report: {folder}/report.html" in said.splitlines()
    assert "Warning" not in said
    assert (folder / "report.html").stat().st_size > 100_000
    assert "finished  nothing new" in trainyard(installed, "run", "--profile", "local", "--", "sweeps")
    assert {path.name for path in folder.iterdir()} == {
        ".snakemake", "results", "report.html", "train.py", "trainyard.yaml"
    }  # fmt: skip


def test_what_needs_an_extra_is_refused_before_anything_runs(installed):
    config = {"datasets": {"d": {"source": "digits"}}, "sweeps": {"s": {"dataset": "d", "grid": {"lr": [0.1]}}}}
    installed.write(config)
    output = trainyard(installed, "run", "--config", "config.yaml", check=False)
    assert (
        "packages: the config needs torch, torchvision, missing where Snakemake runs: install trainyard[train]"
        in output
    )
    output += trainyard(installed, "event-files", "--config", "config.yaml", check=False)
    assert "install trainyard[tensorboard]" in output
    assert "Traceback" not in output
    installed.config_file.unlink()


def test_help_and_version_are_as_users_expect(installed):
    assert trainyard(installed, "--version") == "trainyard 0.1.0\n"
    assert "usage: trainyard VERB" in trainyard(installed, "--help")
    assert "usage: trainyard run" in trainyard(installed, "run", "--help")
    assert "usage: trainyard check" in (text := trainyard(installed, "check", "--help"))
    assert "example: trainyard check --config" in text
    assert "did you mean 'check'?" in trainyard(installed, "chekc", check=False)


def test_the_wheel_has_what_the_clone_has_and_nothing_else(installed):
    (package,) = installed.root.glob("lib/python*/site-packages/trainyard_workflow")
    assert {path.name for path in package.iterdir()} == {
        "Snakefile", "config", "docs", "envs", "profiles", "scripts", "workflow"
    }  # fmt: skip
    assert {path.name for path in (package / "docs").iterdir()} == {"options.md", "quickstart.md"}, (
        "as messages name them"
    )
    assert (package / "scripts/trainyard/py.typed").exists()
    assert read_file(package / "profiles/slurm/config.yaml")["executor"] == "slurm"
