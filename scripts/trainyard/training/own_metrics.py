"""Losses and metrics by name or by the import path of a user's own code."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn

from trainyard.training.out_of_memory import is_out_of_memory
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import OWN_ERRORS, error_line, import_object

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


def load_metric(path: str) -> SummedMetric:
    """The metric of this name or import path: a function of a batch, or an object or class with `sums` and `value`."""
    found = _KNOWN.get(path) or import_object(path, role="metric")
    with naming("metric", path):
        made = found() if isinstance(found, type) else found
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
    except OWN_ERRORS as error:  # own code may raise anything
        if is_out_of_memory(error):
            raise
        reason = error if isinstance(error, ObjectiveError) else error_line(error)
        raise ObjectiveError(f"{role} {path!r}: {reason}") from error
