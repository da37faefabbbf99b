"""The trials of a sweep from its tables, without a package."""

import csv
from pathlib import Path


def read_runs(sweep):
    """The identity of each trial, its settings, and its epochs as (number, metrics)."""
    epochs_of = {}
    with open(Path(sweep, "epochs.csv")) as epochs:
        for row in csv.DictReader(epochs):
            epochs_of.setdefault(row["trial"], []).append(row)
    with open(Path(sweep, "trials.csv")) as trials:
        for trial in csv.DictReader(trials):
            varied = list(trial)[1 : list(trial).index("status")]
            others = {"trial", "epoch", *varied}
            epochs = []
            for row in epochs_of.get(trial["trial"], []):
                metrics = {name: float(text) for name, text in row.items() if name not in others and text}
                epochs.append((int(row["epoch"]), metrics))
            yield trial["trial"], {key: trial[key] for key in varied}, epochs
