"""The plots of a staged dataset: some of its images, and the number of images per class."""

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from trainyard.data.sources import shuffled_ranks
from trainyard.data.staged import SPLITS, StagedImageMeta, StagedImages
from trainyard.report.style import COLORS, shorten

COLUMNS: Final = 10
MAX_IMAGES: Final = 50
MAX_NAMED_CLASSES: Final = 30
MAX_TITLE_LENGTH: Final = 11


def plot_samples(axes: Axes, split: StagedImages, meta: StagedImageMeta) -> None:
    """Some training images in a grid, each below the name of its class."""
    # A deterministic selection, spread evenly over the classes and sorted by class.
    shuffled, rank = shuffled_ranks(split.labels)
    first = shuffled[np.argsort(rank[shuffled], kind="stable")][:MAX_IMAGES]
    rows = first[np.argsort(split.labels[first], kind="stable")]
    height, width, channels = meta.shape
    gap = max(1, width // 8)
    head = 0.34 * height
    for place, row in enumerate(rows):
        left = place % COLUMNS * (width + gap)
        top = place // COLUMNS * (height + gap + head)
        pixels = split.images[row] if channels == 3 else split.images[row][..., 0]
        extent = (left, left + width, top + height, top)
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, extent=extent, interpolation="nearest")
        axes.text(left, top - 0.04 * height, class_title(meta, int(split.labels[row])), fontsize=8, va="bottom")
    lines = -(-len(rows) // COLUMNS)
    axes.set_xlim(-gap, min(COLUMNS, len(rows)) * (width + gap))
    axes.set_ylim(lines * (height + gap + head) - head, -head - gap)
    axes.axis("off")
    train, val = (sum(meta.counts[name]) for name in SPLITS)
    colors = "RGB" if channels == 3 else "grayscale"
    shape = f"{height}x{width} {colors}"
    axes.set_title(f"{train:,} training and {val:,} validation images, {shape}, {len(meta.classes)} classes")


def class_title(meta: StagedImageMeta, label: int) -> str:
    """The short title of a class: its first title in the source, or else its name."""
    name = meta.classes[label]
    return shorten((meta.titles or {}).get(name, name).split(",")[0], MAX_TITLE_LENGTH)


def plot_class_balance(axes: Axes, meta: StagedImageMeta) -> None:
    """Images per class: one named bar each, or, with many classes, an area sorted by size."""
    train, val = (np.array(meta.counts[name]) for name in SPLITS)
    places = np.arange(len(train))
    are_many = len(train) > MAX_NAMED_CLASSES
    order = np.argsort(-train, kind="stable")
    for counts, side, color, label in ((train, -0.2, COLORS[4], "training"), (val, 0.2, COLORS[0], "validation")):
        if are_many:
            axes.fill_between(places, counts[order], step="mid", color=color, label=label)
        else:
            axes.bar(places + side, counts, width=0.4, color=color, label=label)
    if are_many:
        axes.set_xlabel("classes in order of size")
        axes.set_xlim(-0.5, len(train) - 0.5)
    else:
        names = [class_title(meta, label) for label in range(len(train))]
        turned = max(map(len, names)) * len(names) > 60
        axes.set_xticks(places, names, rotation=45 if turned else 0, ha="right" if turned else "center")
        axes.grid(axis="x", visible=False)
    axes.set_ylabel("images")
    axes.set_ylim(0, 1.18 * train.max())
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    sizes = " to ".join(dict.fromkeys(f"{count:,}" for count in (train.min(), train.max())))
    axes.set_title(f"{len(train)} classes of {sizes} training images")
    axes.legend(ncols=2, loc="upper right")
