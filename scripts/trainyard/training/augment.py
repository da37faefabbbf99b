"""Random crops and flips of a batch on the device, while it is still uint8: each image has a draw of its own."""

from functools import cache

import torch
from torch import Tensor, nn

from trainyard.config.train import Augment
from trainyard.training.sampler import derived_seed

_STREAM = 0x617567  # apart from the seeds of the order of images


class Augmenter:
    """The random changes of one epoch.

    The draws depend on seed, epoch and image alone: not on rank, batch, device, or what was done before.
    """

    def __init__(self, spec: Augment, *, size: int, seed: int, epoch: int) -> None:
        self._padding, self._flip = spec.crop_padding, spec.flip
        generator = torch.Generator().manual_seed(derived_seed(seed, epoch, _STREAM))
        places = (2 * self._padding + 1) ** 2
        self._moves = torch.randint(places, (size,), generator=generator) if self._padding else None
        self._flips = torch.randint(2, (size,), generator=generator, dtype=torch.uint8) if self._flip else None

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """uint8 (B, H, W, C) of the images with these indices, changed."""
        if self._moves is not None:
            images = shift_images(images, self._moves[indices].to(images.device, non_blocking=True), self._padding)
        if self._flips is not None:
            images = flip_images(images, self._flips[indices].to(images.device, non_blocking=True))
        return images


def flip_images(images: Tensor, flips: Tensor) -> Tensor:
    """Each image mirrored left to right where its flip, 0 or 1, is 1; bit by bit, as torch.where is slow on CPUs."""
    chosen = (flips * 255).view(-1, 1, 1, 1)
    return images.flip(2).bitwise_xor_(images).bitwise_and_(chosen).bitwise_xor_(images)


def shift_images(images: Tensor, moves: Tensor, padding: int) -> Tensor:
    """Each image cut out of itself with a black frame of `padding` pixels, at the place with this number.

    Places 0 to (2 padding + 1)^2 - 1 are numbered row by row. Moving an image by some rows and columns moves its bytes
    by one distance, so that one gather of whole images does it; what then comes from beside the image is made black.
    """
    count, height, width, channels = images.shape
    margin = padding * (width + 1) * channels  # bytes that the farthest move reaches beyond the batch
    flat = nn.functional.pad(images.reshape(-1), (margin, margin))
    image_bytes = height * width * channels
    windows = flat.as_strided((flat.numel() - image_bytes + 1, image_bytes), (1, 1))
    rows, columns = moves // (2 * padding + 1), moves % (2 * padding + 1)
    pixels = (rows - padding) * width + columns - padding
    starts = torch.arange(count, device=images.device) * image_bytes + pixels * channels + margin
    cut = torch.index_select(windows, 0, starts).view(count, height, width * channels)
    cut.bitwise_and_(_inside(height, 1, padding, images.device)[rows].unsqueeze(2))
    cut.bitwise_and_(_inside(width, channels, padding, images.device)[columns].unsqueeze(1))
    return cut.view(count, height, width, channels)


@cache
def _inside(length: int, repeats: int, padding: int, device: torch.device) -> Tensor:
    """uint8 (2 padding + 1, length x repeats): for each place 255 where it shows the image, 0 where the frame."""
    at = torch.arange(length) + torch.arange(-padding, padding + 1).view(-1, 1)
    inside = ((at >= 0) & (at < length)).to(torch.uint8) * 255
    return inside.repeat_interleave(repeats, dim=1).to(device)
