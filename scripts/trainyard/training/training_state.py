"""The state of a training: everything that an interrupted training needs to resume exactly."""

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainyard.config.train import Training
from trainyard.training.epoch_metrics import EpochMetrics, best_epoch
from trainyard.training.loss_and_metrics import SUMS
from trainyard.training.optimizers import WeightAverage, current_lr
from trainyard.training.process_group import Group
from trainyard.training.running_statistics import copy_buffers, create_buffers, reduce_buffers, set_buffers
from trainyard.training.sampler import derived_seed
from trainyard.training.step_timing import StepTimes


@dataclass
class EpochProgress:
    """The part of the current epoch that has been trained."""

    sums: Tensor  # of this rank: [loss sum, correct, images], float64, on the device
    lr: float  # at the first step
    step: int = 0  # steps taken
    seconds: float = 0.0  # spent in previous runs, including validation
    times: StepTimes = field(default_factory=StepTimes)  # of the steps taken in previous runs
    random: dict[str, Any] | None = None  # state of this rank's generators at the end of the previous run


@dataclass
class TrainingState:
    """Everything that changes during a training."""

    module: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler
    scaler: torch.amp.GradScaler
    group: Group
    spec: Training
    loss: nn.Module | None = None  # of the user
    average: WeightAverage | None = None
    history: list[EpochMetrics] = field(default_factory=list)  # complete epochs
    progress: EpochProgress = field(init=False)

    def __post_init__(self) -> None:
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Reset `progress` for the next epoch."""
        sums = torch.zeros(SUMS, dtype=torch.float64, device=self.group.device)
        self.progress = EpochProgress(sums=sums, lr=current_lr(self.optimizer))

    @property
    def is_new(self) -> bool:
        """Whether no step has been taken, neither now nor in a previous run."""
        return not self.history and not self.progress.step

    @property
    def best_epoch(self) -> int | None:
        """The first epoch with the best value of the metric of the training."""
        return best_epoch(self.spec, self.history)

    def best_of(self, epochs: Iterable[int]) -> int | None:
        """The best of some complete epochs, by the same metric."""
        known = sorted(epoch for epoch in epochs if epoch <= len(self.history))
        place = best_epoch(self.spec, [self.history[epoch - 1] for epoch in known])
        return known[place - 1] if place else None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of the complete epochs by column."""
        return [row.as_row() for row in self.history]

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks. Collective: every rank must call it.

        Within an epoch, it gives all ranks the same buffers, for a training that continues on another number of them.
        """
        name, keys, *rest = cast(tuple[Any, ...], np.random.get_state())
        drawn = {"cpu": torch.get_rng_state(), "python": random.getstate(), "numpy": (name, keys.tolist(), *rest)}
        if self.group.device.type == "cuda":
            drawn["cuda"] = torch.cuda.get_rng_state(self.group.device)
        mine: dict[str, Any] = {"random": drawn, "sums": self.progress.sums.cpu()}
        if self.loss is not None:
            mine["loss_buffers"] = copy_buffers(self.loss)
        if self.progress.step and self.group.world_size > 1:
            for key, module in self.modules.items():
                mine[key] = copy_buffers(module)
                reduce_buffers(module, self.group)
        parts = {name: part.state_dict() for name, part in self._parts.items()}
        progress = {name: getattr(self.progress, name) for name in ("lr", "step", "seconds")}
        progress["times"] = asdict(self.progress.times)
        return {**parts, "history": self.rows, "progress": progress, "ranks": self.group.all_gather_object(mine)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, on any number of ranks.

        Within an epoch, a different number of ranks keeps the sums, but gets new random numbers. An own loss then has
        the buffers of rank 0.
        """
        for name, part in self._parts.items():
            if isinstance(part, nn.Module):
                create_buffers(part, state[name], self.group.device)
            if part is self.optimizer:  # its new state would be beside the saved one on the device for a moment
                part.state.clear()
            if state[name]:  # a scaler that was not enabled has none, and one that is enabled refuses that
                part.load_state_dict(state[name])
        self.history[:] = [EpochMetrics.from_row(row) for row in state["history"]]
        self.begin_epoch()
        ranks = state["ranks"]
        group = self.group
        mine = ranks[group.rank if len(ranks) == group.world_size else 0]
        if self.loss is not None:
            set_buffers(self.loss, mine.get("loss_buffers", {}), group.device)
        if not state["progress"]["step"]:
            return
        times = StepTimes(**state["progress"].pop("times"))
        self.progress = EpochProgress(sums=self.progress.sums, times=times, **state["progress"])
        if len(ranks) == group.world_size:
            self.progress.random = mine["random"]
            self.progress.sums += mine["sums"].to(group.device)
            for key, module in self.modules.items():
                set_buffers(module, mine.get(key, {}), group.device)
        elif group.is_main:
            self.progress.sums += torch.stack([each["sums"] for each in ranks]).sum(0).to(group.device)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The model and, if its weights are averaged, the average, by the key of a rank's buffers in a checkpoint."""
        return {"buffers": self.module} | ({"average_buffers": self.average.module} if self.average else {})

    @property
    def _parts(self) -> dict[str, Any]:
        """The objects that have a state, by their keys in a checkpoint."""
        parts = {"module": self.module, "optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        return parts | ({"average": self.average.module} if self.average else {})


def seed_generators(seed: int) -> None:
    """Seed the generators of torch, and those of numpy and Python, which code of a user may use."""
    torch.manual_seed(seed)
    np.random.seed(derived_seed(seed))  # it takes 32 bits only
    random.seed(seed)


def set_random_state(progress: EpochProgress, group: Group, *, seed: int, epoch: int) -> None:
    """Seed the generators for this epoch and rank, or restore them within an interrupted epoch."""
    steps_taken = [progress.step] if progress.step else []
    seed_generators(derived_seed(seed, epoch, group.rank, *steps_taken))
    if progress.random is not None:
        random.setstate(progress.random["python"])
        np.random.set_state(progress.random["numpy"])
        torch.set_rng_state(progress.random["cpu"])
        if group.device.type == "cuda" and "cuda" in progress.random:
            torch.cuda.set_rng_state(progress.random["cuda"], group.device)
