"""Images per second that reach the device, randomly cropped and flipped: staged, and decoded by a DataLoader.

Both paths use the same cores and the same JPEGs of 64x64 pixels. The staged path maps the staged file into memory; the
other path is that of most scripts: torchvision's ImageFolder, PIL and transforms in DataLoader workers.

    python benchmarks/data_path.py --images 20000
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import print_table
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder
from trainyard.config.datasets import Python
from trainyard.config.train import Augment
from trainyard.data.staging import stage
from trainyard.training.augmentation import Augmenter
from trainyard.training.loaders import MappedSplit, ResidentSplit, Split
from trainyard.training.process_group import single_process
from trainyard.training.sampler import BatchSizes, training_batches

BATCH, SIDE, PADDING = 512, 64, 4


def write_images(folder: Path, count: int) -> None:
    """Write JPEGs with the detail of a small photo, about 2 KB each, in ten classes."""
    generator = np.random.default_rng(0)
    for index in range(count):
        path = folder / f"class{index % 10}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8))
        coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=85)


def build(root: str) -> tuple[ImageFolder, ImageFolder]:
    """The factory that staging calls: the same images for training and validation."""
    return ImageFolder(root), ImageFolder(root)


TO_FLOAT32 = [transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)]
TO_UINT8 = [transforms.PILToTensor()]


def decoded(root: Path, workers: int, to_tensor: list[Any]) -> Generator[float, None, None]:
    """Images per second of each epoch of the DataLoader."""
    change = [transforms.RandomCrop(SIDE, PADDING), transforms.RandomHorizontalFlip(), *to_tensor]
    loader = torch.utils.data.DataLoader(
        ImageFolder(str(root), transforms.Compose(change)),
        BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
    )
    while True:
        began = time.perf_counter()
        images = sum(len(labels) for _, labels in loader)
        yield images / (time.perf_counter() - began)


def staged_path(images_of: Split) -> Generator[float, None, None]:
    """Images per second of each epoch of the staged data."""
    size, batch, epoch = len(images_of), BatchSizes(per_rank=BATCH, micro=BATCH), 0
    while True:
        epoch += 1
        began = time.perf_counter()
        augment = Augmenter(Augment(crop_padding=PADDING, flip=True), size=size, seed=0, epoch=epoch)
        order, images = training_batches(size, batch, rank=0, seed=0, epoch=epoch), 0
        for each in images_of.batches(order):
            images += len(augment(each.pixels, each.indices))
        yield images / (time.perf_counter() - began)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=5, help="epochs of each path, after one warm-up epoch")
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    sys.path.insert(0, str(Path(__file__).parent))
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "images"
        write_images(root, arguments.images)
        staged = stage(
            Python(source="python", factory="data_path:build", args={"root": str(root)}), Path(name) / "data"
        )
        train = staged.split("train")
        split = (train.images, train.labels, single_process().device)
        paths = {
            f"ImageFolder, PIL, DataLoader with {cores} workers, float32": decoded(root, cores, TO_FLOAT32),
            "the same, uint8": decoded(root, cores, TO_UINT8),
            "staged, uint8, all on the device": staged_path(ResidentSplit(*split)),
            "staged, uint8, prefetched": staged_path(MappedSplit(*split)),
        }
        rates = {}
        for what, epochs in paths.items():
            next(epochs)
            rates[what] = statistics.median(next(epochs) for _ in range(arguments.epochs))
            epochs.close()
    base = next(iter(rates.values()))
    rows = [[what, f"{rate:,.0f}", f"{rate / base:.1f}"] for what, rate in rates.items()]
    print_table([f"path to the device ({cores} cores)", "images/s", "relative"], rows)


if __name__ == "__main__":
    main()
