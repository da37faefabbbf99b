"""Random boxes as in torchvision's RandomResizedCrop and RandomErasing, drawn for all images of a batch at once."""

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

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
