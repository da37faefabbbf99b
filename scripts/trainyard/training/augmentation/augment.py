"""Random augmentation of a uint8 batch on the device, drawn for each image."""

from functools import cache

import torch
from torch import Tensor, nn

from trainyard.config.train import Augment
from trainyard.training.augmentation.random_boxes import ERASED, draw_boxes, draw_crops, fill_boxes, resize_crops
from trainyard.training.sampler import derived_seed
from trainyard.utils.errors import UserError

_STREAM = 0x617567  # so that the shuffling has other seeds
_CROPS, _OPERATIONS, _ERASED = range(3)  # each with its own seeds


class Augmenter:
    """The random augmentation of one epoch: crops, flips, RandAugment and random erasing, in this order.

    It depends on seed, epoch and image only: not on rank, batch size, device, or interruptions. Images of the size
    `shape` (height, width) are needed for `resized_crop` and `erasing`; what is erased gets the `color`, uint8 (C,).
    """

    def __init__(
        self,
        spec: Augment,
        *,
        size: int,
        seed: int,
        epoch: int,
        shape: tuple[int, int] = (0, 0),
        color: Tensor | None = None,
    ) -> None:
        def generator_of(part: int) -> torch.Generator:
            return torch.Generator().manual_seed(derived_seed(seed, epoch, _STREAM, part))

        self._is_active = spec.changes_images
        self._padding, self._flip = spec.crop_padding, spec.flip
        generator = torch.Generator().manual_seed(derived_seed(seed, epoch, _STREAM))
        positions = (2 * self._padding + 1) ** 2
        self._moves = torch.randint(positions, (size,), generator=generator) if self._padding else None
        self._flips = torch.randint(2, (size,), generator=generator, dtype=torch.uint8) if self._flip else None
        height, width = shape
        self._crops = self._erased = self._operations = None
        if spec.resized_crop is not None:
            generator = generator_of(_CROPS)
            self._crops = draw_crops(size, spec.resized_crop, height=height, width=width, generator=generator)
        if spec.rand_augment:
            from trainyard.training.augmentation.rand_augment import RandAugment  # imports torchvision: seconds

            generator = generator_of(_OPERATIONS)
            self._operations = RandAugment(spec.rand_augment, size=size, generator=generator)
        if spec.erasing:
            generator, self._color = generator_of(_ERASED), color
            self._erased = draw_boxes(size, ERASED, height=height, width=width, generator=generator)
            self._erased[torch.rand(size, generator=generator) >= spec.erasing] = 0

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """Augmented images, uint8 (B, H, W, C); `indices` (B,) are their positions in the split.

        Raises:
            UserError: the images are not uint8.
        """
        if self._is_active and images.dtype != torch.uint8:
            raise UserError("augment is for uint8 images: a dataset that returns normalized ones augments them itself")
        if self._crops is not None:
            images = resize_crops(images, self._crops[indices].to(images.device, non_blocking=True))
        if self._moves is not None:
            images = shift_images(images, self._moves[indices].to(images.device, non_blocking=True), self._padding)
        if self._flips is not None:
            images = flip_images(images, self._flips[indices].to(images.device, non_blocking=True))
        if self._operations is not None:
            images = self._operations.augment(images, indices)
        if self._erased is not None:
            color = images.new_zeros(images.shape[3]) if self._color is None else self._color
            images = fill_boxes(images, self._erased[indices].to(images.device, non_blocking=True), color)
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
