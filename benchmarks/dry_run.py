"""Seconds of `snakemake -n` for sweeps of 20, 1,000 and 10,000 trials, compared with an empty workflow.

python benchmarks/dry_run.py [--repeats 5]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import ROOT, folder_with, print_table, sweep_config
from trainyard.config.load import check_config
from trainyard.planning.plan import plan_sweep

SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))


def main() -> None:
    """Time dry runs of an empty workflow, of new sweeps, and of sweeps with half of the trials finished."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    rows = []
    with folder_with(sweep_config(20)) as folder:
        (folder / "Empty").write_text("rule all:\n    input: []\n")
        empty = seconds_of([SNAKEMAKE, "-n", "--snakefile", "Empty", "--cores", "1"], folder, repeats)
    rows.append(["empty workflow", f"{empty:.2f}", "1.00", ""])
    for trials in (20, 1000, 10000):
        with folder_with(sweep_config(trials)) as folder:
            command = [
                SNAKEMAKE,
                "-n",
                "--snakefile",
                str(ROOT / "Snakefile"),
                "--profile",
                str(ROOT / "profiles/local"),
            ]
            command += ["--configfile", "config.yaml", "--", "sweeps"]
            fresh = seconds_of(command, folder, repeats)
            finish_half(folder)
            half = seconds_of(command, folder, repeats)
            rows.append(
                [f"{trials:,} trials", f"{fresh:.2f}", f"{fresh / empty:.2f}", f"{half:.2f} ({half / empty:.2f})"]
            )
    print_table(
        ["`snakemake -n`", "seconds", "relative to the empty one", "half of the trials finished: seconds (relative)"],
        rows,
    )


def seconds_of(command: list[str], folder: Path, repeats: int) -> float:
    """Median wall-clock seconds of a command, after one warm-up run."""
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def finish_half(folder: Path) -> None:
    """Write a journal in which every other trial has finished after two epochs."""
    import yaml

    config = check_config(yaml.safe_load((folder / "config.yaml").read_text()))
    plan = plan_sweep(config, "s", folder / "results")
    journal = folder / "results/sweeps/s/sessions/0-local.0-0.jsonl"
    journal.parent.mkdir(parents=True)
    with open(journal, "w") as file:
        for number, name in enumerate(list(plan.state.trials)[::2]):
            about = {"trial": name, "attempt": 1, "time": 1.7e9 + number}
            metrics = {"epoch": 1, "train_loss": 0.123456789, "val_loss": 0.123456789, "val_accuracy": 0.987654321}
            for event in ("started", "epoch", "epoch", "finished"):
                file.write(
                    json.dumps({"event": event, **about, "metrics": metrics, "seconds": 1.0 + number / 1e4}) + "\n"
                )


if __name__ == "__main__":
    main()
