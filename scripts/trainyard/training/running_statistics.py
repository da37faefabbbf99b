"""The buffers of a model on several ranks.

Between two reductions, each rank has running statistics of its own images. DDP would broadcast rank 0's in every
forward pass, but ranks would still differ after the last one, and the other ranks' images would not count.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import _CHECKPOINT_PREFIX
from torch.nn.modules.batchnorm import _NormBase

from trainyard.training.process_group import Group


@torch.no_grad()
def reduce_buffers(module: nn.Module, group: Group) -> None:
    """Give all ranks the same buffers. Collective.

    Running statistics then cover the images of all ranks: the mean of the means, and by the law of total
    variance, the mean of the variances plus the variance of the means. All ranks have trained on equally many images.
    Rank 0 broadcasts its other buffers, as in DDP.
    """
    if group.world_size == 1:
        return

    def mean_over_ranks(values: Tensor) -> Tensor:
        return group.all_reduce_sum(values.clone()) / group.world_size

    for norm in _norms(module):
        if norm.running_mean is None or norm.running_var is None:
            continue
        ours = norm.running_mean.double()  # in float64, the mean of equal float32 numbers is exactly that number
        mean = mean_over_ranks(ours)
        variance = mean_over_ranks(norm.running_var.double() + (ours - mean).square())
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
    for buffer in other_buffers(module):
        group.broadcast(buffer)


@contextmanager
def unchanged_buffers(*modules: nn.Module) -> Iterator[None]:
    """Restore the buffers of the modules at the end of the block; not after an error, which ends the training.

    Also those that the block replaces instead of changing them, as `self.mean = 0.9 * self.mean` does, and adds.
    """
    owners = [(owner, dict(owner._buffers)) for module in modules for owner in module.modules()]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    yield
    for owner, own in owners:
        owner._buffers.clear()
        owner._buffers.update(own)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)


def copy_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the buffers in host memory, by name."""
    return {name: buffer.to("cpu", copy=True) for name, buffer in module.named_buffers()}


def set_buffers(module: nn.Module, values: dict[str, Tensor], device: torch.device) -> None:
    """Set buffers to these values by name, also those that the first steps make."""
    buffers = dict(module.named_buffers())
    for name, value in values.items():
        if name in buffers and buffers[name].shape == value.shape:
            buffers[name].copy_(value)
        else:
            path, _, last = name.rpartition(".")
            setattr(module.get_submodule(path), last, value.to(device, copy=True))


def create_buffers(module: nn.Module, saved: dict[str, Tensor], device: torch.device) -> None:
    """Create the buffers that are None before the first steps, but are in a saved state dict."""
    for path, owner in module.named_modules():
        for last, buffer in owner._buffers.items():
            name = f"{path}.{last}".removeprefix(".").replace(_CHECKPOINT_PREFIX, "")
            if buffer is None and name in saved:
                owner._buffers[last] = saved[name].to(device, copy=True)


def running_statistics(module: nn.Module) -> list[Tensor]:
    """The running mean and the running variance of each normalization layer, one after the other."""
    pairs = ((norm.running_mean, norm.running_var) for norm in _norms(module))
    return [each for pair in pairs for each in pair if each is not None]


def other_buffers(module: nn.Module) -> list[Tensor]:
    """The buffers that are not running statistics of normalization layers."""
    statistics = {id(buffer) for norm in _norms(module) for buffer in norm.buffers(recurse=False)}
    return [buffer for buffer in module.buffers() if id(buffer) not in statistics]


def _norms(module: nn.Module) -> Iterator[_NormBase]:
    """The batch and instance normalization layers."""
    return (norm for norm in module.modules() if isinstance(norm, _NormBase))
