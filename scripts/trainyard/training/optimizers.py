"""Optimizers, learning-rate schedules, and the moving average of the weights."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LinearLR, LRScheduler, OneCycleLR, PolynomialLR, SequentialLR
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trainyard.config.train import Schedule, Train
from trainyard.training.fine_tuning import lr_scales
from trainyard.training.models import inner_model
from trainyard.training.running_statistics import named_buffers, running_statistics, set_buffers

_CLASSES: Final[dict[str, type[Optimizer]]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
ONE_CYCLE_RISE: Final = 0.3  # the default of OneCycleLR's `pct_start`
STATE_TENSORS: Final = 2  # of the size of a parameter, that an optimizer keeps for it, at most: Adam's two averages


def build_optimizer(spec: Train, model: nn.Module) -> Optimizer:
    """The fused optimizer of a training, on GPUs and CPUs."""
    arguments: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.used_weight_decay, "fused": True}
    if spec.optimizer == "sgd":
        arguments |= {"momentum": spec.momentum, "nesterov": spec.nesterov}
    parameters = dict(inner_model(model).named_parameters())
    if spec.freeze:
        parameters = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    optimizer = _CLASSES[spec.optimizer](_groups(spec, parameters), **arguments)
    create_state(optimizer)
    return optimizer


def create_state(optimizer: Optimizer) -> None:
    """Create the state that an optimizer lacks, as zeros: its first step with a gradient then gives the same numbers.

    By itself, torch allocates it in that step. A step for which the memory does not suffice could not be repeated then:
    it has updated some parameters, and created half of Adam's state. And fused SGD leaves its momentum uninitialized if
    loss scaling skips the step.
    """
    for group in optimizer.param_groups:
        is_adam = "betas" in group
        names = ("exp_avg", "exp_avg_sq") if is_adam else ("momentum_buffer",) if group["momentum"] else ()
        for parameter in group["params"] if names else ():
            if parameter.requires_grad:
                state = optimizer.state[parameter]
                if is_adam and "step" not in state:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                for name in names:
                    if state.get(name) is None:
                        state[name] = torch.zeros_like(parameter, requires_grad=False)


def _groups(spec: Train, parameters: dict[str, nn.Parameter]) -> list[dict[str, Any]]:
    """The parameter groups: by factor of the learning rate, in descending order, and by weight decay.

    Biases and normalization have one dimension; with `decay_all: false`, they are in groups without weight decay.
    """
    scales = lr_scales(list(parameters), spec.lr_scale)
    groups = []
    for scale in sorted(set(scales.values()), reverse=True):
        mine = [parameter for name, parameter in parameters.items() if scales[name] == scale]
        options = {"lr": spec.lr * scale, "lr_scale": scale} if spec.lr_scale else {}
        if spec.decay_all:
            groups.append({"params": mine, **options})
            continue
        groups.append({"params": [each for each in mine if each.ndim > 1], **options})
        groups.append({"params": [each for each in mine if each.ndim <= 1], "weight_decay": 0.0, **options})
    return groups


def current_lr(optimizer: Optimizer) -> float:
    """The learning rate of parameters without a factor in `lr_scale`."""
    group = optimizer.param_groups[0]
    return float(group["lr"]) / float(group.get("lr_scale", 1.0))


def build_schedule(spec: Train, optimizer: Optimizer, steps: int) -> LRScheduler:
    """The schedule of the learning rate of a training with `steps` per epoch; it is stepped after each step."""
    schedule, total = spec.schedule, steps * spec.epochs
    if schedule.name == "onecycle":
        peaks = [group["lr"] for group in optimizer.param_groups]
        rising = (schedule.warmup_fraction or ONE_CYCLE_RISE) + 1e-9  # torch divides by zero if that is one step
        return OneCycleLR(optimizer, peaks, total_steps=total, pct_start=rising, cycle_momentum=False)
    if schedule.name != "polynomial":
        return LambdaLR(optimizer, lr_factor(schedule, steps, spec.epochs))
    warmup = round(schedule.warmup_fraction * total)
    rise = [LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup)] if warmup else []
    decay = PolynomialLR(optimizer, max(1, total - warmup), schedule.power)
    return SequentialLR(optimizer, [*rise, decay], [warmup]) if warmup else decay


def lr_factor(schedule: Schedule, steps: int, epochs: int) -> Callable[[int], float]:
    """The learning-rate factor as a function of the step, counted from 0 over the whole training.

    Linear warm-up, then for `cosine` the schedule of Loshchilov and Hutter 2016 without restarts.
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


class WeightAverage:
    """The average of a model's weights and running statistics; other buffers are copied from the model.

    It starts at the initial weights. torch's `AveragedModel` does the same, but copies its counter to the GPU in each
    step, for which the host waits.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = deepcopy(module).requires_grad_(False)
        self._model = module
        self._ours, self._theirs = (
            [*(each.detach() for each in one.parameters()), *running_statistics(one)] for one in (self.module, module)
        )

    @torch.no_grad()
    def update(self, decay: float) -> None:
        """Average the model's current weights in, after a step: `decay` times the average, plus the rest times them."""
        average = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        average(self._ours, self._theirs, 0)

    @torch.no_grad()
    def for_validation(self) -> nn.Module:
        """The averaged model, with all buffers that are not averaged as in the model, such as counters and masks."""
        averaged, ours = {id(each) for each in self._ours}, named_buffers(self.module)
        others = {name: each for name, each in named_buffers(self._model).items() if id(ours.get(name)) not in averaged}
        set_buffers(self.module, others, self._ours[0].device)
        return self.module
