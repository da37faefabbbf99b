"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) by torchvision: each image is mixed with the one before it."""

from typing import Any

import torch

from trainyard.config.train import Augment
from trainyard.training.loaders import ImageBatch, InputData
from trainyard.training.sampler import derived_seed

_STREAM = 0x6D6978  # so that shuffling and augmentation have other seeds


class Mixer:
    """Mixes the images and labels of a micro-batch; if both ways are configured, one of them is drawn for each step.

    Weight and box depend on seed, epoch and step only, and are the same on all ranks. The pairs are images of the same
    micro-batch, so they depend on the number of ranks.
    """

    def __init__(self, spec: Augment, data: InputData, *, seed: int, channels_last: bool) -> None:
        self._data, self._seed, self._channels_last = data, seed, channels_last
        self._transform: Any = None
        if spec.mixup or spec.cutmix:
            from torchvision.transforms import v2  # its import takes seconds

            kinds = [(v2.MixUp, spec.mixup), (v2.CutMix, spec.cutmix)]
            chosen = [kind(alpha=alpha, num_classes=data.classes) for kind, alpha in kinds if alpha]
            self._transform = v2.RandomChoice(chosen)

    def __call__(self, batch: ImageBatch, *, epoch: int, step: int) -> ImageBatch:
        """The batch with normalized pixels, float32 (B, C, H, W), and soft labels, float32 (B, classes)."""
        if self._transform is None:
            return batch
        pixels = self._data.normalize(batch.pixels, channels_last=self._channels_last)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derived_seed(self._seed, epoch, step, _STREAM))
            pixels, labels = self._transform(pixels, batch.labels)
        return ImageBatch(pixels, labels, batch.indices)
