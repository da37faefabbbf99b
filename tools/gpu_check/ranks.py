"""Checks of distributed trainings: one rank with NCCL, and two ranks with gloo that share the device.

This module is also the program of a rank: `torchrun -m gpu_check.ranks <nccl|gloo>` prints a line of JSON per case.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from trainyard.config.train import Train
from trainyard.training.process_group import Group, process_group
from trainyard.training.untimed_steps import warm_up

from gpu_check.report import Report
from gpu_check.rig import SMALL, Rig, changed, start

TIMEOUT_SECONDS = 150
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "activation checkpointing": {"activation_checkpointing": True},
}


class LoneGroup(Group):
    """One rank that uses DDP and collectives all the same: NCCL does not let two ranks share a GPU."""

    @property
    def _as_several(self) -> Group:
        return Group(self.rank, self.local_rank, 2, self.device)

    def wrap(self, model: nn.Module, **options: Any) -> nn.Module:
        """See `Group`."""
        return self._as_several.wrap(model, **options)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """See `Group`."""
        return self._as_several.all_reduce_sum(values)

    def all_reduce_min(self, values: Tensor) -> dist.Work | None:
        """See `Group`."""
        return self._as_several.all_reduce_min(values)


def check_one_rank(rig: Rig) -> None:
    """DDP and collectives of NCCL work; without a GPU, of gloo."""
    _check_ranks(rig, "nccl", ranks=1)


def check_two_ranks(rig: Rig) -> None:
    """Two ranks end with the same weights and the same running statistics."""
    _check_ranks(rig, "gloo", ranks=2)


def _check_ranks(rig: Rig, backend: str, *, ranks: int) -> None:
    name = f"{ranks} {'rank' if ranks == 1 else 'ranks'}, {rig.size(backend, 'gloo')}"
    timeout = max(1.0, min(TIMEOUT_SECONDS, rig.report.remaining_seconds))
    done = rig.run_ranks("gpu_check.ranks", backend, ranks=ranks, timeout=timeout)
    if done is None:
        rig.report.check(name, False, f"not finished after {timeout:.0f} s")
        return
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    for line in lines:
        rig.report.check(f"{name}, {line['case']}", line["passed"], line["seen"])
    if done.returncode or not lines:
        rig.report.check(name, False, f"exit code {done.returncode}: {(done.stdout + done.stderr)[-600:]}")


def run_rank(backend: str) -> None:
    """Train every case on this rank; rank 0 prints what it has seen."""
    with _lone_group() if backend == "nccl" else _shared_device() as group:
        rig = Rig(group.device, Report(Path(os.devnull), seconds=TIMEOUT_SECONDS))
        for case, options in CASES.items():
            spec = changed(SMALL, batch_size=64 // group.world_size, precision=rig.size("bf16", "fp32"), **options)
            found = _train(rig, spec, group)
            if group.is_main:
                print(json.dumps({"case": case, **found}), flush=True)


def _train(rig: Rig, spec: Train, group: Group) -> dict[str, Any]:
    """Train an epoch; returns whether all ranks have the same model, and what was seen."""
    try:
        trainer = start(spec, rig.images(count=1024, side=16, val_count=130), group=group)
        warm_up(trainer)
        row = next(trainer.epochs())
        state = torch.cat([value.double().flatten() for value in trainer.module.state_dict().values()]).cpu()
        difference = max(float((other - state).abs().max()) for other in group.all_gather_object(state))
    except Exception as error:
        return {"passed": False, "seen": f"{type(error).__name__}: {error}"[:300]}
    speed = f"{row.images_per_second:.0f} img/s"
    seen = f"train loss {row.train_loss:.4f}, {speed}"
    if group.world_size > 1:
        seen += f", largest difference between the models of two ranks {difference:.2g}"
    return {"passed": difference == 0, "seen": seen}


@contextmanager
def _lone_group() -> Iterator[Group]:
    with process_group() as group:
        yield LoneGroup(group.rank, group.local_rank, group.world_size, group.device)


@contextmanager
def _shared_device() -> Iterator[Group]:
    """Ranks that share a GPU, which `process_group` does not intend."""
    dist.init_process_group("gloo")
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    try:
        yield Group(dist.get_rank(), int(os.environ["LOCAL_RANK"]), dist.get_world_size(), device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_rank(sys.argv[1])
