"""Commands in messages work as printed, from whatever folder."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from project import ROOT
from slurm_cluster.waiting import finished
from trainyard.utils.typed_commands import run_call, trainyard_call

TRAINYARD = f'trainyard() {{ {sys.executable} {shlex.quote(str(ROOT))}/scripts/trainyard cli.commands "$@"; }}\n'
CONFIG = "datasets: {digits: {source: digits}}\n"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Another folder, with a config, as the one of the shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))
    Path("my study.yaml").write_text(CONFIG)
    return tmp_path


def test_a_command_of_snakemake_works_in_any_folder(elsewhere):
    command = run_call(Path("my study.yaml"), "-n", "--", "data")
    done = finished(["bash", "-c", TRAINYARD + command], cwd=elsewhere, env=os.environ)
    assert "stage digits" in done.stdout + done.stderr


def test_a_command_of_a_program_works_in_any_folder(elsewhere):
    command = trainyard_call("check", "--config", "my study.yaml")
    assert finished(["bash", "-c", TRAINYARD + command], cwd=elsewhere, env=os.environ).returncode == 0
