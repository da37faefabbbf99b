"""What a training minimizes and reports: losses and metrics by name, or by the path of a user's own code."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn

from trainyard.config.train import Train
from trainyard.training.out_of_memory import is_out_of_memory
from trainyard.training.running_statistics import unchanged_buffers
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import USER_CODE_ERRORS, error_line, import_object

Loss = Callable[[Tensor, Tensor], Tensor]


class ObjectiveError(UserError):
    """A loss or a metric does not fit the model or the labels; the message names it and the reason."""


class SummedMetric(Protocol):
    """A metric that is a function of sums over images, as F1 and R2 are."""

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sums over the images of a batch, (K,) with the same K for every batch."""

    def value(self, sums: Tensor) -> float:
        """The metric, from the sums over all batches and ranks: float64 (K,), on the CPU."""


@dataclass(frozen=True)
class MeanMetric:
    """The mean over all images of a function that returns a value for each image, (B,)."""

    function: Loss

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[sum of the values, images] of a batch."""
        values = self.function(outputs, targets)
        if not isinstance(values, Tensor) or values.shape != (len(targets),):
            raise ObjectiveError(
                f"it returns {_kind(values)} for {len(targets)} images: return a tensor with one value per image; a "
                "metric that is not a mean over images is a class with the methods `sums` and `value`"
            )
        total = values.double().sum()
        return torch.stack([total, torch.full_like(total, len(values))])

    def value(self, sums: Tensor) -> float:
        """The mean."""
        return float(sums[0] / sums[1])


def top5_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the class of each image is among the five with the largest outputs: bool (B,)."""
    if targets.is_floating_point():
        raise ObjectiveError("it is for classes, but the labels of the dataset are numbers (`targets`)")
    if outputs.shape[1] < 5:
        raise ObjectiveError(f"it needs at least 5 classes, but the dataset has {outputs.shape[1]}")
    return (outputs.topk(5, dim=1).indices == targets.view(-1, 1)).any(1)


_KNOWN: Final[Mapping[str, Loss]] = {"top5_accuracy": top5_accuracy}


def load_loss(path: str, arguments: Mapping[str, Any], device: torch.device) -> Loss:
    """The loss at an import path: a function, called with `arguments` too, or an object of a class made from them."""
    found = import_object(path, role="loss")
    with naming("loss", path):
        made = found(**arguments) if isinstance(found, type) else partial(found, **arguments)
        if not isinstance(made, nn.Module):
            return cast(Loss, made)
        if any(parameter.requires_grad for parameter in made.parameters()):
            raise ObjectiveError("it has parameters, which are not trained: move them to the model, or freeze them")
    return made.to(device)


class TorchMetric:
    """A metric of torchmetrics as a function of sums: of its states, which it adds up over batches."""

    def __init__(self, metric: Any, device: torch.device) -> None:
        self._metric = metric.to(device)
        for name, reduction in metric._reductions.items():
            if getattr(reduction, "__name__", "") != "dim_zero_sum":
                remedy = "; a curve is of constant size with the argument `thresholds`, such as 200"
                raise ObjectiveError(f"its {name!r} are no sums over images: it would keep the outputs of all{remedy}")

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The states after a batch."""
        self._metric.reset()
        self._metric.update(outputs, targets)
        return torch.cat([getattr(self._metric, name).double().flatten() for name in self._metric._defaults])

    def value(self, sums: Tensor) -> float:
        """The metric of the summed states."""
        states = self._metric._defaults
        parts = torch.split(sums, [each.numel() for each in states.values()])
        for (name, default), part in zip(states.items(), parts, strict=True):
            setattr(self._metric, name, part.view_as(default).to(getattr(self._metric, name)))
        self._metric._computed = None
        self._metric._to_sync = False  # over the ranks: the sums are those of all
        value: Tensor = self._metric.compute()
        if value.numel() != 1:
            raise ObjectiveError(f"it has {value.numel()} values: give it an `average`, such as macro")
        return float(value)


def load_metric(
    path: str, arguments: Mapping[str, Any] | None = None, *, classes: int, device: torch.device
) -> SummedMetric:
    """The metric of this name or import path: a function of a batch, or an object or class with `sums` and `value`.

    A class is called with the arguments, and one of torchmetrics with the number of classes if it needs that.
    """
    found = _KNOWN.get(path) or import_object(path, role="metric")
    with naming("metric", path):
        made = found
        if isinstance(found, type):
            given = dict(arguments or {})
            if found.__module__.startswith("torchmetrics."):
                wanted = inspect.signature(found).parameters.keys() & {"num_classes", "num_labels"}
                given = dict.fromkeys(wanted, classes) | given
            made = found(**given)
        elif arguments:
            raise ObjectiveError("it is no class, so metric_args have no place")
        if "torchmetrics" in sys.modules and isinstance(made, sys.modules["torchmetrics"].Metric):
            return TorchMetric(made, device)
    return cast(SummedMetric, made) if hasattr(made, "sums") and hasattr(made, "value") else MeanMetric(made)


def check_loss(loss: Any) -> None:
    """Check what an own loss returned for a batch.

    Raises:
        ObjectiveError: it is not a scalar with a gradient.
    """
    if not isinstance(loss, Tensor) or loss.ndim:
        raise ObjectiveError(f"it returns {_kind(loss)}: return the mean over the images of a batch, a scalar tensor")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise ObjectiveError("it has no gradient: compute it from `outputs` with differentiable operations")


def check_sums(sums: Any, device: torch.device, *, size: int | None) -> None:
    """Check what the method `sums` of a metric returned for a batch; None as `size` for the first one.

    Raises:
        ObjectiveError: it is not a vector on the device, or has another size than for the first batch.
    """
    if not isinstance(sums, Tensor) or sums.ndim != 1:
        raise ObjectiveError(f"`sums` returns {_kind(sums)}: return a tensor with one dimension")
    if sums.device != device:
        raise ObjectiveError(f"`sums` returns a tensor on {sums.device}: return one on the device of `outputs`")
    if size is not None and len(sums) != size:
        raise ObjectiveError(f"`sums` returns {len(sums)} values, but {size} for another batch: return the same number")


def _kind(value: Any) -> str:
    return f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


@contextmanager
def naming(role: str, path: str) -> Iterator[None]:
    """Turn every error of own code in the block, except out of memory, into an `ObjectiveError` that names it."""
    try:
        yield
    except USER_CODE_ERRORS as error:  # own code may raise anything
        if is_out_of_memory(error):
            raise
        reason = error if isinstance(error, ObjectiveError) else error_line(error)
        raise ObjectiveError(f"{role} {path!r}: {reason}") from error


SUMS: Final = 3  # loss sum, correct, images
_TRIED: Final = 2  # images of zeros, on which own code is tried before the training


@dataclass(frozen=True)
class Means:
    """Metrics over all ranks."""

    loss: float  # per image
    accuracy: float | None  # None if labels are numbers instead of classes
    images: float  # that were counted
    metrics: dict[str, float] = field(default_factory=dict)  # those of the config, by name


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
        self._user_loss = load_loss(spec.loss, spec.loss_args, device) if spec.has_user_loss else None
        # A user's loss that is a module: its buffers are state of the training, and each rank has its own.
        self.loss_module = self._user_loss if isinstance(self._user_loss, nn.Module) else None
        self._loss_path, self._paths = spec.loss, dict(spec.metrics)
        self._metrics = {
            name: load_metric(path, spec.metric_args.get(name), classes=classes, device=device)
            for name, path in spec.metrics.items()
        }
        self._sizes = self._try(spec, device) if self._user_loss is not None or self._metrics else []

    def _try(self, spec: Train, device: torch.device) -> list[int]:
        """Compute own loss and metrics once; returns the number of sums of each metric.

        A rank without validation images has to know it, and errors show before the first epoch instead of after it.
        """
        outputs = torch.zeros(_TRIED, self._classes, device=device, requires_grad=True)
        targets = self.zero_targets(_TRIED, device)
        if self._user_loss is not None:
            mixes = not self._numeric and (spec.augment.mixup or spec.augment.cutmix)
            labels = nn.functional.one_hot(targets, self._classes).float() if mixes else targets
            with naming("loss", spec.loss), unchanged_buffers(*filter(None, [self.loss_module])):
                check_loss(self._user_loss(outputs, labels))
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
        if self._user_loss is not None:
            outputs = outputs.float()
            if torch.compiler.is_compiling():  # which reports errors with a stack trace of its own
                return self._user_loss(outputs, targets)
            with naming("loss", self._loss_path):
                value = self._user_loss(outputs, targets)
                check_loss(value)
            return value
        smoothing = self._smoothing if training else 0.0
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=smoothing)

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
        parts = [sums]
        for (name, metric), size in zip(self._metrics.items(), self._sizes, strict=True):
            with naming("metric", self._paths[name]):
                sums_of_metric = metric.sums(outputs.float(), targets)
                check_sums(sums_of_metric, outputs.device, size=size)
                parts.append(sums_of_metric.double())
        return torch.cat(parts)

    def means(self, sums: Tensor) -> Means:
        """The metrics of all images whose `sums` were added up, over all batches and ranks."""
        loss, correct, images = sums[:SUMS].tolist()
        accuracy = None if self._numeric else correct / images
        values = {}
        if len(sums) > SUMS:
            of_metrics = torch.split(sums[SUMS:].cpu(), self._sizes)
            for (name, metric), part in zip(self._metrics.items(), of_metrics, strict=True):
                with naming("metric", self._paths[name]):
                    values[name] = float(metric.value(part))
        return Means(loss / images, accuracy, images, values)


def main_labels(targets: Tensor) -> Tensor:
    """The labels of a batch, int64 (B,): of mixed ones, those with the largest share."""
    return targets.argmax(1) if targets.ndim == 2 else targets
