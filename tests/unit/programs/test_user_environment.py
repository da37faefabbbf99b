"""A user's program runs in the user's environment, or in the one that the config names."""

import json
import platform
import re
import stat
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from project import ROOT
from trainyard.config.sweep import CommandSweep, TrainSweep
from trainyard.config.trials import expand
from trainyard.planning.trial_space import TrialSpace
from trainyard.programs.user_environment import (
    RECORD,
    RECORDED,
    code_version,
    find_interpreter,
    find_versions,
    program_environment,
    record_environment,
)
from trainyard.utils.errors import UserError

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


@pytest.fixture
def shell(monkeypatch, tmp_path):
    """The environment of a user without any Python environment."""
    for name in RECORDED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def own(**fields):
    return CommandSweep.model_validate({"command": "x", **fields})


def executable(path, text="#!/bin/sh\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(stat.S_IRWXU)
    return path


def conda(folder, name):
    """A conda environment as Trainyard sees it, with a variable of its own and one that a package sets."""
    prefix = folder / name
    executable(prefix / "bin/python")
    (prefix / "etc/conda/activate.d").mkdir(parents=True)
    (prefix / "etc/conda/activate.d/cuda.sh").write_text('echo hello\nexport CUDA_HOME="$CONDA_PREFIX/cuda two"\n')
    (prefix / "conda-meta").mkdir()
    (prefix / "conda-meta/state").write_text(json.dumps({"env_vars": {"DATA": "/data"}}))
    return prefix


def test_a_program_gets_the_values_of_the_user_for_what_rules_and_ray_change(shell):
    shell.setenv("VIRTUAL_ENV", "/home/me/env")
    shell.setenv("OTHER", "1")
    shell.setenv(RECORD, record_environment())
    for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONBREAKPOINT"):
        shell.setenv(name, "ours")
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # of `make run`
        shell.setenv(name, "w")
    shell.delenv("VIRTUAL_ENV")
    found = program_environment()
    assert found == found | {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": "/home/me/env", "OTHER": "1"}
    assert not found.keys() & {"LD_LIBRARY_PATH", "PYTHONBREAKPOINT", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", RECORD}


@pytest.mark.parametrize("given", ["", "bin/python"])
def test_a_virtual_environment_is_activated_by_its_folder_or_its_interpreter(shell, venv, given):
    shell.setenv("PYTHONHOME", "/usr")
    python = find_interpreter(own(env=str(venv / given)))
    found = program_environment(python)
    assert found["PATH"] == f"{venv}/bin:/usr/bin:/bin"
    assert found["VIRTUAL_ENV"] == str(venv)
    assert "PYTHONHOME" not in found
    line = ["python", "-c", "import sys; print(sys.prefix)"]
    assert subprocess.run(line, env=found, text=True, capture_output=True, check=True).stdout.strip() == str(venv)


def test_an_environment_may_be_relative_at_home_or_that_of_trainyard(shell, venv, tmp_path):
    shell.chdir(venv.parent)
    assert find_interpreter(own(env="env")) == venv / "bin/python"
    (tmp_path / "envs").symlink_to(venv.parent)
    assert find_interpreter(own(env="~/envs/env")) == tmp_path / "envs/env/bin/python"
    assert find_interpreter(own(env="trainyard")) == Path(sys.executable)
    assert find_interpreter(own()) is None


@pytest.mark.parametrize("env", ["nowhere/bin/python", "~/folder", "~/file"])
def test_an_environment_without_an_interpreter_is_an_error(shell, tmp_path, env):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=rf"{env} has no Python interpreter: /.* is not an executable file"):
        find_interpreter(own(env=env))


@pytest.mark.parametrize("how", ["listed", "root of conda", "root of micromamba", "folder", "path", "base"])
def test_a_conda_environment_is_found_and_activated(shell, tmp_path, how):
    folder = tmp_path / "root/envs" if how.startswith("root") else tmp_path / "elsewhere"
    prefix = conda(tmp_path, "root") if how == "base" else conda(folder, "mine")
    if how == "listed":
        (tmp_path / ".conda").mkdir()
        (tmp_path / ".conda/environments.txt").write_text(f"/gone/mine2\n{prefix}\n")
    name, value = {
        "root of conda": ("CONDA_EXE", f"{tmp_path}/root/bin/conda"),
        "base": ("CONDA_EXE", f"{tmp_path}/root/bin/conda"),
        "root of micromamba": ("MAMBA_ROOT_PREFIX", f"{tmp_path}/root"),
        "folder": ("CONDA_ENVS_PATH", f"/gone:{folder}"),
    }.get(how, ("OTHER", "1"))
    shell.setenv(name, value)
    shell.setenv("VIRTUAL_ENV", "/home/me/env")
    python = find_interpreter(own(env={"path": str(prefix), "base": "base"}.get(how, "mine")))
    assert python == prefix / "bin/python"
    found = program_environment(python)
    assert found["PATH"] == f"{prefix}/bin:/usr/bin:/bin"
    assert (found["CONDA_PREFIX"], found["DATA"]) == (str(prefix), "/data")
    assert found["CUDA_HOME"] == f"{prefix}/cuda two", "set by a package"
    assert "VIRTUAL_ENV" not in found


def test_variables_of_a_conda_environment_and_its_packages_are_those_that_conda_sets(shell, tmp_path):
    prefix, folder = conda(tmp_path, "mine"), tmp_path / "mine/etc/conda/env_vars.d"
    folder.mkdir()
    for name, value in (("a", "/a"), ("b", "/b")):
        (folder / f"{name}.json").write_text(json.dumps({"CACHE": value, "DATA": value, "GONE": value}))
    (prefix / "conda-meta/state").write_text(json.dumps({"env_vars": {"DATA": "/data", "GONE": "***unset***"}}))
    found = program_environment(prefix / "bin/python")
    assert (found["CACHE"], found["DATA"]) == ("/b", "/data")
    assert "GONE" not in found


def test_an_unknown_conda_environment_is_an_error_with_a_suggestion(shell, tmp_path):
    shell.setenv("MAMBA_ROOT_PREFIX", str(tmp_path))
    conda(tmp_path / "envs", "torch")
    with pytest.raises(UserError, match=r"no conda environment 'troch': give its folder; did you mean 'torch'"):
        find_interpreter(own(env="troch"))


def test_the_environment_is_not_part_of_a_trials_identity(venv):
    one, other = ({"grid": {"n": [1, 2]}, "command": "x {n}"} | more for more in ({}, {"env": str(venv)}))
    one, other = CommandSweep.model_validate(one), CommandSweep.model_validate(other)
    assert expand(one).by_name("d").keys() == expand(other).by_name("d").keys()
    assert TrialSpace(one, "d").digest == TrialSpace(other, "d").digest


def test_versions_are_those_of_the_environment_of_the_trials(venv, shell, tmp_path):
    found = find_versions(TrainSweep.model_validate({"dataset": "d", "trials": [{}]}))
    minor = ".".join(platform.python_version_tuple()[:2])
    assert found == {"trainyard": VERSION, "python": minor, "torch": metadata.version("torch")}
    command = CommandSweep.model_validate({"command": "x", "env": str(venv)})
    assert find_versions(command) == {"trainyard": VERSION, "python": minor}
    packages = next(venv.glob("lib/python3*/site-packages"))
    (packages / "torch-2.1.0.dist-info").mkdir()
    (packages / "torch-2.1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.1.0+cu121\n"
    )
    given = find_versions(command)
    assert given == {"trainyard": VERSION, "python": minor, "torch": "2.1.0+cu121"}
    shell.setenv("PATH", str(venv / "bin"))
    assert find_versions(CommandSweep.model_validate({"command": "x"})) == given
    shell.setenv("PATH", "/nowhere")
    assert find_versions(CommandSweep.model_validate({"command": "x"})) == {"trainyard": VERSION}
    wrapper = str(executable(tmp_path / "bin/run-in-container.sh"))
    assert find_versions(own(env=wrapper)) == {"trainyard": VERSION}


def test_the_version_of_the_code_is_its_commit_and_whether_files_differ_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert code_version() is None
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
    (tmp_path / "train.py").write_text("1")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout[:12]
    (tmp_path / "results").mkdir()
    (tmp_path / "results/new.txt").write_text("not tracked")
    assert code_version() == commit
    changed = []
    for content in ("2", "3", "2"):
        (tmp_path / "train.py").write_text(content)
        changed.append(code_version())
    assert re.fullmatch(rf"{commit}-dirty-[0-9a-f]{{8}}", changed[0])
    assert changed[0] == changed[2] != changed[1]
    monkeypatch.setenv("PATH", "")
    assert code_version() is None
