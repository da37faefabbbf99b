"""Validation of a model on the rank's share of the validation images."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

import torch
from torch import Tensor

from trainyard.training.loaders import ImageBatch, Split
from trainyard.training.objective import Objective
from trainyard.training.out_of_memory import halve_until_it_fits
from trainyard.training.process_group import Group
from trainyard.training.sampler import validation_batches
from trainyard.training.step_timing import Moment, moment, synchronize, wait_until_reached

# Images of a validation batch per image of a micro-batch, on a GPU: small kernels are launched less often, and no
# activations are kept for a backward pass. On a CPU, it would only change the last digits of the loss.
ENLARGED_ON_GPU: Final = 4


class Validation:
    """The validation images of a rank, in batches that fit into memory."""

    def __init__(self, images: Split, objective: Objective, group: Group) -> None:
        self._images, self._objective, self._group = images, objective, group
        self._factor = ENLARGED_ON_GPU if group.device.type == "cuda" else 1
        self._largest: int | None = None  # that fits; each rank halves its own, as nothing here is collective
        self.seconds = 0.0  # of the last validation

    @torch.no_grad()
    def sums(
        self,
        measure: Callable[[ImageBatch], Tensor],
        *,
        micro: int,
        must_stop: Callable[[], bool] = lambda: False,
    ) -> Tensor | None:
        """The sums of this rank for `Objective.means`; `micro` is the micro-batch of the training.

        `must_stop` is asked before each batch. None if it says so.
        """
        began = time.perf_counter()

        def add_up(batch: int) -> Tensor | None:
            total = self._objective.zeros(self._group.device)
            order = validation_batches(
                len(self._images), batch=batch, rank=self._group.rank, world_size=self._group.world_size
            )
            with closing(self._images.batches(order)) as batches:
                ahead: Moment | None = None
                for images in batches:
                    if must_stop():
                        return None
                    total += measure(images)
                    if ahead is not None:  # the host is ahead of a GPU by one batch, so that it stops in time
                        wait_until_reached(ahead)
                    ahead = moment(self._group.device)
            synchronize(self._group.device)
            return total

        batch = micro * self._factor
        total, self._largest = halve_until_it_fits(add_up, min(batch, self._largest or batch))
        self.seconds = time.perf_counter() - began
        return total
