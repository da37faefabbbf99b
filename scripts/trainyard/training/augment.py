"""Random crops and flips of a uint8 batch on the device, drawn for each image."""

from functools import cache

import torch
from torch import Tensor, nn

from trainyard.config.train import Augment
from trainyard.training.sampler import derived_seed

_STREAM = 0x617567  # keeps these seeds apart from those of the shuffling


class Augmenter:
    """The random crops and flips of one epoch.

    They depend on seed, epoch and image only: not on rank, batch size, device, or interruptions.
    """

    def __init__(self, spec: Augment, *, size: int, seed: int, epoch: int) -> None:
        self._padding, self._flip = spec.crop_padding, spec.flip
        generator = torch.Generator().manual_seed(derived_seed(seed, epoch, _STREAM))
        positions = (2 * self._padding + 1) ** 2
        self._moves = torch.randint(positions, (size,), generator=generator) if self._padding else None
        self._flips = torch.randint(2, (size,), generator=generator, dtype=torch.uint8) if self._flip else None

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """Augmented images, uint8 (B, H, W, C); `indices` (B,) are their positions in the split."""
        if self._moves is not None:
            images = shift_images(images, self._moves[indices].to(images.device, non_blocking=True), self._padding)
        if self._flips is not None:
            images = flip_images(images, self._flips[indices].to(images.device, non_blocking=True))
        return images


def flip_images(images: Tensor, flips: Tensor) -> Tensor:
    """Images mirrored horizontally where `flips` (uint8, 0 or 1) is 1. Bit operations: torch.where is slow on CPUs."""
    mask = (flips * 255).view(-1, 1, 1, 1)
    return images.flip(2).bitwise_xor_(images).bitwise_and_(mask).bitwise_xor_(images)


def shift_images(images: Tensor, moves: Tensor, padding: int) -> Tensor:
    """Random crop: each image is padded with `padding` black pixels and cropped to its size at the position `moves`.

    The (2 padding + 1)^2 positions are numbered row by row. A shift by rows and columns is one offset in memory, so a
    single gather of whole images shifts all of them; pixels from outside of an image are then set to black.
    """
    count, height, width, channels = images.shape
    margin = padding * (width + 1) * channels  # bytes between the batch and the farthest crop
    flat = nn.functional.pad(images.reshape(-1), (margin, margin))
    image_bytes = height * width * channels
    windows = flat.as_strided((flat.numel() - image_bytes + 1, image_bytes), (1, 1))
    rows, columns = moves // (2 * padding + 1), moves % (2 * padding + 1)
    pixels = (rows - padding) * width + columns - padding
    starts = torch.arange(count, device=images.device) * image_bytes + pixels * channels + margin
    crops = torch.index_select(windows, 0, starts).view(count, height, width * channels)
    crops.bitwise_and_(_inside(height, 1, padding, images.device)[rows].unsqueeze(2))
    crops.bitwise_and_(_inside(width, channels, padding, images.device)[columns].unsqueeze(1))
    return crops.view(count, height, width, channels)


@cache
def _inside(length: int, repeats: int, padding: int, device: torch.device) -> Tensor:
    """Mask per position, uint8 (2 padding + 1, length x repeats): 255 inside of the image, 0 in the padding."""
    at = torch.arange(length) + torch.arange(-padding, padding + 1).view(-1, 1)
    inside = ((at >= 0) & (at < length)).to(torch.uint8) * 255
    return inside.repeat_interleave(repeats, dim=1).to(device)
