"""Which signals request a stop."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from project import ROOT
from slurm_cluster.waiting import PATIENCE_SECONDS
from trainyard.cluster.stop_request import StopRequest

HANGS_UP = """
import os, signal
from trainyard.cluster.stop_request import interrupt_at_stop_request
interrupt_at_stop_request()
os.kill(os.getpid(), signal.SIGHUP)
"""


@pytest.mark.parametrize(("option", "code"), [("--default-signal=HUP", -signal.SIGINT), ("--ignore-signal=HUP", 0)])
def test_a_closed_terminal_interrupts_a_program_unless_it_was_started_by_nohup(option, code):
    program = ["env", option, sys.executable, "-c", HANGS_UP]
    assert subprocess.run(program, cwd=ROOT / "scripts", capture_output=True, check=False).returncode == code


def test_a_stop_request_ends_a_wait():
    stop_request = StopRequest()
    before = signal.signal(signal.SIGUSR1, stop_request.make)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    began = time.monotonic()
    stop_request.wait(PATIENCE_SECONDS)
    signal.signal(signal.SIGUSR1, before)
    assert stop_request.is_made
    assert time.monotonic() - began < PATIENCE_SECONDS, "it did not wait to the end"
