"""Exit codes of programs, independent of inherited signal handlers and of running threads."""

import os
import signal
import subprocess
import sys

from slurm_cluster.waiting import PATIENCE_SECONDS, finished
from yard import ROOT

# Rank 1 exits while a collective still runs in a thread of its process group. The thread waits for the GIL, which the
# last exit handler holds, when the interpreter would be finalized; finalization takes long here.
RANKS = """
import argparse, atexit, ctypes, sys, time
from contextlib import suppress
import torch
import torch.distributed as dist
from trainyard.cli import command_line

class SlowToFinalize:
    def __del__(self):
        time.sleep(1)

values = torch.ones(4)

def main(arguments):
    global slow
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        time.sleep(1)
        with suppress(RuntimeError):  # rank 1 has ended
            dist.all_reduce(values)
        time.sleep(3)
        return
    slow = SlowToFinalize()
    sys.setswitchinterval(10)
    atexit.register(ctypes.PyDLL(None).usleep, 2_000_000)
    dist.all_reduce(values, async_op=True)
    print("rank 1 is done")

command_line.run_program(main, argparse.Namespace(log_file=None))
"""

WAITING = """
import argparse, time
from trainyard.cli import command_line

def main(arguments):
    print("it runs", flush=True)
    time.sleep(3600)

command_line.run_program(main, argparse.Namespace(log_file=None))
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "scripts"), "OMP_NUM_THREADS": "1"}


def test_a_rank_exits_with_0_while_its_process_group_is_active(tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path),
                "--nproc-per-node", "2"]  # fmt: skip
    done = finished([*torchrun, "ranks.py"], cwd=tmp_path, env=ENVIRONMENT)
    assert "rank 1 is done" in done.stdout, "the last output is flushed"


def test_a_background_program_handles_sigint_and_under_nohup_ignores_sighup():
    """A shell starts it with SIGINT ignored, nohup with SIGHUP ignored; it must handle SIGINT."""
    ignoring = ["env", "--ignore-signal=INT", "--ignore-signal=HUP"]
    command = [*ignoring, sys.executable, "-c", WAITING]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "it runs\n"
        program.send_signal(signal.SIGHUP)
        program.send_signal(signal.SIGINT)
        try:
            said, _ = program.communicate(timeout=PATIENCE_SECONDS)
        finally:
            program.kill()
    assert program.returncode == 130
    assert said == "interrupted: finished work is kept; the same command continues from there\n"
