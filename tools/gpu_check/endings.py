"""Checks of how trainings end early: at a deadline, and after an error of a rank.

This module is also the program of the rank: `torchrun -m gpu_check.endings` fails while it is in a process group.
"""

import argparse
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from trainyard.cli import command_line
from trainyard.training.checkpoints import CheckpointStore
from trainyard.training.process_group import process_group
from trainyard.training.trainer import TrainingInterrupted
from trainyard.training.untimed_steps import warm_up

from gpu_check.rig import SMALL, Rig, changed, start

GRACE_SECONDS = 20  # after the deadline, until a training that goes on is given up
RANK_SECONDS = 60  # for a rank to start, fail and exit


def check_stop(rig: Rig) -> None:
    """A training with a deadline has saved a checkpoint by then, with short and with long steps."""
    data = rig.images(count=2**16, val_count=64)
    for accumulation in (1, rig.size(512, 4)):
        spec = changed(SMALL, epochs=1000, accumulation=accumulation)
        deadline = time.time() + rig.size(10.0, 0.5)
        name = f"stop, accumulation {accumulation}"
        with tempfile.TemporaryDirectory() as folder:
            store = CheckpointStore(Path(folder) / "checkpoints")
            trainer = start(spec, data, store=store, deadline=deadline)
            warm_up(trainer)
            try:
                for _ in trainer.epochs():
                    if time.time() > deadline + GRACE_SECONDS:
                        break
            except TrainingInterrupted as error:
                early = deadline - time.time()
                is_saved = start(spec, data, store=store).state.progress.step == trainer.state.progress.step
                seen = f"{error}, {early:.1f} s before the deadline; saved: {is_saved}"
                # The first save takes as long as it takes; a CPU that is busy with other work has steps of any length.
                rig.report.check(name, is_saved and (early > -0.5 or not rig.has_gpu), seen)
            else:
                rig.report.check(name, False, f"the training went on after its deadline, for {GRACE_SECONDS} s")


def check_failing_rank(rig: Rig) -> None:
    """A rank that raises while NCCL works exits with code 1, and neither hangs nor is aborted."""
    began = time.monotonic()
    done = rig.run_ranks("gpu_check.endings", timeout=RANK_SECONDS)
    if done is None:
        rig.report.check("failing rank", False, f"not ended after {RANK_SECONDS} s")
        return
    passed = done.returncode == 1 and "planned" in done.stdout and "SIGABRT" not in done.stderr
    seen = f"ended after {time.monotonic() - began:.1f} s" if passed else (done.stdout + done.stderr)[-600:]
    rig.report.check("failing rank", passed, seen)


def fail(_: argparse.Namespace) -> None:
    """Raise an error while a collective operation is in flight."""
    with process_group() as group:
        for _number in range(10):
            dist.all_reduce(torch.ones(2**20, device=group.device), async_op=True)
        raise RuntimeError("planned")


if __name__ == "__main__":
    command_line.run_program(fail, argparse.Namespace(log_file=None))
