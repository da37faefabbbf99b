"""The forward pass of a training: its model over all ranks, compiled if configured, and the loss of a batch."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainyard.config.train import Train
from trainyard.training import models, numerics
from trainyard.training.activation_checkpointing import repeated_blocks
from trainyard.training.loaders import ImageBatch, InputData
from trainyard.training.loss_and_metrics import Objective
from trainyard.training.process_group import Group, ddp_arguments
from trainyard.training.running_statistics import other_buffers


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
        ddp: Mapping[str, Any],
    ) -> None:
        self._module = module
        self._spec = spec
        self._group = group
        self._objective = objective
        self._normalize = partial(data.normalize, channels_last=channels_last)
        self._precision = numerics.resolve_precision(spec.precision, group.device)
        self._compiled: Callable[..., tuple[Tensor, Tensor]] | None = None
        self._validate: Callable[..., Tensor] = compute_outputs
        self.ddp = ddp_arguments(ddp)

    def wrap(self, *, accumulation: int, for_warm_up: bool = False) -> None:
        """Wrap the module in DDP on several ranks, and compile it if configured.

        With `static_graph`, DDP records the graph in the first step, so the warm-up needs another wrapper.
        """
        spec = self._spec
        group = self._group
        module = self._module
        if spec.compile is True:
            module = ModelWithLoss(module, self._objective, self._normalize)
        is_known = models.is_known(spec.model)  # then its other buffers are constants
        plain = accumulation == 1 and not spec.activation_checkpointing and not spec.compile
        static = plain and is_known and not for_warm_up
        arguments = self.ddp | ({"find_unused_parameters": False} if static else {})
        synced = [] if is_known else other_buffers(self._module)
        self.model = group.wrap(module, static_graph=static, synced_buffers=synced, **arguments)
        if spec.compile is True:
            one_call = group.world_size == 1 and accumulation == 1
            self._compiled = compile_step(self.model, cuda_graphs=group.device.type == "cuda" and one_call)
            self._validate = torch.compile(compute_outputs, dynamic=False)

    def no_sync(self) -> AbstractContextManager[Any]:
        """A context in which gradients are accumulated without an all-reduce."""
        return self.model.no_sync() if isinstance(self.model, DistributedDataParallel) else nullcontext()

    def compute_loss(self, images: ImageBatch, *, model: nn.Module, training: bool = False) -> tuple[Tensor, Tensor]:
        """Mean loss of a batch, and its sums for `Objective.means`, both on the device.

        `model` maps normalized images to outputs, or is this object's own `model`.
        """
        with numerics.autocast(self._precision, self._group.device):
            if self._compiled is not None and model is self.model:
                return self._compiled(images.pixels, images.labels)
            compute = compute_outputs if training else self._validate
            outputs = compute(model, self._normalize, images.pixels)
            loss = self._objective.loss(outputs, images.labels, training=training)
        return loss, self._objective.sums(loss, outputs, images.labels, training=training)


def compute_outputs(model: nn.Module, normalize: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    """The outputs of a model, float (B, classes), for a batch of pixels; own metrics are not compiled with it."""
    outputs: Tensor = model(normalize(pixels))
    return outputs


class ModelWithLoss(nn.Module):
    """A model with what is compiled with it: the normalization of its input, the loss, and the sums of the metrics.

    It is a module because DDP calls one: torch.compile starts inside of DDP, so all of this is compiled as one piece.
    """

    def __init__(self, model: nn.Module, objective: Objective, normalize: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._objective = objective
        self._normalize = normalize

    def forward(self, pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch in training, and its sums for `Objective.means`."""
        outputs = self.model(self._normalize(pixels))
        loss = self._objective.loss(outputs, targets, training=True)
        return loss, self._objective.sums(loss, outputs, targets, training=True)


def compile_step(step: Callable[..., Any], *, cuda_graphs: bool) -> Callable[..., Any]:
    """`step` (one forward pass), compiled for each shape that it is called with.

    Shapes are static: with micro-batches of two sizes, the rest of a step gets code of its own. After a second size,
    torch.compile would compile for any size, which is slower.

    With `cuda_graphs`, each call overwrites the results of the call before it, gradients included. A step must
    therefore be one call: gradients that accumulate over several calls would be overwritten.

    Compiled code is kept per line of Python, not per model, and at most eight versions of it; after that, torch.compile
    stops compiling. So the code of trainings before this one, or of other micro-batches, is released first.
    """
    release_compiled_code()
    compiled = torch.compile(step, mode="reduce-overhead" if cuda_graphs else "default", dynamic=False)
    if not cuda_graphs:
        return compiled

    def replayed(*inputs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return compiled(*inputs)

    return replayed


def compile_blocks(module: nn.Module) -> None:
    """Compile each repeated block of a model by itself, where it has some, and otherwise the model as a whole.

    Equal blocks share their code. Blocks of one class with other sizes do not: torch.compile would stop at the ninth.
    """
    release_compiled_code()
    blocks = [block for _, _, block in repeated_blocks(module)] or [module]
    limit = 8 * len(blocks)  # in training and in validation, for batches of several sizes
    torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)
    for block in blocks:
        block.compile(dynamic=False)


def release_compiled_code() -> None:
    """Release all code that this process has compiled, and the memory pools of its CUDA graphs."""
    torch.compiler.reset()
    torch.cuda.empty_cache()
