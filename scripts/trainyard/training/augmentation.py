"""Random augmentation of the training images, on the device: of single images as uint8, and mixtures of two images."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor, nn

from trainyard.config.train import Augment
from trainyard.training.loaders import ImageBatch, InputData, upload
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
            images = resize_crops(images, upload(self._crops[indices], images.device))
        if self._moves is not None:
            images = shift_images(images, upload(self._moves[indices], images.device), self._padding)
        if self._flips is not None:
            images = flip_images(images, upload(self._flips[indices], images.device))
        if self._operations is not None:
            images = self._operations.augment(images, indices)
        if self._erased is not None:
            color = images.new_zeros(images.shape[3]) if self._color is None else self._color
            images = fill_boxes(images, upload(self._erased[indices], images.device), color)
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


class RandAugment:
    """RandAugment (Cubuk et al. 2020): `operations` of torchvision's random operations per image.

    torchvision's transform draws one set of operations for a whole batch. All operations have the same magnitude, so
    the images of a batch with the same operation are transformed together.
    """

    def __init__(self, operations: int, *, size: int, generator: torch.Generator) -> None:
        from torchvision.transforms import v2  # its import takes seconds

        self._transform: Any = v2.RandAugment(num_ops=operations)
        kinds = 2 * len(self._transform._AUGMENTATION_SPACE)  # an even number is an operation, an odd one its negative
        self.drawn = torch.randint(kinds, (size, operations), generator=generator, dtype=torch.uint8)

    def augment(self, images: Tensor, indices: Tensor) -> Tensor:
        """Augmented images, uint8 (B, H, W, C); `indices` (B,) are their positions in the split."""
        if images.shape[3] not in (1, 3):
            raise UserError(f"rand_augment is for images of 1 or 3 channels; these have {images.shape[3]}")
        augmented = images.permute(0, 3, 1, 2).clone()
        for drawn in self.drawn[indices].unbind(1):
            for kind in sorted(set(drawn.tolist())):
                where = upload((drawn == kind).nonzero().flatten(), images.device)
                augmented[where] = self._apply(augmented[where], kind)
        return augmented.permute(0, 2, 3, 1)

    def _apply(self, images: Tensor, kind: int) -> Tensor:
        theirs = self._transform
        name = list(theirs._AUGMENTATION_SPACE)[kind // 2]
        magnitudes_of, has_sign = theirs._AUGMENTATION_SPACE[name]
        magnitudes = magnitudes_of(theirs.num_magnitude_bins, *images.shape[2:])
        magnitude = 0.0 if magnitudes is None else float(magnitudes[theirs.magnitude])
        sign = -1 if has_sign and kind % 2 else 1
        augmented: Tensor = theirs._apply_image_or_video_transform(
            images, name, sign * magnitude, interpolation=theirs.interpolation, fill=theirs._fill
        )
        return augmented


TRIES: Final = 10  # as torchvision: a box that does not fit the image is drawn again


@dataclass(frozen=True)
class BoxSpec:
    """The distribution of boxes in an image: uniform area, log-uniform aspect ratio, uniform place."""

    area: tuple[float, float]  # as a fraction of the image
    ratio: tuple[float, float]  # width / height
    is_smaller: bool  # strictly smaller than the image in both directions


CROP_RATIO: Final = (3 / 4, 4 / 3)
ERASED: Final = BoxSpec(area=(0.02, 0.33), ratio=(1 / 3.3, 1 / 0.3), is_smaller=True)


def draw_boxes(count: int, spec: BoxSpec, *, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Boxes in images of one size: int32 (count, 4), top, left, height and width; of size 0 if none fits."""
    most = torch.tensor([height - spec.is_smaller, width - spec.is_smaller])
    sizes, missing = torch.zeros(count, 2), torch.arange(count)
    for _ in range(TRIES):
        area = torch.empty(len(missing)).uniform_(*spec.area, generator=generator) * (height * width)
        log_ratio = torch.empty(len(missing)).uniform_(*map(math.log, spec.ratio), generator=generator)
        drawn = torch.stack([area / log_ratio.exp(), area * log_ratio.exp()], 1).sqrt().round()
        fits = ((drawn > 0) & (drawn <= most)).all(1)
        sizes[missing[fits]], missing = drawn[fits], missing[~fits]
    corners = torch.rand(count, 2, generator=generator) * (torch.tensor([height, width]) - sizes + 1)
    return torch.cat([corners.floor(), sizes], 1).int()


def draw_crops(count: int, least_area: float, *, height: int, width: int, generator: torch.Generator) -> Tensor:
    """Boxes of RandomResizedCrop, int32 (count, 4); as torchvision, the largest central crop where none fits."""
    spec = BoxSpec(area=(least_area, 1.0), ratio=CROP_RATIO, is_smaller=False)
    boxes = draw_boxes(count, spec, height=height, width=width, generator=generator)
    size = min(height, round(width / CROP_RATIO[0])), min(width, round(height * CROP_RATIO[1]))
    central = torch.tensor([(height - size[0]) // 2, (width - size[1]) // 2, *size], dtype=torch.int32)
    return torch.where(boxes[:, 2:3] > 0, boxes, central)


def resize_crops(images: Tensor, boxes: Tensor) -> Tensor:
    """Each image's box, enlarged to the image's size: uint8 (B, H, W, C); bilinear, as torchvision's `resized_crop`."""
    top, left, heights, widths = boxes.float().view(-1, 4, 1).unbind(1)
    _, height, width, _ = images.shape
    rows, columns = _positions(top, heights, height), _positions(left, widths, width)
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


def fill_boxes(images: Tensor, boxes: Tensor, color: Tensor) -> Tensor:
    """Images, uint8 (B, H, W, C), whose box has the `color`, uint8 (C,)."""
    top, left, heights, widths = boxes.view(-1, 4, 1).unbind(1)
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[1:3])
    in_rows, in_columns = (rows >= top) & (rows < top + heights), (columns >= left) & (columns < left + widths)
    return torch.where((in_rows.unsqueeze(2) & in_columns.unsqueeze(1)).unsqueeze(3), color, images)


_MIX_STREAM = 0x6D6978  # so that shuffling and augmentation have other seeds


class Mixer:
    """Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019) by torchvision.

    Each image of a micro-batch, and its label, is mixed with the one before it. If both ways are configured, one of
    them is drawn for each step.

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
            torch.default_generator.manual_seed(derived_seed(self._seed, epoch, step, _MIX_STREAM))
            pixels, labels = self._transform(pixels, batch.labels)
        return ImageBatch(pixels, labels, batch.indices)
