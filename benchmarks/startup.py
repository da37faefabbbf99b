"""Seconds from the start of the sweep program to the end of the first trial's first step, part by part.

python benchmarks/startup.py [--repeats 5]
"""

import argparse
import statistics
import subprocess
import sys
import time

from common import folder_with, print_table, run_program, sweep_config
from trainyard.utils.jsonl import read_events

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
    "worker processes",
    "import torch",
    "open the data",
    "model, first step",
]


def main() -> None:
    """Run the sweep program on two trivial trials, and compute the parts from its journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    runs = [parts_of_a_start() for _ in range(repeats + 1)][1:]
    medians = [statistics.median(column) for column in zip(*runs, strict=True)]
    total = statistics.median(map(sum, runs))
    plain = statistics.median([seconds_of_plain_ray() for _ in range(repeats)])
    rows = [[part, f"{seconds:.2f}"] for part, seconds in zip(PARTS, medians, strict=True)]
    rows += [
        ["**start to first step**", f"**{total:.2f}**"],
        ["plain Ray to torch imported, no data, no step", f"{plain:.2f}"],
    ]
    print_table(["part", "seconds (median)"], rows)


def parts_of_a_start() -> list[float]:
    """Seconds of each of PARTS, on the slot that was ready first."""
    with folder_with(sweep_config(2)) as folder:
        started = run_program(folder, "sweep", "--sweep", "s")
        events = read_events(folder / "results/sweeps/s/journal.jsonl")
    first = {event["event"]: event for event in reversed(events)}
    ray, slot = first["ray_up"], first["slot_up"]
    inside = slot["import_torch_seconds"] + slot["data_seconds"]
    return [
        first["session"]["time"] - started,
        ray["import_ray_seconds"],
        ray["ray_init_seconds"],
        slot["time"] - ray["time"] - inside,
        slot["import_torch_seconds"],
        slot["data_seconds"],
        first["epoch"]["first_step_time"] - slot["time"],
    ]


def seconds_of_plain_ray() -> float:
    """Seconds of a program that only starts Ray and imports torch on two slots."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", PLAIN_RAY], check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
