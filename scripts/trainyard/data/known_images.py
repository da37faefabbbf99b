"""What is known of a dataset's images before a job needs them: from the staged files, or else from the config alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainyard.config.datasets import Dataset, Digits, ImageFolder, Python, Synthetic, Torchvision
from trainyard.data.staged import DataError, OnTheFlyMeta, StagedImageMeta, read_meta

Shape = tuple[int, int, int]

# Height, width and channels, classes, and training images of torchvision's datasets.
_TORCHVISION: Final[dict[str, tuple[Shape, int, int]]] = {
    "MNIST": ((28, 28, 1), 10, 60_000),
    "FashionMNIST": ((28, 28, 1), 10, 60_000),
    "KMNIST": ((28, 28, 1), 10, 60_000),
    "CIFAR10": ((32, 32, 3), 10, 50_000),
    "CIFAR100": ((32, 32, 3), 100, 50_000),
    "SVHN": ((32, 32, 3), 10, 73_257),
    "USPS": ((16, 16, 1), 10, 7_291),
}


@dataclass(frozen=True)
class KnownImages:
    """What a training needs to know of its images; None for what only staging tells."""

    shape: Shape | None = None  # height, width, channels
    outputs: int | None = None  # of a model: classes or `targets`
    training_images: int | None = None
    numeric: bool = False  # labels are numbers, one per output, instead of classes
    is_staged: bool = False

    def __str__(self) -> str:
        labels = "numbers per label" if self.numeric else "classes"
        parts = [
            "" if self.training_images is None else f"{self.training_images:,} training images",
            "" if self.shape is None else "x".join(map(str, self.shape)),
            "" if self.outputs is None else f"{self.outputs} {labels}",
        ]
        return ", ".join(filter(None, parts))


def known_images(dataset: Dataset, folder: Path) -> KnownImages:
    """What is known of a dataset whose staged files are, or will be, in `folder`."""
    return _of_staged(dataset, folder) or _of_section(dataset)


def _of_staged(dataset: Dataset, folder: Path) -> KnownImages | None:
    """From the staged files, if they were made from the same section of the config."""
    try:
        meta = read_meta(folder)
    except (OSError, DataError):
        return None
    section = dataset.model_dump(mode="json")
    if any(meta.source.get(name) != value for name, value in section.items()):
        return None
    match meta:
        case StagedImageMeta():
            images = sum(meta.counts["train"])
        case OnTheFlyMeta():
            images = meta.sizes[0]
        case _:
            return KnownImages(is_staged=True)
    return KnownImages(
        shape=meta.shape,
        outputs=len(meta.classes),
        training_images=images,
        numeric=bool(section.get("targets")),
        is_staged=True,
    )


def _of_section(dataset: Dataset) -> KnownImages:
    match dataset:
        case Digits():
            return KnownImages(shape=(8, 8, 1), outputs=10, training_images=1437)
        case Synthetic():
            shape = (dataset.height, dataset.width, dataset.channels)
            return KnownImages(shape=shape, outputs=dataset.classes, training_images=dataset.images)
        case Torchvision():
            shape, outputs, images = _TORCHVISION[dataset.name]
            return KnownImages(shape=shape, outputs=outputs, training_images=images)
        case ImageFolder(height=int(height), width=int(width)):
            return KnownImages(shape=(height, width, 3))
        case Python():
            names = dataset.targets or dataset.classes
            return KnownImages(outputs=len(names) if names else None, numeric=dataset.targets is not None)
        case _:
            return KnownImages()
