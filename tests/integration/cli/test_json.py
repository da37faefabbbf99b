"""A script that knows only docs/json.md takes a sweep from the plan to the answer."""

import json
import os
import re
import shlex
import signal
import sys
import time

import pytest
from project import ROOT
from slurm_cluster.waiting import PATIENCE_SECONDS

PAGE = (ROOT / "docs/json.md").read_text()
COMMANDS = re.findall(r"^(trainyard .*?)\s*(?:>.*)?#", PAGE, flags=re.MULTILINE)
NAMES = set(re.findall(r"`(\w+)`", PAGE))
SWEEP = {
    "command": "echo acc={lr}",
    "grid": {"lr": [0.1, 0.3, 0.2]},
    "workdir": "trial",
    "metrics": {"pattern": "acc=(?P<acc>{number})"},
}


@pytest.fixture
def answers(project):
    """What each command of the page prints, by its words; those of --json as objects."""
    (project.folder / "trainyard.yaml").write_text(json.dumps({"sweeps": {"s": SWEEP}}))
    program = [sys.executable, str(ROOT / "scripts/trainyard"), "cli.commands"]
    found = {}
    for command in COMMANDS:
        words = shlex.split(command)[1:]
        done = project.run(*program, *words, check=True)
        found[" ".join(words)] = json.loads(done.stdout) if "--json" in words else done.stdout
    return found


def keys(value):
    """All keys of an object and of those in it, but for users' settings and names."""
    if isinstance(value, list):
        return {key for each in value for key in keys(each)}
    if not isinstance(value, dict):
        return set()
    inner = {key for name, each in value.items() if name not in ("settings", "commands", "jobs") for key in keys(each)}
    return inner | value.keys()


def test_a_script_that_knows_the_page_gets_from_the_plan_to_the_answer(answers):
    assert list(answers) == ["check --json", "plan --json", "run", "status --wait --json", "best --json"]
    assert not answers["check --json"]["fails"]
    plan = answers["plan --json"]
    assert [(job["job"], job["pending"]) for job in plan["jobs"]] == [("sweep s", 3)]
    assert plan["commands"]["s"].endswith("echo acc=0.1")
    (status,) = answers["status --wait --json"]["sweeps"]
    assert status["has_ended"]
    assert (status["finished"], status["of"]) == (3, 3)
    (answer,) = answers["best --json"]["answers"]
    assert (answer["is_complete"], answer["metric"], answer["mode"]) == (True, "acc", "max")
    assert answer["best"]["settings"] == {"lr": 0.3}
    assert answer["best"]["value"] == 0.3
    assert status["answer"] == answer
    for words, printed in answers.items():
        if "--json" in words:
            assert printed["version"] == 1
            assert keys(printed) <= NAMES, "each key is on the page"


def test_a_mistake_in_the_config_is_an_object_too(project):
    wrong = {"sweeps": {"s": {**SWEEP, "comand": "x"}}}
    (project.folder / "trainyard.yaml").write_text(json.dumps(wrong))
    program = [sys.executable, str(ROOT / "scripts/trainyard"), "cli.commands"]
    for words in [shlex.split(command)[1:] for command in COMMANDS if "--json" in command]:
        done = project.run(*program, *words, check=False)
        printed = json.loads(done.stdout)
        assert done.returncode == 1
        assert (keys(printed) <= NAMES, printed["version"]) == (True, 1)
        (mistake,) = printed["error"]["mistakes"]
        assert mistake["place"] == "sweeps.s.comand"
        assert "did you mean 'command'?" in mistake["message"]


@pytest.mark.parametrize("verb", ["check", "plan"])
def test_an_interrupt_is_an_object_too(project, verb):
    pipe = project.folder / "pipe.yaml"
    os.mkfifo(pipe)
    program = [sys.executable, str(ROOT / "scripts/trainyard"), "cli.commands"]
    words = [*program, verb, "--json", "--config", "pipe.yaml"]
    started = project.start("bash", "-c", 'exec "$@" 2> /dev/null', "bash", *words)
    with pipe.open("w"):  # once the program opens it
        time.sleep(0.5)  # until it waits in its read: Python handles a signal that comes just before only after it
        os.killpg(started.pid, signal.SIGINT)
        printed, _ = started.communicate(timeout=PATIENCE_SECONDS)
    assert "interrupted" in json.loads(printed)["error"]["message"]
    assert started.returncode == 130


def test_a_sweep_that_has_failed_is_one_object(project):
    failing = {"sweeps": {"s": {**SWEEP, "command": "echo acc={lr}; exit 3", "retries": 0}}}
    (project.folder / "trainyard.yaml").write_text(json.dumps(failing))
    program = [sys.executable, str(ROOT / "scripts/trainyard"), "cli.commands"]
    project.run(*program, "run", check=False)
    done = project.run(*program, "status", "--wait", "--json", check=False)
    assert (done.returncode, json.loads(done.stdout)["sweeps"][0]["failed"]) == (1, 3)


def test_every_failure_is_an_object(project):
    (project.folder / "trainyard.yaml").write_text(json.dumps({"sweeps": {"s": SWEEP}}))
    program = [sys.executable, str(ROOT / "scripts/trainyard"), "cli.commands"]
    (mistake,) = json.loads(project.run(*program, "best", "--json", "t", check=False).stdout)["error"]["mistakes"]
    assert mistake == {"place": "", "message": "`sweeps` has no 't'; known: s"}
    done = project.run(*program, "plan", "--json", "--quiet", check=False)
    assert (done.returncode, "leave it out" in json.loads(done.stdout)["error"]["message"]) == (1, True)
    done = project.run(*program, "plan", "--json", "-p", "--", "absent", check=False)
    assert (done.returncode, "absent" in json.loads(done.stdout)["error"]["message"]) == (1, True)
    for words in (["status", "--json", "--wait=x"], ["plan", "--json", "--config"], ["plan", "--json", "--jobs", "x"],
                  ["stauts", "--json"], ["check", "--json", "--profile", "a.yaml"], ["run", "--json"]):  # fmt: skip
        done = project.run(*program, *words, check=False)
        assert (done.returncode in (1, 2), bool(json.loads(done.stdout)["error"]["message"])) == (True, True)
    (project.folder / "results/sweeps").mkdir(parents=True, exist_ok=True)
    (project.folder / "results/sweeps/s").write_text("no folder")
    for verb in ("best", "plan"):
        done = project.run(*program, verb, "--json", check=False)
        assert (done.returncode, "Not a directory" in json.loads(done.stdout)["error"]["message"]) == (1, True)
