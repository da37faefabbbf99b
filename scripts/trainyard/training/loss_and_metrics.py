"""What a training minimizes and reports: losses and metrics by name, or by the path of a user's own code."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

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


def sum_over_images(function: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum of what a function returns for each image of a batch, (B,): float64, a scalar."""
    values = function(outputs, targets)
    if not isinstance(values, Tensor) or values.shape != (len(targets),):
        raise ObjectiveError(
            f"it returns {_kind(values)} for {len(targets)} images: return a tensor with one value per image; a "
            "metric that is not a mean over images is a class of torchmetrics, or derived from torchmetrics.Metric"
        )
    return values.double().sum()


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


def load_metric(path: str, arguments: Mapping[str, Any], *, classes: int, device: torch.device) -> Any:
    """The metric of this name or import path: a function that returns a value per image, or a metric of torchmetrics.

    A class is called with the arguments, and one of torchmetrics with the number of classes if it needs that.
    """
    metric = _KNOWN.get(path) or import_object(path, role="metric")
    with naming("metric", path):
        made: Any = metric
        if isinstance(metric, type):
            chosen = dict(arguments)
            if metric.__module__.startswith("torchmetrics."):
                wanted = inspect.signature(metric).parameters.keys() & {"num_classes", "num_labels"}
                chosen = dict.fromkeys(wanted, classes) | chosen
            made = metric(**chosen)
        elif arguments:
            raise ObjectiveError("it is no class, so metric_args have no place")
        return made.to(device) if is_torchmetric(made) else made


def is_torchmetric(metric: Any) -> bool:
    """Whether it is a metric of torchmetrics, which has a state and combines that of all ranks by itself."""
    return "torchmetrics" in sys.modules and isinstance(metric, sys.modules["torchmetrics"].Metric)


def as_number(value: Any) -> float:
    """What a metric of torchmetrics has computed.

    Raises:
        ObjectiveError: it is not a single number.
    """
    if isinstance(value, float | int):
        return float(value)
    if not isinstance(value, Tensor):
        raise ObjectiveError(f"it computes {_kind(value)}: it must compute a single number")
    if value.numel() != 1:
        raise ObjectiveError(f"it has {value.numel()} values: give it an `average`, such as macro")
    return float(value)


def check_loss(loss: Any) -> None:
    """Check what an own loss returned for a batch.

    Raises:
        ObjectiveError: it is not a scalar with a gradient.
    """
    if not isinstance(loss, Tensor) or loss.ndim:
        raise ObjectiveError(f"it returns {_kind(loss)}: return the mean over the images of a batch, a scalar tensor")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise ObjectiveError("it has no gradient: compute it from `outputs` with differentiable operations")


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
        self._smoothing = spec.label_smoothing
        self._classes = classes
        self._numeric = numeric
        self._user_loss = load_loss(spec.loss, spec.loss_args, device) if spec.has_user_loss else None
        # A user's loss that is a module: its buffers are state of the training, and each rank has its own.
        self.loss_module = self._user_loss if isinstance(self._user_loss, nn.Module) else None
        self._loss_path = spec.loss
        self._paths = dict(spec.metrics)
        metrics = {
            name: load_metric(path, spec.metric_args.get(name, {}), classes=classes, device=device)
            for name, path in spec.metrics.items()
        }
        self._functions = {name: metric for name, metric in metrics.items() if not is_torchmetric(metric)}
        self._stateful = {name: metric for name, metric in metrics.items() if is_torchmetric(metric)}
        if self._user_loss is not None or metrics:
            self._try(spec, device)

    def _try(self, spec: Train, device: torch.device) -> None:
        """Compute own loss and metrics once: errors show before the first epoch instead of after it."""
        outputs = torch.zeros(_TRIED, self._classes, device=device, requires_grad=True)
        targets = self.zero_targets(_TRIED, device)
        if self._user_loss is not None:
            mixes = not self._numeric and (spec.augment.mixup or spec.augment.cutmix)
            labels = nn.functional.one_hot(targets, self._classes).float() if mixes else targets
            with naming("loss", spec.loss), unchanged_buffers(*filter(None, [self.loss_module])):
                check_loss(self._user_loss(outputs, labels))
        for name, function in self._functions.items():
            with naming("metric", spec.metrics[name]):
                sum_over_images(function, outputs.detach(), targets)
        for name, metric in self._stateful.items():
            with naming("metric", spec.metrics[name]):
                as_number(metric(outputs.detach(), targets))  # of this batch, on this rank alone

    def check_shares(self, images: int, *, ranks: int) -> None:
        """Check that each rank has some of the validation images if a metric has a state, which others would lack.

        Raises:
            ObjectiveError: a rank has none.
        """
        if self._stateful and images < ranks:
            names = ", ".join(self._stateful)
            raise ObjectiveError(
                f"metrics of torchmetrics need validation images on each of the {ranks} ranks, but there are only "
                f"{images} ({names}): use fewer GPUs, or more validation images"
            )

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

    def begin_validation(self, device: torch.device) -> Tensor:
        """Reset the metrics that have a state; returns the sums of no validation images."""
        for metric in self._stateful.values():
            metric.reset()
        return torch.zeros(SUMS + len(self._functions), dtype=torch.float64, device=device)

    def sums(self, loss: Tensor, outputs: Tensor, targets: Tensor, *, training: bool) -> Tensor:
        """[loss sum, correct, images] of a batch with this mean loss, float64, on the device.

        In validation, the sums of metrics that are functions follow, and the metrics that have a state are updated.
        """
        outputs = outputs.detach()
        count = len(targets)
        hits = torch.zeros_like(targets) if self._numeric else outputs.argmax(1) == main_labels(targets)
        correct = hits.sum()
        counted = torch.full_like(correct, count)
        sums = [loss.detach().double() * count, correct.double(), counted.double()]
        if training:
            return torch.stack(sums)
        for name, function in self._functions.items():
            with naming("metric", self._paths[name]):
                sums.append(sum_over_images(function, outputs.float(), targets))
        for name, metric in self._stateful.items():
            with naming("metric", self._paths[name]):
                metric.update(outputs.float(), targets)
        return torch.stack(sums)

    def means(self, sums: Tensor, *, training: bool) -> Means:
        """The metrics of all images whose `sums` were added up, over all batches and ranks. Collective."""
        loss, correct, images, *totals = sums.tolist()
        accuracy = None if self._numeric else correct / images
        if training:
            return Means(loss / images, accuracy, images)
        values = {name: total / images for name, total in zip(self._functions, totals, strict=True)}
        for name, metric in self._stateful.items():
            with naming("metric", self._paths[name]):
                values[name] = as_number(metric.compute())
        return Means(loss / images, accuracy, images, {name: values[name] for name in self._paths})


def main_labels(targets: Tensor) -> Tensor:
    """The labels of a batch, int64 (B,): of mixed ones, those with the largest share."""
    return targets.argmax(1) if targets.ndim == 2 else targets
