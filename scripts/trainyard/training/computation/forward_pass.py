"""The forward pass of a training: its model over all ranks, and the loss of a batch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.config.train import Train
from trainyard.training.computation import precision
from trainyard.training.computation.compilation import ModelWithLoss, compile_step
from trainyard.training.loaders import ImageBatch, InputData
from trainyard.training.networks import models
from trainyard.training.networks.running_statistics import other_buffers
from trainyard.training.objective import Objective
from trainyard.training.process_group import Group


class ForwardPass:
    """The model of a training as its steps call it, and the loss of its outputs; `wrap` sets `model`."""

    model: nn.Module  # `module`, with gradients averaged over all ranks; with `compile`, also with the loss

    def __init__(
        self,
        module: nn.Module,
        spec: Train,
        data: InputData,
        group: Group,
        objective: Objective,
        *,
        channels_last: bool,
        find_unused_parameters: bool,
    ) -> None:
        self._module, self._spec, self._group, self._objective = module, spec, group, objective
        self._normalize = partial(data.normalize, channels_last=channels_last)
        self._precision = precision.resolve_precision(spec.precision, group.device)
        self._compiled: Callable[..., tuple[Tensor, Tensor]] | None = None
        self.find_unused_parameters = find_unused_parameters  # in each step, by DDP

    def wrap(self, *, accumulation: int, for_warm_up: bool = False) -> None:
        """Wrap the module in DDP on several ranks, and compile it if configured.

        With `static_graph`, DDP records the graph in the first step, so the warm-up needs another wrapper.
        """
        spec, group, module = self._spec, self._group, self._module
        if spec.compile:
            module = ModelWithLoss(module, self._objective, self._normalize)
        is_known = models.is_known(spec.model)  # then its other buffers are constants
        plain = accumulation == 1 and not spec.activation_checkpointing and not spec.compile
        static = plain and is_known and not for_warm_up
        self.model = group.wrap(
            module,
            static_graph=static,
            synced_buffers=[] if is_known else other_buffers(self._module),
            find_unused_parameters=self.find_unused_parameters and not static,
            compression=spec.gradient_compression,
            compiled=spec.compile,
        )
        if spec.compile:
            one_call = group.world_size == 1 and accumulation == 1
            self._compiled = compile_step(self.model, cuda_graphs=group.device.type == "cuda" and one_call)

    def no_sync(self) -> AbstractContextManager[Any]:
        """A context in which gradients are accumulated without an all-reduce."""
        return self.model.no_sync() if isinstance(self.model, DistributedDataParallel) else nullcontext()

    def compute_loss(self, images: ImageBatch, *, model: nn.Module, training: bool = False) -> tuple[Tensor, Tensor]:
        """Mean loss of a batch, and its sums for `Objective.means`, both on the device.

        `model` maps normalized images to outputs, or is this object's own `model`.
        """
        with precision.autocast(self._precision, self._group.device):
            if self._compiled is not None and model is self.model:
                return self._compiled(images.pixels, images.labels)
            outputs = model(self._normalize(images.pixels))
            loss = self._objective.loss(outputs, images.labels, training=training)
        return loss, self._objective.sums(loss, outputs, images.labels, training=training)
