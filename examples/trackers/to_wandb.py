"""Copies a sweep to W&B, after it has run: python examples/trackers/to_wandb.py results/sweeps/depth"""

import sys
from pathlib import Path

import wandb
from runs import read_runs

for trial, settings, epochs in read_runs(sys.argv[1]):
    if not list(Path("wandb").glob(f"*run-*-{trial}")):
        with wandb.init(project="mine", id=trial, name=trial, config=settings) as run:
            for number, metrics in epochs:
                run.log(metrics, step=number)
