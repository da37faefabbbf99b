"""What a training minimizes and what it reports: the loss, and sums over images that add up over batches and ranks."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainyard.config.train import Train
from trainyard.training.networks.running_statistics import unchanged_buffers
from trainyard.training.own_metrics import (
    Loss,
    ObjectiveError,
    check_loss,
    check_sums,
    load_loss,
    load_metric,
    naming,
)

SUMS: Final = 3  # loss sum, correct, images
_TRIED: Final = 2  # images of zeros, on which own code is tried before the training


@dataclass(frozen=True)
class Means:
    """Metrics over all ranks."""

    loss: float  # per image
    accuracy: float | None  # None if labels are numbers instead of classes
    images: float  # that were counted
    own: dict[str, float] = field(default_factory=dict)  # the `metrics` of the config by name


class Objective:
    """The loss and the metrics of a training.

    `outputs` come from the model, float (B, classes). Targets are the labels of a batch: classes, int64 (B,); after
    mixing their probabilities, float32 (B, classes); or if the dataset has numbers as labels, float32 (B, classes). Own
    losses and metrics get the outputs as float32.

    Raises:
        ObjectiveError: an own loss or a metric fails on a batch of zeros.
        UserError: it cannot be imported.
    """

    def __init__(self, spec: Train, device: torch.device, *, classes: int, numeric: bool) -> None:
        self._smoothing, self._classes, self._numeric = spec.label_smoothing, classes, numeric
        self._own_loss = load_loss(spec.loss, spec.loss_args, device) if spec.has_own_loss else None
        self._loss_path, self._paths = spec.loss, dict(spec.metrics)
        self._metrics = {name: load_metric(path) for name, path in spec.metrics.items()}
        self._sizes = self._try(spec, device) if self._own_loss is not None or self._metrics else []

    @property
    def own_module(self) -> nn.Module | None:
        """The own loss if it is a module, whose buffers belong to the state of the training; each rank has its own."""
        return self._own_loss if isinstance(self._own_loss, nn.Module) else None

    def _try(self, spec: Train, device: torch.device) -> list[int]:
        """Compute own loss and metrics once; returns the number of sums of each metric.

        A rank without validation images has to know it, and errors show before the first epoch instead of after it.
        """
        outputs = torch.zeros(_TRIED, self._classes, device=device, requires_grad=True)
        targets = self.zero_targets(_TRIED, device)
        if self._own_loss is not None:
            mixes = not self._numeric and (spec.augment.mixup or spec.augment.cutmix)
            labels = nn.functional.one_hot(targets, self._classes).float() if mixes else targets
            with naming("loss", spec.loss), unchanged_buffers(*filter(None, [self.own_module])):
                check_loss(self._own_loss(outputs, labels))
        sizes = []
        for name, metric in self._metrics.items():
            with naming("metric", spec.metrics[name]):
                sums = metric.sums(outputs.detach(), targets)
                check_sums(sums, outputs.device, size=None)
                sizes.append(len(sums))
                value: Any = 0.0
                with suppress(ArithmeticError, ValueError):  # a division by 0, or the logarithm of it
                    value = metric.value(sums.double().cpu())
                float(value)
        return sizes

    def zero_targets(self, count: int, device: torch.device) -> Tensor:
        """Targets of a batch of `count` images, all zero."""
        if self._numeric:
            return torch.zeros(count, self._classes, device=device)
        return torch.zeros(count, dtype=torch.int64, device=device)

    def loss(self, outputs: Tensor, targets: Tensor, *, training: bool) -> Tensor:
        """The mean loss of a batch, a scalar; label smoothing is in the training loss only."""
        if self._numeric and outputs.shape != targets.shape:  # many losses would broadcast them
            shapes = f"outputs of the shape {tuple(outputs.shape)}, but the labels have {tuple(targets.shape)}"
            raise ObjectiveError(f"the model returns {shapes}")
        if self._own_loss is not None:
            return self._own_loss_of(outputs.float(), targets, self._own_loss)
        smoothing = self._smoothing if training else 0.0
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=smoothing)

    def _own_loss_of(self, outputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        if torch.compiler.is_compiling():  # which reports errors with a stack trace of its own
            return loss(outputs, targets)
        with naming("loss", self._loss_path):
            value = loss(outputs, targets)
            check_loss(value)
        return value

    def zeros(self, device: torch.device) -> Tensor:
        """The sums of no validation images."""
        return torch.zeros(SUMS + sum(self._sizes), dtype=torch.float64, device=device)

    def sums(self, loss: Tensor, outputs: Tensor, targets: Tensor, *, training: bool) -> Tensor:
        """[loss sum, correct, images] of a batch with this mean loss, in validation followed by the sums of metrics.

        float64, on the device.
        """
        outputs, count = outputs.detach(), len(targets)
        hits = torch.zeros_like(targets) if self._numeric else outputs.argmax(1) == main_labels(targets)
        correct = hits.sum()
        counted = torch.full_like(correct, count)
        sums = torch.stack([loss.detach().double() * count, correct.double(), counted.double()])
        if training or not self._metrics:
            return sums
        sizes = zip(self._metrics, self._sizes, strict=True)
        return torch.cat([sums, *(self._own_sums(name, outputs.float(), targets, size=size) for name, size in sizes)])

    def _own_sums(self, name: str, outputs: Tensor, targets: Tensor, *, size: int) -> Tensor:
        with naming("metric", self._paths[name]):
            sums = self._metrics[name].sums(outputs, targets)
            check_sums(sums, outputs.device, size=size)
            return sums.double()

    def means(self, sums: Tensor) -> Means:
        """The metrics of all images whose `sums` were added up, over all batches and ranks."""
        loss, correct, images = sums[:SUMS].tolist()
        accuracy = None if self._numeric else correct / images
        own = self._own_values(torch.split(sums[SUMS:].cpu(), self._sizes)) if len(sums) > SUMS else {}
        return Means(loss / images, accuracy, images, own)

    def _own_values(self, sums: Sequence[Tensor]) -> dict[str, float]:
        return {name: self._value(name, part) for name, part in zip(self._metrics, sums, strict=True)}

    def _value(self, name: str, sums: Tensor) -> float:
        with naming("metric", self._paths[name]):
            return float(self._metrics[name].value(sums))


def main_labels(targets: Tensor) -> Tensor:
    """The labels of a batch, int64 (B,): of mixed ones, those with the largest share."""
    return targets.argmax(1) if targets.ndim == 2 else targets
