"""Images per second of Trainyard's loop, compared with a plain torchrun script (plain_ddp.py).

Both use the same model, data, batch size, precision and number of ranks, and run alternately on the same cores. The
result is the median over all epochs but the first of each run. On a CPU, the model is a small ResNet in fp32. On a GPU,
it is ResNet-50 with 200 classes on 64x64 images in bf16: both eager, and both as fast as a user makes them, the script
with channels_last, a fused optimizer and torch.compile. They are also compared with a loop over JPEGs in fp16.

    python benchmarks/training.py --turns 3
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from common import print_table, run_program
from PIL import Image
from trainyard.data.staged import Staged

PLAIN = Path(__file__).with_name("plain_ddp.py")
ON_CPU: dict[str, Any] = {
    "dataset": {"source": "synthetic", "images": 1024, "val_images": 64},
    "train": {"model": "resnet", "model_args": {"blocks": 4, "width": 32}, "batch_size": 128, "precision": "fp32"},
    "plain": ["--model", "small_resnet", "--blocks", "4", "--width", "32", "--classes", "10", "--batch-size", "128"],
}
ON_GPU: dict[str, Any] = {
    "dataset": {"source": "synthetic", "images": 100_000, "val_images": 512, "height": 64, "width": 64, "classes": 200},
    "train": {"model": "resnet50", "batch_size": 512, "precision": "bf16"},
    "plain": [
        "--model",
        "resnet50",
        "--classes",
        "200",
        "--batch-size",
        "512",
        "--precision",
        "bf16",
        "--workers",
        "8",
    ],
}
TUNED = ["--channels-last", "--fused", "--compile"]


def ours(folder: Path, scale: str) -> list[float]:
    """Images per second of each epoch of a study's scale."""
    run_program(folder, "train", "--study", "s", "--scale", scale)
    return list(pd.read_csv(folder / f"results/scaling/s/{scale}/history.csv")["images_per_second"])


def plain(data: Path, ranks: int, *options: str) -> list[float]:
    """Images per second of each epoch of the plain script."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, str(PLAIN), str(data), *options], env=environment, text=True, stdout=subprocess.PIPE, check=True
    )
    return [float(rate) for rate in re.findall(r"images_per_second ([\d.]+)", done.stdout)]


def write_jpegs(staged: Staged, folder: Path) -> None:
    """Write the training images as files into one folder per class."""
    split = staged.split("train")
    for index, (image, label) in enumerate(zip(split.images, split.labels, strict=True)):
        path = folder / f"class{label:03d}" / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="alternating runs of each")
    parser.add_argument("--epochs", type=int, default=8, help="epochs per run; the first does not count")
    arguments = parser.parse_args()
    gpu = torch.cuda.is_available()
    what, cores = ON_GPU if gpu else ON_CPU, len(os.sched_getaffinity(0))
    places = torch.cuda.device_count() if gpu else cores
    rows = []
    for ranks in sorted({1, min(2, places)}):
        scale, threads = f"1x{ranks}", cores // ranks
        # By the name of a loop: options of the plain script, or keys of Trainyard's `train`.
        loops: dict[str, list[str] | dict[str, Any]] = {"plain script": [], "Trainyard": {}}
        if gpu:
            loops |= {"plain script, tuned": TUNED, "Trainyard, compiled": {"compile": True}}
        rates: dict[str, list[float]] = {name: [] for name in loops}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            study = {"dataset": "d", "train": what["train"], "scales": [scale], "cpus_per_gpu": threads}
            common = ["--epochs", str(arguments.epochs), "--threads", str(threads)]
            for turn in range(arguments.turns):
                for who, how in loops.items():
                    keys = how if isinstance(how, dict) else {}
                    study |= {"retrain": turn, "train": what["train"] | {"epochs": arguments.epochs} | keys}
                    config = {"datasets": {"d": what["dataset"]}, "scaling": {"s": study}}
                    (folder / "config.yaml").write_text(yaml.safe_dump(config))
                    run_program(folder, "stage", "--dataset", "d")
                    staged = Staged(folder / "results/data/d")
                    if isinstance(how, dict):
                        rates[who] += ours(folder, scale)[1:]
                    else:
                        rates[who] += plain(staged.folder, ranks, *what["plain"], *common, *how)[1:]
            if gpu:
                write_jpegs(staged, folder / "jpegs")
                options = [*what["plain"], *common, "--imagefolder", "--precision", "fp16"]
                rates["over JPEGs, fp16"] = plain(folder / "jpegs", ranks, *options)[1:]
        base = statistics.median(rates["plain script"])
        for who, each in rates.items():
            rate = statistics.median(each)
            spread = f"{min(each):,.0f} to {max(each):,.0f}"
            rows.append([scale, who, f"{rate:,.0f}", spread, f"{rate / base:.2f}"])
    device = torch.cuda.get_device_name() if gpu else f"{cores} CPU cores"
    print_table([f"ranks ({device})", "loop", "images/s (median)", "range over epochs", "relative"], rows)


if __name__ == "__main__":
    main()
