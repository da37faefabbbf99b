"""Seconds from the start of the sweep program to the first trial: of trainings, part by part to their first step.

python benchmarks/startup.py [--repeats 5] [--cpu]

Of commands also from the start of a Slurm job, on the four-host Slurm (as root). With `--cpu`, it measures the CPU
seconds of all processes instead, on which other programs on the machine have little influence.
"""

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
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
COMMAND = {"command": "sleep 1; true {seed}", "grid": {"seed": [1, 2]}, "slots": {"gpus_per_node": 2}}
MARK = "TRAINYARD_BENCHMARK"  # a variable of all processes of a run


def main() -> None:
    """Run the sweep program on two trivial trials of each kind, and compute the parts from its journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    repeats = arguments.repeats
    if arguments.cpu:
        print_cpu_seconds(repeats)
        return
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


def print_cpu_seconds(repeats: int) -> None:
    """CPU seconds from each start to the first trial, or to the end of the first epoch of a training, of one step."""
    measures = {"start to first step": partial(cpu_seconds_of, sweep_config(1, slots=1), "epoch")}
    command = {**sweep_config(1), "sweeps": {"s": one_command()}}
    measures["start to a command's first trial"] = partial(cpu_seconds_of, command, "started")
    found = {name: statistics.median(measure() for _ in range(repeats)) for name, measure in measures.items()}
    if os.geteuid() == 0:
        with Cluster() as cluster:
            seconds = statistics.median(cpu_seconds_in_a_job(cluster) for _ in range(repeats))
            found["start of a Slurm job to a command's first trial"] = seconds
    print_table(["from", "CPU seconds (median)"], [[name, f"{seconds:.2f}"] for name, seconds in found.items()])


def cpu_seconds_of(config: dict[str, Any], event: str) -> float:
    """CPU seconds of the sweep program, and of what it starts, until an event."""
    with folder_with(config) as folder:
        return cpu_seconds_until(event, folder, partial(run_program, folder, "sweep", "--sweep", "s"), "PATH")


def cpu_seconds_in_a_job(cluster: Cluster) -> float:
    """CPU seconds of a Slurm job until the first trial starts."""
    with tempfile.TemporaryDirectory(dir=cluster.shared) as name:
        return cpu_seconds_until("started", Path(name), partial(run_in_a_job, cluster, Path(name)), "SLURM_JOB_ID")


def cpu_seconds_until(event: str, folder: Path, run: Callable[[], object], variable: str) -> float:
    """CPU seconds of the processes of `run` that have a variable, and of those that have ended, until an event."""
    mark = os.environ[MARK] = secrets.token_hex(8)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        while not running.done() and all(each["event"] != event for each in events_in(folder)):
            time.sleep(0.01)
        spent = 0.0
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                environment = process.environ()
                if environment.get(MARK) == mark and variable in environment:
                    spent += sum(process.cpu_times()[:4])
        running.result()
    return spent


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
    with tempfile.TemporaryDirectory(dir=cluster.shared) as name:
        run_in_a_job(cluster, folder := Path(name))
        (log,) = folder.glob("results/logs/slurm/**/*.log")
        started = subprocess.run(["stat", "-c", "%.W", log], check=True, capture_output=True, text=True).stdout
        return first_trial(folder) - float(started)


def run_in_a_job(cluster: Cluster, folder: Path) -> None:
    """Run a sweep of two commands in a Slurm job of one slot."""
    command = [f"{ROOT}/.venv/bin/snakemake", "--snakefile", f"{ROOT}/Snakefile", "--profile", f"{ROOT}/profiles/slurm"]
    (folder / "config.yaml").write_text(yaml.safe_dump({"sweeps": {"s": one_command()}}))
    cluster.run(
        [*command, "--configfile", "config.yaml", "--", "sweeps"], cwd=folder, env={MARK: os.environ.get(MARK, "")}
    )


def one_command() -> dict[str, Any]:
    """A sweep of commands, one after another."""
    return {**COMMAND, "slots": {"gpus_per_node": 1}}


def first_trial(folder: Path) -> float:
    """The time of the start of the first trial in Unix seconds."""
    return min(float(event["time"]) for event in events_in(folder) if event["event"] == "started")


def events_in(folder: Path) -> list[dict[str, Any]]:
    """The events of a sweep so far."""
    return [event for file in journal_files(folder / "results/sweeps/s") for event in read_events(file)]


def seconds_of(program: str) -> float:
    """Seconds of a Python program."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
