"""The gradients of a step as one CUDA graph, for models whose kernels are shorter than their launches by the host.

A graph replays the same kernels on the same memory with a single launch. It captures the normalization, the forward
passes, the loss and the backward passes of a step. What the host decides in each step stays outside: batches,
augmentation, the check of the loss, clipping, optimizer and learning rate. So results and checkpoints are the same as
in eager mode. See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
"""

import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from trainyard.config.train import Train
from trainyard.training.loaders import ImageBatch
from trainyard.training.networks import models
from trainyard.training.process_group import Group
from trainyard.utils.errors import UserError

EAGER_STEPS: Final = 3  # they initialize libraries and select kernels, which a capture must not do
Gradients = Callable[[Sequence[ImageBatch]], Tensor]
log = logging.getLogger(__name__)


def build_step_graph(spec: Train, group: Group, *, wanted: bool | Literal["auto"]) -> "StepGraph | None":
    """A step graph for a training; None if it is off, impossible, or not safe with `auto`."""
    # A graph would repeat what a user's own code has done in one step, such as skipping a random layer.
    has_own_code = not models.is_known(spec.model) or spec.has_own_loss
    if wanted is False or (wanted == "auto" and has_own_code):
        return None
    if reason := obstacle(spec, group):
        log.info("no CUDA graphs: %s", reason)
        return None
    return StepGraph()


def obstacle(spec: Train, group: Group) -> str | None:
    """Why the steps of a training cannot be captured; None if no reason is known before the first step."""
    obstacles = {
        "there is no GPU": group.device.type != "cuda",
        "gradients are reduced over several ranks": group.world_size > 1,
        "`compile: true` makes its own": spec.compile,
        "activation checkpointing reads the state of the random numbers": spec.activation_checkpointing,
    }
    return next((reason for reason, applies in obstacles.items() if applies), None)


class StepGraph:
    """Computes the gradients of each step: eagerly in the first steps, then by replaying a CUDA graph of one.

    No other code may set gradients to None, because the graph writes to their memory. If a step cannot be captured,
    one line is logged, and all steps are eager.
    """

    def __init__(self) -> None:
        self._begun = 0  # steps before the capture
        self._stays_eager = False
        self._inputs: list[ImageBatch] = []  # what the graph reads
        self._replay: Callable[[], None] | None = None

    @property
    def is_captured(self) -> bool:
        """Whether steps are replayed from now on."""
        return self._replay is not None

    def __call__(self, compute: Gradients, batches: Sequence[ImageBatch]) -> Tensor:
        """The result of `compute(batches)`, which sets all gradients; the next step may overwrite it."""
        if self._replay is not None and not self._fit(batches):
            self._give_up("the sizes of the batches change")
        if self._replay is None and not self._stays_eager:
            self._begun += 1
            if self._begun == EAGER_STEPS:
                return self._watched(compute, batches)
            if self._begun > EAGER_STEPS:
                self._capture(compute, batches)
        if self._replay is None:
            return compute(batches)
        for ours, given in zip(self._inputs, batches, strict=True):
            ours.pixels.copy_(given.pixels)
            ours.labels.copy_(given.labels)
        self._replay()
        return self._sums

    def _watched(self, compute: Gradients, batches: Sequence[ImageBatch]) -> Tensor:
        """Run an eager step, which shows whether steps can be captured."""
        sums, places = find_waits(lambda: compute(batches))
        if places:
            self._give_up(f"a step waits for the GPU in {', '.join(places)}")
        return sums

    def _capture(self, compute: Gradients, batches: Sequence[ImageBatch]) -> None:
        self._inputs = [ImageBatch(each.pixels.clone(), each.labels.clone(), each.indices) for each in batches]

        def compute_static() -> None:
            self._sums = compute(self._inputs)

        began = time.perf_counter()
        try:
            self._replay = capture(compute_static)
            log.info("CUDA graph of a step captured in %.3f s", time.perf_counter() - began)
        # Out of memory, or an operation that is not permitted in a capture; in an own loss, it is an ObjectiveError.
        except (RuntimeError, UserError) as error:
            self._give_up(str(error).splitlines()[0])

    def _fit(self, batches: Sequence[ImageBatch]) -> bool:
        """Whether batches have the shapes and types that the graph was captured with."""
        return list(map(_layout, self._inputs)) == list(map(_layout, batches))

    def _give_up(self, reason: str) -> None:
        log.info("no CUDA graphs: %s", reason)
        self._stays_eager, self._replay, self._inputs = True, None, []


def _layout(batch: ImageBatch) -> tuple[torch.Size, torch.dtype, torch.Size, torch.dtype]:
    """The shapes and types of a batch."""
    return batch.pixels.shape, batch.pixels.dtype, batch.labels.shape, batch.labels.dtype


def capture(work: Callable[[], None]) -> Callable[[], None]:
    """Capture the kernels that `work` launches, without running them; returns a function that runs them."""
    graph = torch.cuda.CUDAGraph()
    # The default mode would let a capture fail if another thread, such as the one that prefetches, allocates memory.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


def find_waits(run: Callable[[], Tensor]) -> tuple[Tensor, list[str]]:
    """The result of `run`, and the places of its operations that wait for the GPU, which cannot be captured.

    An attempt to capture them would leave the random number generator of the GPU unusable.
    """
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            result = run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    found = [each for each in caught if "synchronizing CUDA operation" in str(each.message)]
    return result, [f"{Path(each.filename).name}:{each.lineno}" for each in found]
