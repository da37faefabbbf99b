"""What a training is at a moment: all that a checkpoint must hold for it to go on as if nothing had happened."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from trainyard.training.process_group import Group
from trainyard.training.step_timing import StepTimes
from trainyard.utils.errors import UserError


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to, over all ranks: a row of `history.csv`."""

    epoch: int  # counted from 1
    lr: float  # at the epoch's first step
    train_loss: float  # mean per image, as seen while training
    train_accuracy: float  # fraction, as seen while training
    val_loss: float  # mean cross-entropy per image
    val_accuracy: float
    images_per_second: float  # training images of all ranks, validation not counted
    seconds: float  # training and validation
    step_ms_p50: float
    step_ms_p95: float
    data_wait_fraction: float  # of the training time, that the leading rank waited for images


def epoch_line(row: Epoch, epochs: int) -> str:
    """The line that is printed for an epoch."""
    return (
        f"Epoch [{row.epoch}/{epochs}] LR: {row.lr:.6f} | "
        f"Loss (train, val): {row.train_loss:.3f}, {row.val_loss:.3f} | "
        f"Accuracy (train, val): {row.train_accuracy:.2%}, {row.val_accuracy:.2%} | "
        f"Throughput: {row.images_per_second:.1f} img/s"
    )


@dataclass
class EpochProgress:
    """How far the epoch in progress has come."""

    sums: Tensor  # of this rank: [loss sum, correct, images], float64, on the device
    lr: float  # at the epoch's first step
    step: int = 0  # steps taken
    seconds: float = 0.0  # spent in earlier sittings, on validation, too
    times: StepTimes = field(default_factory=StepTimes)  # of the steps taken in earlier sittings
    random: dict[str, Tensor] | None = None  # this rank's generators, where a sitting ended


@dataclass
class TrainingState:
    """All of a training that changes while it trains."""

    module: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler
    scaler: torch.amp.GradScaler
    group: Group
    history: list[Epoch] = field(default_factory=list)  # of the epochs that are complete
    progress: EpochProgress = field(init=False)

    def __post_init__(self) -> None:
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Nothing has been done yet of the next epoch."""
        sums = torch.zeros(3, dtype=torch.float64, device=self.group.device)
        self.progress = EpochProgress(sums=sums, lr=float(self.schedule.get_last_lr()[0]))

    @property
    def is_new(self) -> bool:
        """Whether no step has been taken, in this sitting or an earlier one."""
        return not self.history and not self.progress.step

    @property
    def best_epoch(self) -> int | None:
        """The first one of the highest validation accuracy."""
        accuracies = [row.val_accuracy for row in self.history]
        return 1 + accuracies.index(max(accuracies)) if accuracies else None

    def captured(self) -> dict[str, Any]:
        """The whole state, to be saved by the leading rank; called on all, as each has numbers of its own."""
        parts = {name: getattr(self, name).state_dict() for name in _PARTS}
        progress = {name: getattr(self.progress, name) for name in ("lr", "step", "seconds")}
        progress["times"] = asdict(self.progress.times)
        mine = {"random": _random_state(self.group.device), "sums": self.progress.sums.cpu()}
        rows = [asdict(row) for row in self.history]
        return {**parts, "history": rows, "progress": progress, "ranks": self.group.all_gather_object(mine)}

    def restore(self, state: dict[str, Any]) -> None:
        """Be what was captured, on as many ranks as there are now.

        Within an epoch, other ranks than then take up the sums, but begin with random numbers of their own.
        """
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.history[:] = [Epoch(**row) for row in state["history"]]
        self.begin_epoch()
        ranks, group = state["ranks"], self.group
        if not state["progress"]["step"]:
            return
        times = StepTimes(**state["progress"].pop("times"))
        self.progress = EpochProgress(sums=self.progress.sums, times=times, **state["progress"])
        if len(ranks) == group.world_size:
            self.progress.random = ranks[group.rank]["random"]
            self.progress.sums += ranks[group.rank]["sums"].to(group.device)
        elif group.is_main:
            self.progress.sums += torch.stack([each["sums"] for each in ranks]).sum(0).to(group.device)


_PARTS = ("module", "optimizer", "schedule", "scaler")


def check_global_batch(then: int, now: int) -> None:
    """The rule by which a training may go on on another number of GPUs: the images of a step are the same.

    Raises:
        UserError: they are not.
    """
    if then != now:
        raise UserError(f"the checkpoint is of a training with {then} images per step, here there would be {now}: on "
                        "another number of GPUs, it continues with the same `global_batch_size` only")  # fmt: skip


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Have the generators go on from where they were."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
