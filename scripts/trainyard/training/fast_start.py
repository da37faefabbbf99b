"""torch without its compiler: where nothing is compiled, importing it is left out, which takes longer than torch does.

Two kinds of places in torch import it though nothing is compiled: functions marked "not for the compiler"
(torch/_compile.py; with the mark in place it is not imported), and questions about its settings.
"""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer


def optimizer(kind: type[Optimizer]) -> type[Optimizer]:
    """The same optimiser without the compiler.

    The wrapper of `step` turns gradients off and tells the compiler to break its graph; `no_grad` around the step
    itself does the former.
    """
    for method in vars(Optimizer).values():
        _mark(method)
    step = getattr(kind.step, "__wrapped__", None)
    return type(kind.__name__, (kind,), {"step": torch.no_grad()(step)}) if step else kind


def ddp(module: nn.Module, **options: Any) -> DistributedDataParallel:
    """DistributedDataParallel without the compiler, which it asks whether it is to leave gradients to it."""
    _mark(getattr(DistributedDataParallel, "_inside_ddp_forward", None))
    if "torch._dynamo" in sys.modules:
        return DistributedDataParallel(module, **options)
    vars(torch)["_dynamo"] = SimpleNamespace(utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization"))
    try:
        return DistributedDataParallel(module, **options)
    except AttributeError:  # another torch asks for something else
        del vars(torch)["_dynamo"]
        return DistributedDataParallel(module, **options)
    finally:
        vars(torch).pop("_dynamo", None)


def _mark(method: Callable[..., Any] | None) -> None:
    """Have a function that is "not for the compiler" run without asking it."""
    plain = getattr(method, "__wrapped__", None)
    while inner := getattr(plain, "__wrapped__", None):
        plain = inner
    if plain is not None and not hasattr(plain, "__dynamo_disable"):
        plain.__dynamo_disable = plain
