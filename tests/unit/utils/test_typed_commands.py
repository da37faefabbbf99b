"""Commands in messages work as printed, from whatever folder, without an activated environment."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from slurm_cluster.waiting import finished
from trainyard.utils.typed_commands import own_program, script_call, snakemake_call
from yard import ROOT

CONFIG = "datasets: {digits: {source: digits}}\n"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another folder, with a config, as the one of the shell; no environment is activated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    Path("my study.yaml").write_text(CONFIG)
    return tmp_path


def test_a_command_of_snakemake_works_in_any_folder(elsewhere):
    command = snakemake_call(Path("my study.yaml"), "-n", "--", "data")
    done = finished(["bash", "-c", command], cwd=elsewhere, env=os.environ)
    assert "dataset digits" in done.stdout + done.stderr


def test_a_command_of_snakemake_is_short_in_trainyards_folder(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PWD", str(ROOT))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert snakemake_call(Path("my.yaml"), "--", "data") == (
        "snakemake --profile profiles/local --configfile my.yaml -- data"
    )


def test_a_command_of_a_program_works_in_any_folder(elsewhere):
    command = script_call("check", "--config", "my study.yaml")
    assert finished(shlex.split(command), cwd=elsewhere, env=os.environ).returncode == 0


def test_a_program_is_named_by_its_path_unless_it_is_the_one_on_path(elsewhere, monkeypatch):
    program = elsewhere / ".venv/bin/snakemake"
    for each in (program, elsewhere / "other/snakemake"):
        each.parent.mkdir(parents=True)
        each.touch(0o755)
    monkeypatch.setattr("sys.executable", str(program.with_name("python")))
    assert own_program("snakemake") == ".venv/bin/snakemake"
    monkeypatch.setenv("PATH", str(elsewhere / "other"))
    assert own_program("snakemake") == ".venv/bin/snakemake", "another one is on PATH"
    monkeypatch.setenv("PATH", str(program.parent))
    assert own_program("snakemake") == "snakemake"
    assert own_program("tensorboard") == "tensorboard", "no path to a program that is not there"
