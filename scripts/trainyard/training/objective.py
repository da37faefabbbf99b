"""What a training minimizes and what it reports: the loss, and sums over images that add up over batches and ranks."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainyard.config.train import Train


@dataclass(frozen=True)
class Means:
    """Metrics over all ranks, per image."""

    loss: float
    accuracy: float
    images: float  # that were counted


class Objective:
    """The loss and the metrics of a training.

    Outputs are those of the model, float (B, classes); targets are the labels of a batch, int64 (B,), or after mixing
    their probabilities, float32 (B, classes).
    """

    def __init__(self, spec: Train) -> None:
        self._smoothing = spec.label_smoothing

    def loss(self, outputs: Tensor, targets: Tensor, *, training: bool) -> Tensor:
        """The mean loss of a batch, a scalar; the label smoothing is in the loss of the training only."""
        smoothing = self._smoothing if training else 0.0
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=smoothing)

    def zeros(self, device: torch.device) -> Tensor:
        """The sums of no images."""
        return torch.zeros(3, dtype=torch.float64, device=device)

    def sums(self, loss: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
        """[loss sum, correct, images] of a batch with this mean loss: float64, on the device."""
        correct = (outputs.detach().argmax(1) == main_labels(targets)).sum()
        count = torch.full_like(correct, len(targets))
        return torch.stack([loss.detach().double() * len(targets), correct.double(), count.double()])

    def means(self, sums: Tensor) -> Means:
        """The metrics of all images whose `sums` were added up, over all batches and ranks."""
        loss, correct, images = sums.tolist()
        return Means(loss / images, correct / images, images)


def main_labels(targets: Tensor) -> Tensor:
    """The labels of a batch, int64 (B,): of mixed ones, those with the largest share."""
    return targets.argmax(1) if targets.ndim == 2 else targets
