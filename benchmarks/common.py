"""Helpers of the benchmarks: a folder with a config, Trainyard's programs, and a table of results."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

TINY = {"source": "synthetic", "images": 32, "val_images": 8, "height": 8, "width": 8}
TRIVIAL = {"model": "cnn", "model_args": {"width": 2}, "batch_size": 32}


def sweep_config(trials: int, *, slots: int = 2) -> dict[str, Any]:
    """The config of a sweep of one-step trials."""
    grid = {"seed": {"start": 1, "stop": trials}}
    sweep = {"dataset": "tiny", "train": TRIVIAL, "grid": grid, "slots": {"gpus_per_node": slots}}
    return {"datasets": {"tiny": TINY}, "sweeps": {"s": sweep}}


@contextmanager
def folder_with(config: dict[str, Any]) -> Iterator[Path]:
    """A temporary folder with the config as config.yaml and its dataset staged."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        run_program(folder, "stage", "--dataset", "tiny")
        yield folder


def run_program(folder: Path, program: str, *options: str) -> float:
    """Run a program of scripts/ on the folder's config; return the time of its start in Unix seconds."""
    command = [sys.executable, str(ROOT / "scripts" / f"{program}.py"), "--config", "config.yaml", *options]
    started = time.time()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return started


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table for benchmarks/README.md."""
    for row in [header, ["---"] * len(header), *rows]:
        print("| " + " | ".join(row) + " |")
