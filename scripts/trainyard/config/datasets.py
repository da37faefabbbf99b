"""What the section `datasets` of the config may say: one model per source of data."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator
from pydantic_core import PydanticCustomError

from trainyard.config.train import Section


class Digits(Section):
    """scikit-learn's handwritten digits: 1,797 grey images of 8x8 pixels in 10 classes. Needs no download."""

    source: Literal["digits"] = Field(description="The digits that ship with scikit-learn.")
    val_fraction: float = Field(0.2, gt=0, lt=1, description="Share of the images held out, stratified by class.")
    seed: int = Field(0, description="Seed of the split.")


class Synthetic(Section):
    """Generated images, of any size: noise around one random pattern per class, so that models can learn them."""

    source: Literal["synthetic"] = Field(description="Images generated from a seed.")
    images: PositiveInt = Field(1024, description="Training images.")
    val_images: PositiveInt = Field(256, description="Validation images.")
    height: PositiveInt = Field(32, description="Height in pixels.")
    width: PositiveInt = Field(32, description="Width in pixels.")
    channels: PositiveInt = Field(3, description="Channels of an image.")
    classes: int = Field(10, ge=2, description="Number of classes.")
    seed: int = Field(0, description="Seed of patterns, labels and noise.")


class Torchvision(Section):
    """A dataset of torchvision, read by its class in `torchvision.datasets` from a local copy or from downloads."""

    source: Literal["torchvision"] = Field(description="A dataset of torchvision.")
    name: Literal["MNIST", "FashionMNIST", "KMNIST", "CIFAR10", "CIFAR100", "SVHN", "USPS"] = Field(
        description="Its class in `torchvision.datasets`."
    )
    root: str | None = Field(
        None,
        description="A local copy: a folder in torchvision's layout or with the published files (for CIFAR also the "
        "archive itself). By default it is downloaded to `data.downloads`.",
    )


class ImageFolder(Section):
    """Images in folders named as their classes, or TinyImageNet as it is published: a folder, a zip or a tar.

    `train/<class>/*.jpg` and `val/<class>/*.jpg` (also `valid`, `validation` or `test`), or `<class>/*.jpg` alone, of
    which a part is then held out.
    """

    source: Literal["imagefolder"] = Field(description="Image files.")
    root: str | None = Field(None, description="The folder, `.zip`, `.tar`, `.tar.gz`, `.tar.bz2` or `.tar.xz`.")
    url: str | None = Field(
        None, description="Where to download such an archive from, instead.", pattern=r"^https?://[^/]+/.*[^/]$"
    )
    checksum: str | None = Field(
        None,
        description="The checksum of what `url` gives: `md5:...` or `sha256:...`.",
        pattern=r"^(md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$",
    )
    height: PositiveInt | None = Field(None, description="Height in pixels; by default that of most images.")
    width: PositiveInt | None = Field(None, description="Width in pixels.")
    fit: Literal["crop", "stretch", "pad"] = Field(
        "crop",
        description="How an image gets this height and width: its middle, the whole of it out of shape, or the whole "
        "of it with a black border.",
    )
    channels: Literal[1, 3] = Field(3, description="3: colours. 1: grey.")
    on_bad_image: Literal["fail", "skip"] = Field(
        "fail", description="When all is read and bad images are listed in `problems.csv`: `fail`, or `skip` them."
    )
    val_fraction: float = Field(
        0.2, gt=0, lt=1, description="Share of the images held out, stratified by class, where there is no such part."
    )
    seed: int = Field(0, description="Seed of the split.")

    @model_validator(mode="after")
    def _has_one_place(self) -> "ImageFolder":
        if (self.root is None) == (self.url is None):
            raise PydanticCustomError("place", "give either root or url")
        if self.url and not self.checksum:
            raise PydanticCustomError("place", "url needs a checksum, as in md5:90528d7ca1a48142e341f4ef8d21d0de")
        if (self.height is None) != (self.width is None):
            raise PydanticCustomError("size", "give both height and width, or neither")
        return self


class Table(Section):
    """A CSV or Parquet table with a target column, for tree models."""

    source: Literal["table"] = Field(description="A table on disk.")
    path: str = Field(description="The file, ending in `.csv` or `.parquet`.", pattern=r"\.(csv|parquet)$")
    target: str = Field(description="The column to predict.")
    task: Literal["auto", "classification", "regression"] = Field(
        "auto", description="`auto`: regression for a target of floating-point numbers, else classification."
    )
    val_fraction: float = Field(0.2, gt=0, lt=1, description="Share of the rows held out, stratified by class.")
    seed: int = Field(0, description="Seed of the split.")


class Python(Section):
    """Your own code: a function that is called with `args` and gives two torch datasets, to train on and to validate.

    Their items are `(image, label)`: uint8 of shape (H, W) or (H, W, C), as an array, a tensor or a PIL image.
    """

    source: Literal["python"] = Field(description="A function of yours.")
    factory: str = Field(description="Where it is: `package.module:function`.", pattern=r"^[\w.]+:\w+$")
    args: dict[str, Any] = Field({}, description="Its keyword arguments.")
    classes: list[str] | None = Field(None, description="Names of the classes; without it, their numbers.")
    version: str = Field("", description="Change it when the function gives other images, to have them staged anew.")
    on_the_fly: bool = Field(
        False,
        description="Ask your code for every image in every epoch, in DataLoader workers, instead of once: for random "
        "changes of your own. Such images may also be normalised float32 of shape (C, H, W).",
    )


Dataset = Annotated[Digits | Torchvision | ImageFolder | Synthetic | Table | Python, Field(discriminator="source")]


def is_downloaded(dataset: Dataset) -> bool:
    """Whether its files have to be fetched from elsewhere."""
    return isinstance(dataset, (Torchvision, ImageFolder)) and dataset.root is None


def holds_images(dataset: Dataset) -> bool:
    """Whether images lie in its folder once it is staged."""
    return not (isinstance(dataset, Table) or (isinstance(dataset, Python) and dataset.on_the_fly))
