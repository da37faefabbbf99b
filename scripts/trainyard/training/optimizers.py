"""Optimizers and learning-rate schedules."""

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from trainyard.config.train import Schedule, Train
from trainyard.utils import fast_start


def build_optimizer(spec: Train, model: nn.Module) -> Optimizer:
    """The fused optimizer of a training, on GPUs and CPUs."""
    arguments: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay, "fused": True}
    if spec.optimizer == "sgd":
        arguments |= {"momentum": spec.momentum, "nesterov": spec.nesterov}
    kind = {"sgd": SGD, "adam": Adam, "adamw": AdamW}[spec.optimizer]
    parameters = list(model.parameters()) if spec.decay_all else _groups(model)
    return fast_start.optimizer_class(kind)(parameters, **arguments)


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups: with weight decay, and (biases and normalization, which have one dimension) without."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    spared = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    return [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]


def lr_factor(schedule: Schedule, steps: int, epochs: int) -> Callable[[int], float]:
    """The learning-rate factor as a function of the step, counted from 0 over the whole training.

    Linear warm-up; then `cosine` is that of Loshchilov and Hutter 2016 without restarts, over the remaining steps.
    """
    total = steps * epochs
    warmup = round(schedule.warmup_fraction * total)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if schedule.name == "step":
            return float(schedule.gamma ** (step // steps // schedule.step_size))
        if schedule.name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
        return 1.0

    return factor
