"""Random augmentation of the training images, on the device: of single images as uint8, and mixtures of two images."""

import math
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainyard.config.train import Augment
from trainyard.training.loaders import ImageBatch, InputData, upload
from trainyard.training.sampler import derived_seed
from trainyard.utils.errors import UserError

_STREAM = 0x617567  # so that the shuffling has other seeds
_CROP_STREAM = 0  # so that the other draws of an epoch have other seeds than its resized crops


class Augmenter:
    """The random augmentation of one epoch: crops, then flips.

    It depends on seed, epoch and image only: not on rank, batch size, device, or interruptions. `resized_crop` needs
    images of the size `shape` (height, width).
    """

    def __init__(self, spec: Augment, *, size: int, seed: int, epoch: int, shape: tuple[int, int] = (0, 0)) -> None:
        self._is_active = spec.changes_images
        self._padding = spec.crop_padding
        self._flip = spec.flip
        generator = torch.Generator().manual_seed(derived_seed(seed, epoch, _STREAM))
        positions = (2 * self._padding + 1) ** 2
        self._moves = torch.randint(positions, (size,), generator=generator) if self._padding else None
        self._flips = torch.randint(2, (size,), generator=generator, dtype=torch.uint8) if self._flip else None
        self._crops: Tensor | None = None
        if spec.resized_crop is not None:
            height, width = shape
            generator = torch.Generator().manual_seed(derived_seed(seed, epoch, _STREAM, _CROP_STREAM))
            self._crops = draw_crops(size, spec.resized_crop, height=height, width=width, generator=generator)

    def __call__(self, images: Tensor, indices: Tensor) -> Tensor:
        """Augmented images, uint8 (B, H, W, C); `indices` (B,) are their positions in the split.

        Raises:
            UserError: the images are not uint8.
        """
        if self._is_active and images.dtype != torch.uint8:
            raise UserError("augment is for uint8 images: a dataset that returns normalized ones augments them itself")
        if self._crops is not None:
            images = resize_crops(images, upload(self._crops[indices], images.device))
        if self._moves is not None:
            images = shift_images(images, upload(self._moves[indices], images.device), self._padding)
        if self._flips is not None:
            images = flip_images(images, upload(self._flips[indices], images.device))
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
    rows = moves // (2 * padding + 1)
    columns = moves % (2 * padding + 1)
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


TRIES: Final = 10  # as in torchvision: a crop that does not fit the image is drawn again
CROP_RATIO: Final = (3 / 4, 4 / 3)  # width / height


def draw_crops(count: int, least_area: float, *, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Boxes of RandomResizedCrop in images of one size: int32 (count, 4), top, left, height and width.

    The area is uniform from the fraction `least_area` of the image to all of it, the aspect ratio log-uniform and the
    place uniform. As in torchvision, the largest central crop where none fits.
    """
    image = torch.tensor([height, width])
    sizes = torch.zeros(count, 2)
    missing = torch.arange(count)
    for _ in range(TRIES):
        area = torch.empty(len(missing)).uniform_(least_area, 1.0, generator=generator) * (height * width)
        log_ratio = torch.empty(len(missing)).uniform_(*map(math.log, CROP_RATIO), generator=generator)
        drawn = torch.stack([area / log_ratio.exp(), area * log_ratio.exp()], 1).sqrt().round()
        fits = ((drawn > 0) & (drawn <= image)).all(1)
        sizes[missing[fits]], missing = drawn[fits], missing[~fits]
    corners = torch.rand(count, 2, generator=generator) * (image - sizes + 1)
    boxes = torch.cat([corners.floor(), sizes], 1).int()
    largest = min(height, round(width / CROP_RATIO[0])), min(width, round(height * CROP_RATIO[1]))
    central = torch.tensor([(height - largest[0]) // 2, (width - largest[1]) // 2, *largest], dtype=torch.int32)
    return torch.where(boxes[:, 2:3] > 0, boxes, central)


def resize_crops(images: Tensor, boxes: Tensor) -> Tensor:
    """Each image's box, enlarged to the image's size: uint8 (B, H, W, C); bilinear, as torchvision's `resized_crop`."""
    tops, lefts, heights, widths = boxes.float().view(-1, 4, 1).unbind(1)
    _, height, width, _ = images.shape
    rows = _positions(tops, heights, height)
    columns = _positions(lefts, widths, width)
    grid = torch.stack(
        [columns.unsqueeze(1).expand(-1, height, -1), rows.unsqueeze(2).expand(-1, -1, width)], 3
    )  # x, y
    pixels = images.permute(0, 3, 1, 2).float()
    resized = nn.functional.grid_sample(pixels, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return resized.round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()


def _positions(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Where each of `size` pixels of the result lies in the image: (B, size), as `grid_sample` counts, -1 to 1.

    Positions outside of the box's outermost pixels are moved to these: a crop does not contain the pixels around it.
    """
    centers = start + (torch.arange(size, device=start.device) + 0.5) * (length / size) - 0.5
    return (2 * centers.clamp(min=start, max=start + length - 1) + 1) / size - 1


_MIX_STREAM = 0x6D6978  # so that shuffling and augmentation have other seeds


class Mixer:
    """Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) by torchvision.

    Each image of a micro-batch, and its label, is mixed with the one before it. If both ways are configured, one of
    them is drawn for each step.

    Weight and box depend on seed, epoch and step only, and are the same on all ranks. The pairs are images of the same
    micro-batch, so they depend on the number of ranks.
    """

    def __init__(self, spec: Augment, data: InputData, *, seed: int, channels_last: bool) -> None:
        self._data = data
        self._seed = seed
        self._channels_last = channels_last
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
            torch.default_generator.manual_seed(derived_seed(self._seed, epoch, step, _MIX_STREAM))
            pixels, labels = self._transform(pixels, batch.labels)
        return ImageBatch(pixels, labels, batch.indices)
