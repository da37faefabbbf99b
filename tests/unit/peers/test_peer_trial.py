"""A trial of the comparison with peers: a command and a Python function that do the same."""

import os
import subprocess
import sys

import pytest
from peers.columns import LogLine
from peers.participants import HERE

COMMANDS = {
    "command": [str(HERE / "trial.sh"), "0.01", "7"],
    "function": [sys.executable, "-c", "from trial import wait; wait(0.01, 7)"],
}


@pytest.fixture(params=COMMANDS)
def trial(request, tmp_path):
    (tmp_path / "done").mkdir()
    variables = {"TRIAL_LOG": str(tmp_path / "trials.log"), "PYTHONPATH": str(HERE), "HOSTNAME": "of-another-host"}

    def run(**more: str) -> tuple[bool, list[LogLine]]:
        environment = os.environ | variables | more
        ended = subprocess.run(COMMANDS[request.param], env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL)
        lines = [LogLine.parse(line) for line in (tmp_path / "trials.log").read_text().splitlines()]
        return ended.returncode == 0, lines

    return run


def test_a_trial_appends_its_start_and_its_end(trial, tmp_path):
    succeeded, (start, end) = trial(CUDA_VISIBLE_DEVICES="3")
    assert succeeded
    assert (start.event, end.event) == ("start", "end")
    assert (start.index, start.device, start.host) == (7, "3", os.uname().nodename)
    assert (end.index, end.device, end.host, end.pid) == (7, "3", start.host, start.pid)
    assert end.time >= start.time + 0.01
    assert (tmp_path / "done/7").exists()


def test_a_trial_crashes_once(trial, tmp_path):
    (tmp_path / "crash-7").touch()
    succeeded, lines = trial(CUDA_VISIBLE_DEVICES="")
    assert not succeeded
    assert [(line.event, line.device) for line in lines] == [("start", "-"), ("crash", "-")]
    assert not (tmp_path / "done/7").exists()
    succeeded, lines = trial()
    assert succeeded
    assert [line.event for line in lines] == ["start", "crash", "start", "end"]


def test_a_trial_trains_if_there_is_a_training(trial, tmp_path):
    (tmp_path / "train.py").write_text(
        f"#!{sys.executable}\nimport sys\ndef train(blocks, seed): open('trained', 'w').write(f'{{blocks}} {{seed}}')\n"
        "if __name__ == '__main__': train(int(float(sys.argv[1])), int(sys.argv[2]))\n"
    )
    (tmp_path / "train.py").chmod(0o755)
    succeeded, lines = trial(PYTHONPATH=f"{HERE}:{tmp_path}")
    assert succeeded
    assert [line.event for line in lines] == ["start", "end"]
    assert (tmp_path / "trained").read_text() == "0 7"
