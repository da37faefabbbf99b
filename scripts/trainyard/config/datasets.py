"""The section `datasets` of the config: one model per data source."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from trainyard.config.train import FunctionPath, Section, hint

Url = Annotated[
    str,
    Field(pattern=r"^https?://[^/]+/[^#]*[^/#]#(md5=[0-9a-f]{32}|sha256=[0-9a-f]{64})$"),
    hint("a URL begins with http:// or https://, and ends in a file and its checksum, #md5=... or #sha256=..."),
]


class Digits(Section):
    """scikit-learn's handwritten digits: 1,797 grayscale images of 8x8 pixels in 10 classes. Needs no download.

    A fifth of the images, stratified by class, is for validation.
    """

    source: Literal["digits"] = Field(description="scikit-learn's digits.")


class Synthetic(Section):
    """Generated images of any size: noise around one random pattern per class, which a model can learn."""

    source: Literal["synthetic"] = Field(description="Images generated from a seed.")
    images: PositiveInt = Field(1024, description="Training images.")
    val_images: PositiveInt = Field(256, description="Validation images.")
    height: PositiveInt = Field(32, description="Height in pixels.")
    width: PositiveInt = Field(32, description="Width in pixels.")
    channels: PositiveInt = Field(3, description="Channels per image.")
    classes: int = Field(10, ge=2, description="Number of classes.")


class Torchvision(Section):
    """A dataset of torchvision, read by its class in `torchvision.datasets` from a local copy or from downloads."""

    source: Literal["torchvision"] = Field(description="A dataset of torchvision.")
    name: Literal["MNIST", "FashionMNIST", "KMNIST", "CIFAR10", "CIFAR100", "SVHN", "USPS"] = Field(
        description="Name of the class in `torchvision.datasets`."
    )
    root: str | None = Field(
        None,
        description="A local copy: a folder in torchvision's layout or with the published files (for CIFAR also the "
        "archive itself). By default it is downloaded to `data.downloads`.",
    )


class ImageFolder(Section):
    """Image files in class folders, or TinyImageNet as published: a folder, a zip or a tar.

    The layout is `train/<class>/*.jpg` and `val/<class>/*.jpg` (or `valid`, `validation`, `test`). Without a validation
    folder, or with `<class>/*.jpg` alone, the split is random.
    """

    source: Literal["imagefolder"] = Field(description="Image files.")
    root: str | None = Field(None, description="A folder, or a `.zip` or `.tar`, also a compressed one (`.tar.gz`).")
    url: Url | None = Field(
        None,
        description="Instead of `root`: the URL of such an archive to download, and after it the checksum, `#md5=...` "
        "or `#sha256=...`.",
    )
    height: PositiveInt | None = Field(
        None,
        description="Height in pixels: images are resized, and cropped at the center. By default it is the most "
        "frequent one, and images of another size are bad.",
    )
    width: PositiveInt | None = Field(None, description="Width in pixels; to be set with `height`.")
    on_bad_image: Literal["fail", "skip"] = Field(
        "fail",
        description="`fail` after all images are read and the bad ones are listed in `problems.csv`, or `skip` them.",
    )
    val_fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Fraction of the images for validation, stratified by class, if the split is random.",
    )

    def _problems(self) -> Iterator[str]:
        if (self.root is None) == (self.url is None):
            yield "give either root or url"
        if (self.height is None) != (self.width is None):
            yield "give both height and width, or neither"


class Table(Section):
    """A CSV or Parquet table with a target column, for tree models.

    Columns are numbers or categories: text is a category, as are Booleans with missing values. In a Parquet file, dates
    and times are seconds since 1970.
    """

    source: Literal["table"] = Field(description="A table file.")
    path: Annotated[str, Field(pattern=r"\.(csv|parquet)$"), hint("a table must end in .csv or .parquet")] = Field(
        description="The `.csv` or `.parquet` file."
    )
    target: str = Field(description="The target column.")
    task: Literal["auto", "classification", "regression"] = Field(
        "auto", description="`auto`: regression for a floating-point target, else classification."
    )
    val_fraction: float = Field(
        0.2, gt=0, lt=1, description="Fraction of the rows for validation, stratified by class."
    )


class Python(Section):
    """A function of yours, called with `args`, that returns two torch datasets: for training and for validation.

    Their items are `(image, label)`: uint8 of shape (H, W) or (H, W, C), as an array, a tensor or a PIL image.
    """

    source: Literal["python"] = Field(description="A function of yours.")
    factory: FunctionPath = Field(description="The function: `package.module:function`.")
    args: dict[str, Any] = Field({}, description="Keyword arguments of the function.")
    classes: list[str] | None = Field(None, description="Names of the classes; by default their numbers.")
    targets: list[str] | None = Field(
        None,
        min_length=1,
        description="For regression and multi-label: the names of the numbers that a label consists of, instead of "
        "`classes`. A model has one output for each. Needs `on_the_fly`.",
    )
    version: str = Field(
        "", description="Change it when the function returns different images: a new value stages the dataset again."
    )
    on_the_fly: bool = Field(
        False,
        description="Do not stage the images, but read them from your datasets in every epoch, in DataLoader workers: "
        "for augmentation of your own. Such images may also be normalized float32 of shape (C, H, W).",
    )

    def _problems(self) -> Iterator[str]:
        if self.targets is not None and (self.classes is not None or not self.on_the_fly):
            yield "targets need `on_the_fly: true`, and take the place of classes"


Dataset = Annotated[Digits | Torchvision | ImageFolder | Synthetic | Table | Python, Field(discriminator="source")]


def needs_download(dataset: Dataset) -> bool:
    """Whether the dataset has no local copy."""
    return isinstance(dataset, (Torchvision, ImageFolder)) and dataset.root is None


def has_images(dataset: Dataset) -> bool:
    """Whether the staged dataset has images (not a table, or images that are made on the fly)."""
    return not (isinstance(dataset, Table) or (isinstance(dataset, Python) and dataset.on_the_fly))
