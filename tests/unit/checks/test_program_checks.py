"""The environments of users' programs are checked before anything is submitted, and named in the plan."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from snakemake.settings.types import DeploymentMethod
from trainyard.checks.program_checks import check_notify, describe_environment
from trainyard.cli.workflow import Workflow
from trainyard.config.load import check_config
from trainyard.programs.user_environment import RECORD
from trainyard.utils.errors import UserError

HERE = Path(sys.executable).parent


@pytest.fixture
def venv(tmp_path, monkeypatch):
    """A virtual environment without torch, and one with it first on PATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    monkeypatch.delenv(RECORD, raising=False)
    monkeypatch.setenv("PATH", f"{HERE}:/usr/bin:/bin")
    return tmp_path / "env"


def test_all_environments_without_an_interpreter_are_reported_at_once(tmp_path):
    raw = {
        "sweeps": {
            "a": {"command": "true", "env": "/nowhere"},
            "b": {"command": "true", "env": "/nowhere"},
            "c": {"command": "true", "env": "trainyard"},
        },
        "scaling": {"d": {"script": "x", "scales": ["1x1"], "env": "./nowhere"}},
    }
    with pytest.raises(UserError) as error:
        Workflow(raw, results=tmp_path).check(dry_run=False)
    lines = str(error.value).splitlines()[1:]
    assert [line.split(": ")[0] for line in lines] == ["  sweeps.a.env", "  sweeps.b.env", "  scaling.d.env"]
    assert all("has no Python interpreter" in line for line in lines)


@pytest.mark.parametrize(("launcher", "package"), [("torchrun", "torch"), ("accelerate", "accelerate"), ("srun", None)])
def test_a_script_needs_its_launcher_in_its_environment(tmp_path, monkeypatch, venv, launcher, package):
    monkeypatch.chdir(tmp_path)
    Path("x.py").touch()
    study = {"script": "x.py", "scales": ["1x1"], "launcher": launcher}
    Workflow({"scaling": {"own": study}}, results=tmp_path).check(dry_run=False)
    lacking = Workflow({"scaling": {"own": study | {"env": str(venv)}}}, results=tmp_path)
    if package is None:
        lacking.check(dry_run=False)
        return
    with pytest.raises(UserError, match=f"scaling.own.launcher: {venv}/bin/python does not have {package}"):
        lacking.check(dry_run=False)


def test_with_conda_a_rule_records_the_environment_of_the_user(tmp_path, venv):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text(f'#!/bin/sh\nprintf %s "${RECORD}"')
    (tmp_path / "bin/python").chmod(0o755)
    made = Workflow({}, results=tmp_path, deployment=[DeploymentMethod.CONDA])
    activated = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "CONDA_PREFIX": str(tmp_path)}
    rule = ["sh", "-c", made.program("sweep")(None, None)]
    recorded = json.loads(subprocess.run(rule, env=activated, capture_output=True, check=True).stdout)
    assert (recorded["PATH"], recorded["CONDA_PREFIX"]) == (f"{HERE}:/usr/bin:/bin", os.environ.get("CONDA_PREFIX"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"command": "python x.py"}, "; python is Trainyard's own"),
        ({"command": "SEED=1 A='b c' python x.py {args}"}, "; python is Trainyard's own"),
        ({"command": ["torchrun", "x.py"]}, "; torchrun is Trainyard's own"),
        ({"command": "python x.py", "env": "env"}, "; python is {venv}/bin/python"),
        ({"command": "torchrun x.py", "env": "trainyard"}, "; torchrun is Trainyard's own"),
        ({"command": "deepspeed x.py"}, "; there is no deepspeed on your PATH: activate your environment, or name it "
                                        "by env"),
        ({"command": "./train"}, ""),
        ({"command": "it's not simple' 'x"}, ""),
    ],
)  # fmt: skip
def test_the_plan_names_the_python_of_a_command(venv, monkeypatch, options, expected):
    monkeypatch.chdir(venv.parent)
    sweep = check_config({"sweeps": {"own": options}}).sweeps["own"]
    assert describe_environment(sweep) == expected.format(venv=venv)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("cat > /dev/null", ""),
        ("[ -t 0 ] || cat", ""),
        ("no-such-mail -s Trainyard me@example.org", "no-such-mail: no such program on your PATH"),
    ],
)
def test_the_program_of_notify_is_looked_for(command, problem):
    assert "".join(each.message for each in check_notify(command)) == problem
