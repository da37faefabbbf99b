"""RandAugment (Cubuk et al. 2020): torchvision's operations, drawn for each image, applied to groups of images."""

import torch
from torch import Tensor
from torchvision.transforms import v2

from trainyard.utils.errors import UserError


class RandAugment(v2.RandAugment):  # type: ignore[misc]
    """`operations` random operations per image.

    torchvision's transform draws one set of operations for a whole batch. All operations have the same magnitude, so
    the images of a batch with the same operation are transformed together.
    """

    def __init__(self, operations: int, *, size: int, generator: torch.Generator) -> None:
        super().__init__(num_ops=operations)
        kinds = 2 * len(self._AUGMENTATION_SPACE)  # an even number is an operation, an odd one its negative
        self._drawn = torch.randint(kinds, (size, operations), generator=generator, dtype=torch.uint8)

    def augment(self, images: Tensor, indices: Tensor) -> Tensor:
        """Augmented images, uint8 (B, H, W, C); `indices` (B,) are their positions in the split."""
        if images.shape[3] not in (1, 3):
            raise UserError(f"rand_augment is for images of 1 or 3 channels; these have {images.shape[3]}")
        augmented = images.permute(0, 3, 1, 2).clone()
        for drawn in self._drawn[indices].unbind(1):
            for kind in sorted(set(drawn.tolist())):
                where = (drawn == kind).nonzero().flatten().to(images.device, non_blocking=True)
                augmented[where] = self._apply(augmented[where], kind)
        return augmented.permute(0, 2, 3, 1)

    def _apply(self, images: Tensor, kind: int) -> Tensor:
        name = list(self._AUGMENTATION_SPACE)[kind // 2]
        magnitudes_of, has_sign = self._AUGMENTATION_SPACE[name]
        magnitudes = magnitudes_of(self.num_magnitude_bins, *images.shape[2:])
        magnitude = 0.0 if magnitudes is None else float(magnitudes[self.magnitude])
        sign = -1 if has_sign and kind % 2 else 1
        augmented: Tensor = self._apply_image_or_video_transform(
            images, name, sign * magnitude, interpolation=self.interpolation, fill=self._fill
        )
        return augmented
