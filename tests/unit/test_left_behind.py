"""A test that leaves something behind in its process is an error, and later tests do not meet it."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from left_behind import Surroundings
from project import ROOT


def start_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


LEAVE = {
    "a process group": start_group,
    "the folder /": lambda: os.chdir("/"),
    "the handler of SIGUSR1": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "the default dtype torch.float64": lambda: torch.set_default_dtype(torch.float64),
}


@pytest.mark.parametrize("what", LEAVE)
def test_what_a_test_leaves_is_found_and_taken_back(what):
    before = Surroundings.now()
    LEAVE[what]()
    assert before.left_since() == [what]
    before.restore()
    assert before.left_since() == []


def test_what_a_test_leaves_in_the_environment_is_taken_back(monkeypatch):
    monkeypatch.setenv("HELD", "before")
    before = Surroundings.now()
    os.environ |= {"HELD": "after", "LEFT": "1"}
    before.restore()
    assert ("LEFT" in os.environ, os.environ["HELD"]) == (False, "before")


def test_threads_that_a_test_leaves_are_found_and_those_that_are_ending_are_not(monkeypatch):
    before, goes_on = Surroundings.now(), threading.Event()
    thread = threading.Thread(target=goes_on.wait, name="left")
    thread.start()
    monkeypatch.setattr("left_behind.END_SECONDS", 0.0)
    assert before.left_since() == ["the thread left"]
    monkeypatch.undo()
    threading.Timer(0.1, goes_on.set).start()
    assert before.left_since() == []


def test_the_tests_get_sigint_also_where_it_is_ignored():
    """As in the background of a script, and under nohup."""
    code = "import signal, left_behind as l; l.receive_interrupts(); signal.raise_signal(signal.SIGINT)"
    line = ["sh", "-c", 'trap "" INT; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(line, cwd=ROOT / "tests", text=True, capture_output=True, check=False)
    assert "KeyboardInterrupt" in done.stderr
