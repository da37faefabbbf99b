"""The training loop: the only one, for a trial of a sweep and for a rank of a distributed training alike."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from trainyard import models, optimizers
from trainyard.checkpoints import CheckpointStore
from trainyard.config import Train
from trainyard.distributed import Group
from trainyard.errors import UserError
from trainyard.loading import (
    DeviceData,
    DeviceSplit,
    derived_seed,
    steps_per_epoch,
    training_batches,
    validation_batches,
)
from trainyard.telemetry import StepTimer, synchronise

_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Diverged(UserError):
    """The loss became NaN or infinite."""


@dataclass(frozen=True)
class Epoch:
    """What one epoch came to, over all ranks: a row of `history.csv`."""

    epoch: int  # counted from 1
    lr: float  # at the epoch's first step
    train_loss: float  # mean cross-entropy per image, as seen while training
    train_accuracy: float  # fraction, as seen while training
    val_loss: float
    val_accuracy: float
    images_per_second: float  # training images of all ranks, validation not counted
    seconds: float  # training and validation
    step_ms_p50: float
    step_ms_p95: float


def epoch_line(row: Epoch, epochs: int) -> str:
    """The line that is printed for an epoch."""
    return (
        f"Epoch [{row.epoch}/{epochs}] LR: {row.lr:.6f} | "
        f"Loss (train, val): {row.train_loss:.3f}, {row.val_loss:.3f} | "
        f"Accuracy (train, val): {row.train_accuracy:.2%}, {row.val_accuracy:.2%} | "
        f"Throughput: {row.images_per_second:.1f} img/s"
    )


class Training:
    """A training in progress: iterate over `epochs()` to train it.

    `spec.batch_size` may mean the batch of a trial, of a GPU or of all GPUs together; `batch_size` is what each rank
    takes per step. With a `store`, rank 0 keeps a checkpoint after each epoch, and a training continues from the last.

    Raises:
        models.ModelError, datasets.DataError: the model or the data do not fit the spec.
    """

    def __init__(
        self, spec: Train, data: DeviceData, group: Group, *, batch_size: int, store: CheckpointStore | None = None
    ) -> None:
        torch.manual_seed(spec.seed)
        self.spec, self.data, self.group, self.batch_size, self.store = spec, data, group, batch_size, store
        self.steps = steps_per_epoch(len(data.train), self.global_batch)
        model = models.build(spec.model, channels=data.channels, classes=data.classes, arguments=spec.model_args)
        self.module = model.to(group.device)
        self.model = group.wrap(self.module)
        self.optimizer = optimizers.build(spec, self.module)
        self.schedule = LambdaLR(self.optimizer, optimizers.lr_factor(spec.schedule, self.steps, spec.epochs))
        self.scaler = torch.amp.GradScaler(group.device.type, enabled=spec.precision == "fp16")
        self.history: list[Epoch] = []
        self.first_step_time: float | None = None  # Unix seconds, when the first step taken now had ended
        if store:
            self._load(store.latest())

    def epochs(self) -> Iterator[Epoch]:
        """Train the epochs that are missing, each yielded once its checkpoint is durable; `history` has all of them.

        Raises:
            Diverged: the loss became NaN or infinite.
        """
        for number in range(len(self.history) + 1, self.spec.epochs + 1):
            row = self._epoch(number)
            self.history.append(row)
            if self.store and self.group.leads:
                self.store.save(number, self._state())
            yield row

    @property
    def global_batch(self) -> int:
        """Images per step over all ranks."""
        return self.batch_size * self.group.world_size

    def _state(self) -> dict[str, Any]:
        parts = {name: getattr(self, name).state_dict() for name in ("module", "optimizer", "schedule", "scaler")}
        return {**parts, "history": [asdict(row) for row in self.history]}

    def _load(self, state: dict[str, Any] | None) -> None:
        """Continue from a checkpoint. Random numbers need none: every epoch draws from seeds of its own."""
        if state is None:
            return
        for name in ("module", "optimizer", "schedule", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        self.history = [Epoch(**row) for row in state["history"]]

    def _epoch(self, number: int) -> Epoch:
        """Train and validate once."""
        torch.manual_seed(derived_seed(self.spec.seed, number, self.group.rank))
        started, lr = time.perf_counter(), float(self.schedule.get_last_lr()[0])
        timer = StepTimer(self.group.device)
        sums = self._train_epoch(number, timer)
        step_ms_p50, step_ms_p95 = timer.percentiles_ms()
        trained = time.perf_counter()
        train_loss, train_accuracy, images = self._means(sums)
        if not math.isfinite(train_loss):
            raise Diverged(f"the training loss became {train_loss} in epoch {number}: try a lower lr or a warm-up")
        val_loss, val_accuracy, _ = self._means(self._validate(self.data.val))
        return Epoch(
            epoch=number,
            lr=lr,
            train_loss=train_loss,
            train_accuracy=train_accuracy,
            val_loss=val_loss,
            val_accuracy=val_accuracy,
            images_per_second=images / (trained - started),
            seconds=time.perf_counter() - started,
            step_ms_p50=step_ms_p50,
            step_ms_p95=step_ms_p95,
        )

    def _train_epoch(self, number: int, timer: StepTimer) -> Tensor:
        """One pass over the training images; returns this rank's [loss sum, correct, images], kept on the device."""
        self.model.train()
        sums = torch.zeros(3, dtype=torch.float64, device=self.group.device)
        batches = training_batches(
            len(self.data.train),
            global_batch=self.global_batch,
            rank=self.group.rank,
            world_size=self.group.world_size,
            seed=self.spec.seed,
            epoch=number,
        )
        for indices in batches:
            loss, batch_sums = self._forward(self.model, self.data.train, indices)
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.schedule.step()
            sums += batch_sums
            timer.mark()
            self.first_step_time = self.first_step_time or time.time()
        return sums

    @torch.no_grad()
    def _validate(self, split: DeviceSplit) -> Tensor:
        """[loss sum, correct, images] of this rank's share of a split."""
        self.module.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.group.device)
        shares = validation_batches(
            len(split), batch=self.batch_size, rank=self.group.rank, world_size=self.group.world_size
        )
        for indices in shares:
            sums += self._forward(self.module, split, indices)[1]
        synchronise(self.group.device)
        return sums

    def _forward(self, model: nn.Module, split: DeviceSplit, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Mean loss of a batch, and its [loss sum, correct, images] in float64."""
        indices = indices.to(self.group.device, non_blocking=True)
        images, labels = self.data.normalised(split.images[indices]), split.labels[indices]
        dtype = _AUTOCAST[self.spec.precision]
        with torch.autocast(self.group.device.type, dtype=dtype, enabled=dtype is not None):
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
        correct = (logits.detach().argmax(1) == labels).sum()
        count = torch.full_like(correct, len(labels))
        return loss, torch.stack([loss.detach().double() * len(labels), correct.double(), count.double()])

    def _means(self, sums: Tensor) -> tuple[float, float, float]:
        """(mean loss, accuracy, images) over all ranks."""
        loss, correct, images = self.group.total(sums).tolist()
        return loss / images, correct / images, images
