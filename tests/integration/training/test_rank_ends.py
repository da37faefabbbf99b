"""How ranks end while others, or threads of their own, still wait in a collective operation."""

import os
import subprocess
import sys

from project import ROOT
from slurm_cluster.waiting import PATIENCE_SECONDS
from trainyard.cluster.host import reserved_port

# Rank 0 joins and then takes part in nothing.
HANGING = """
import argparse, time
import torch, torch.distributed as dist
from trainyard.cli import command_line
from trainyard.training.process_group import process_group

def main(arguments):
    with process_group() as group:
        other = dist.new_group()
        if group.is_main:
            time.sleep(600)
        dist.all_reduce(torch.ones(1), group=other, async_op=True)
        group.limit_collectives(2 / 60)
        dist.all_reduce(torch.ones(1))

command_line.run_program(main, argparse.Namespace(log_file=None))
"""
# Rank 1 exits while a collective still runs in a thread of its process group. The thread waits for the GIL, which the
# last exit handler holds, when the interpreter would be finalized; finalization takes long here.
ACTIVE = """
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


def end_of_rank_1(folder, program):
    """The output and the exit code of the second of two ranks, after which the first one is killed."""
    (folder / "program.py").write_text(program)
    with reserved_port() as port:
        common = {"PYTHONPATH": str(ROOT / "scripts"), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                  "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                  "TORCHELASTIC_RUN_ID": "0"}  # fmt: skip
        ranks = [
            subprocess.Popen(
                [sys.executable, folder / "program.py"],
                text=True,
                stdout=subprocess.PIPE,
                env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]
        try:
            return ranks[1].communicate(timeout=PATIENCE_SECONDS)[0], ranks[1].returncode
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def test_a_rank_leaves_after_a_timeout_while_another_operation_waits_for_longer(tmp_path):
    said, code = end_of_rank_1(tmp_path, HANGING)
    assert code == 1
    assert "rank 1 timed out in a collective operation: another rank hangs" in said
    assert "Traceback" not in said


def test_a_rank_exits_with_0_while_its_process_group_is_active(tmp_path):
    said, code = end_of_rank_1(tmp_path, ACTIVE)
    assert code == 0
    assert "rank 1 is done" in said, "the last output is flushed"
