"""Which signals are a notice to end."""

import signal
import subprocess
import sys

import pytest
from yard import ROOT

HANGS_UP = """
import os, signal
from trainyard.utils.stop_notice import interrupt_at_notice
interrupt_at_notice()
os.kill(os.getpid(), signal.SIGHUP)
"""


@pytest.mark.parametrize(("option", "code"), [("--default-signal=HUP", -signal.SIGINT), ("--ignore-signal=HUP", 0)])
def test_a_closed_terminal_interrupts_a_program_unless_it_was_started_by_nohup(option, code):
    program = ["env", option, sys.executable, "-c", HANGS_UP]
    assert subprocess.run(program, cwd=ROOT / "scripts", capture_output=True, check=False).returncode == code
