"""Seconds from the start of the sweep program to the first trial: of trainings, part by part to their first step.

python benchmarks/startup.py [--repeats 5]

Of commands also from the start of a Slurm job, on the four-host Slurm (as root).
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml
from common import ROOT, folder_with, print_table, run_program, sweep_config
from trainyard.planning.journal import journal_files
from trainyard.utils.event_log import read_events

sys.path[:0] = [str(ROOT / "tools")]

from slurm_cluster.cluster import Cluster  # noqa: E402

# The same with an unchanged Ray: start it, then one actor per slot that imports torch.
PLAIN_RAY = """
import ray
ray.init(address="local", num_gpus=2, num_cpus=2, include_dashboard=False)

@ray.remote(num_gpus=1)
class Worker:
    def start(self):
        import torch

ray.get([Worker.remote().start.remote() for _ in range(2)])
"""
PARTS = [
    "Python, config, plan",
    "import ray",
    "ray.init",
    "worker processes, until torch is imported",
    "open the data",
    "model, first step",
]
COMMAND = {"command": "true {seed}", "grid": {"seed": [1, 2]}, "slots": {"gpus_per_node": 2}}


def main() -> None:
    """Run the sweep program on two trivial trials of each kind, and compute the parts from its journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    runs = [parts_of_a_start() for _ in range(repeats + 1)][1:]
    medians = [statistics.median(column) for column in zip(*runs, strict=True)]
    total = statistics.median(map(sum, runs))
    others: dict[str, Callable[[], float]] = {
        "import torch, in a process of its own": partial(seconds_of, "import torch"),
        "**start to a command's first trial**": seconds_to_a_command,
        "plain Ray to torch imported, no data, no step": partial(seconds_of, PLAIN_RAY),
    }
    found = {name: statistics.median(measure() for _ in range(repeats)) for name, measure in others.items()}
    if os.geteuid() == 0:
        with Cluster() as cluster:
            seconds = statistics.median(seconds_in_a_job(cluster) for _ in range(repeats))
            found["**start of a Slurm job to a command's first trial**"] = seconds
    rows = [[part, f"{seconds:.2f}"] for part, seconds in zip(PARTS, medians, strict=True)]
    rows.append(["**start to first step**", f"**{total:.2f}**"])
    rows += [[name, f"{seconds:.2f}"] for name, seconds in found.items()]
    print_table(["part", "seconds (median)"], rows)


def parts_of_a_start() -> list[float]:
    """Seconds of each of PARTS, on the slot that was ready first."""
    with folder_with(sweep_config(2)) as folder:
        started = run_program(folder, "sweep", "--sweep", "s")
        events = read_events(*journal_files(folder / "results/sweeps/s"))
    first = {event["event"]: event for event in reversed(events)}
    ray, slot = first["ray_up"], first["slot_up"]
    return [
        first["session"]["time"] - started - ray["import_ray_seconds"],
        ray["import_ray_seconds"],
        ray["ray_init_seconds"],
        slot["time"] - ray["time"] - slot["data_seconds"],
        slot["data_seconds"],
        first["epoch"]["first_step_time"] - slot["time"],
    ]


def seconds_to_a_command() -> float:
    """Seconds until the first trial of a sweep of commands starts."""
    with folder_with({**sweep_config(2), "sweeps": {"s": COMMAND}}) as folder:
        started = run_program(folder, "sweep", "--sweep", "s")
        return first_trial(folder) - started


def seconds_in_a_job(cluster: Cluster) -> float:
    """The same from the start of a Slurm job of one slot, which creates its log file then."""
    sweep = {**COMMAND, "slots": {"gpus_per_node": 1}}
    command = [f"{ROOT}/.venv/bin/snakemake", "--snakefile", f"{ROOT}/Snakefile", "--profile", f"{ROOT}/profiles/slurm"]
    with tempfile.TemporaryDirectory(dir=cluster.shared) as name:
        (folder := Path(name)).joinpath("config.yaml").write_text(yaml.safe_dump({"sweeps": {"s": sweep}}))
        cluster.run([*command, "--configfile", "config.yaml", "--", "sweeps"], cwd=folder)
        (log,) = folder.glob("results/logs/slurm/**/*.log")
        started = subprocess.run(["stat", "-c", "%.W", log], check=True, capture_output=True, text=True).stdout
        return first_trial(folder) - float(started)


def first_trial(folder: Path) -> float:
    """The time of the start of the first trial in Unix seconds."""
    events = (event for file in journal_files(folder / "results/sweeps/s") for event in read_events(file))
    return min(float(event["time"]) for event in events if event["event"] == "started")


def seconds_of(program: str) -> float:
    """Seconds of a Python program."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
