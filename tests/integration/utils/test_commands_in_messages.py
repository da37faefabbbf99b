"""Commands in messages work as printed, from whatever folder, without an activated environment."""

import os
import shlex
from pathlib import Path

import pytest
from slurm_cluster.waiting import finished
from trainyard.utils.typed_commands import script_call, snakemake_call

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
    assert "stage digits" in done.stdout + done.stderr


def test_a_command_of_a_program_works_in_any_folder(elsewhere):
    command = script_call("check", "--config", "my study.yaml")
    assert finished(shlex.split(command), cwd=elsewhere, env=os.environ).returncode == 0
