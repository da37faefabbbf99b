"""Models of torchvision, adapted to the images of a dataset."""

from torch import Tensor, nn


class AdaptedModel(nn.Module):
    """A model of torchvision, for RGB images of a minimum size, adapted to grayscale and smaller images."""

    def __init__(self, model: nn.Module, *, channels: int, enlarged_to: tuple[int, int] | None) -> None:
        super().__init__()
        self.model, self._is_grayscale, self._size = model, channels == 1, enlarged_to

    def forward(self, images: Tensor) -> Tensor:
        """(N, 1 or 3, H, W) to (N, classes)."""
        if self._is_grayscale:
            images = images.expand(-1, 3, -1, -1)
        if self._size is not None:
            images = nn.functional.interpolate(images, self._size, mode="bilinear", antialias=False)
        logits: Tensor = self.model(images)
        return logits


def inner_model(model: nn.Module) -> nn.Module:
    """The model without its adaptation to the images, so that torchvision's models have torchvision's names."""
    return model.model if isinstance(model, AdaptedModel) else model
