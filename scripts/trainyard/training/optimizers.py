"""Optimizers, learning-rate schedules, and the moving average of the weights."""

import inspect
import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR, PolynomialLR, StepLR
from torch.optim.swa_utils import get_ema_multi_avg_fn

from trainyard.config.train import Schedule, Train
from trainyard.training.fine_tuning import lr_scales
from trainyard.training.models import inner_model
from trainyard.training.running_statistics import running_statistics, set_buffers
from trainyard.utils.errors import UserError
from trainyard.utils.import_path import further_arguments


def _without_compiler(optimizer: type[Optimizer]) -> Callable[..., Optimizer]:
    """A class of torch without the decorators of its methods, which import torch's compiler at their first call.

    They only matter where the optimizer is compiled, too. The import takes 1.5 s of CPU time.
    """
    names = ["add_param_group", "zero_grad", "state_dict", "load_state_dict"]
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in names}
    methods["step"] = torch.no_grad()(inspect.unwrap(optimizer.step))
    return type(optimizer.__name__, (optimizer,), methods)


_OPTIMIZERS: Final = {"sgd": _without_compiler(SGD), "adam": _without_compiler(Adam), "adamw": _without_compiler(AdamW)}
_SCHEDULES: Final[dict[str, Callable[..., LRScheduler]]] = {
    "step": StepLR,
    "cosine": CosineAnnealingLR,
    "polynomial": PolynomialLR,
}
# Arguments of these classes that have an option of their own, change no result, or follow from the training's length.
_SET_HERE: Final = {
    *("params", "lr", "momentum", "weight_decay", "fused", "foreach", "differentiable", "capturable"),
    *("optimizer", "last_epoch", "T_max", "total_iters", "max_lr", "total_steps", "epochs", "steps_per_epoch"),
}


def try_arguments(spec: Train) -> None:
    """Build the optimizer of a training and its schedule for a single number.

    Raises:
        UserError: torch does not take the arguments in the config.
    """
    optimizer = _new_optimizer(spec, [{"params": [torch.zeros(1)]}])
    build_schedule(spec, optimizer, steps=1)


def build_optimizer(spec: Train, model: nn.Module) -> Optimizer:
    """The fused optimizer of a training, on GPUs and CPUs.

    Raises:
        UserError: torch does not take its arguments.
    """
    parameters = dict(inner_model(model).named_parameters())
    if spec.freeze:
        parameters = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    optimizer = _new_optimizer(spec, _groups(spec, parameters))
    _create_state(optimizer)
    return optimizer


def _new_optimizer(spec: Train, groups: list[dict[str, Any]]) -> Optimizer:
    made = _OPTIMIZERS[spec.optimizer]
    arguments = further_arguments(made, spec.optimizer_args, option="optimizer_args", without=_SET_HERE)
    if spec.optimizer == "sgd":
        arguments["momentum"] = spec.momentum
    try:
        return made(groups, lr=spec.lr, weight_decay=spec.used_weight_decay, fused=True, **arguments)
    except (TypeError, ValueError, IndexError) as error:  # an IndexError of a list of one `betas`
        raise UserError(f"optimizer_args: {error}") from None


def _create_state(optimizer: Optimizer) -> None:
    """Create the state of an optimizer as zeros: its first step with a gradient then gives the same numbers.

    By itself, torch allocates it in that step. A step for which the memory does not suffice could not be repeated then:
    it has updated some parameters, and created half of Adam's state. And fused SGD leaves its momentum uninitialized if
    loss scaling skips the step.
    """
    for group in optimizer.param_groups:
        is_adam = "betas" in group
        names = list[str]()
        if is_adam:
            names = ["exp_avg", "exp_avg_sq"]
            if group["amsgrad"]:
                names.append("max_exp_avg_sq")
        elif group["momentum"]:
            names = ["momentum_buffer"]
        for parameter in group["params"] if names else ():
            if parameter.requires_grad:
                state = optimizer.state[parameter]
                if is_adam:
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                for name in names:
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
    schedule = spec.schedule
    total = steps * spec.epochs
    peaks = [group["lr"] for group in optimizer.param_groups]
    try:
        if schedule.name == "onecycle":
            given = {"cycle_momentum": False, **schedule.arguments}
            arguments = _schedule_arguments(OneCycleLR, given)
            arguments["pct_start"] += 1e-9  # torch divides by zero if that is one step
            return OneCycleLR(optimizer, peaks, total_steps=total, **arguments)
        factors = [lr_factor(schedule, steps, spec.epochs, peak=peak) for peak in peaks]
        factors[0](total)
        return LambdaLR(optimizer, factors)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"schedule: {error}") from None


def _schedule_arguments(made: Callable[..., LRScheduler], given: dict[str, Any]) -> dict[str, Any]:
    return further_arguments(made, given, option="schedule", keys=Schedule.model_fields, without=_SET_HERE)


def lr_factor(schedule: Schedule, steps: int, epochs: int, *, peak: float) -> Callable[[int], float]:
    """The learning-rate factor as a function of the step, counted from 0 over the whole training.

    Linear warm-up, then the formula of torch's class. StepLR counts epochs from the start of the training, and the
    others decay over the steps after the warm-up. `peak` is the learning rate that is multiplied.
    """
    total = steps * epochs
    warmup = round(schedule.warmup_fraction * total)
    decay = max(1, total - warmup)
    arguments = dict[str, Any]()
    if made := _SCHEDULES.get(schedule.name):
        arguments = _schedule_arguments(made, schedule.arguments)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if schedule.name == "step":
            return float(arguments["gamma"] ** (step // steps // arguments["step_size"]))
        if schedule.name == "cosine":
            lowest = arguments["eta_min"] / peak
            return float(lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / decay)))
        if schedule.name == "polynomial":
            return float((1 - (step - warmup) / decay) ** arguments["power"])
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
        averaged = {id(each) for each in self._ours}
        ours = dict(self.module.named_buffers())
        others = {name: each for name, each in self._model.named_buffers() if id(ours.get(name)) not in averaged}
        set_buffers(self.module, others, self._ours[0].device)
        return self.module
