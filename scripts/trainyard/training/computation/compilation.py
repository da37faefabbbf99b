"""The training step under torch.compile: static shapes, and CUDA graphs where nothing outlives a step."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from trainyard.training.objective import Objective

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ModelWithLoss(nn.Module):
    """A model with what is compiled with it: the normalization of its input, the loss, and the sums of the metrics.

    It is a module because DDP calls one: torch.compile starts inside of DDP, so all of this is compiled as one piece.
    """

    def __init__(self, model: nn.Module, objective: Objective, normalize: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self._objective, self._normalize = model, objective, normalize

    def forward(self, pixels: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of a batch in training, and its sums for `Objective.means`."""
        outputs = self.model(self._normalize(pixels))
        loss = self._objective.loss(outputs, targets, training=True)
        return loss, self._objective.sums(loss, outputs, targets, training=True)


def compile_step(step: Callable[_P, _R], *, cuda_graphs: bool) -> Callable[_P, _R]:
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

    def replayed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return compiled(*args, **kwargs)

    return replayed


def release_compiled_code() -> None:
    """Release all code that this process has compiled, and the memory pools of its CUDA graphs."""
    torch.compiler.reset()
    torch.cuda.empty_cache()
