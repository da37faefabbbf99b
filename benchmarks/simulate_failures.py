"""Simulated: 10,000 trials on 512 GPUs that fail as often as published, by Trainyard and as a job array.

python benchmarks/simulate_failures.py [--trials 10000] [--nodes 64] [--seeds 3] [--only REGEX]

Time, nodes, GPUs, Ray and the trials are simulated (tools/simulated_cluster); the driver of a sweep runs as it is, with
its plan, loop, queue, failure policy, time limits and journal. The order of trials, walltimes, retries, retired slots
and consecutive jobs are its own decisions. Each row is the mean over some seeds.

One driver has all nodes, and the GPUs of a failed node stay idle until its job ends. Trainyard itself submits a job for
each node: a failed node ends its own job, and the next one has a healthy node.

Published rates of failures:

- Llama 3: 419 unexpected interruptions in 54 days on 16,384 GPUs (The Llama 3 Herd of Models, 2024, table 5), which are
  3.79 per 1,000 node-days; 148 faulty GPUs, 72 HBM3, 19 SRAM and 17 system processors are failures of a single GPU.
- RSC-1 and RSC-2: 6.50 and 2.34 failures per 1,000 node-days (Kokolis et al., Revisiting Reliability in Large-Scale
  Machine Learning Research Clusters, HPCA 2025). The share of single GPUs is taken from Llama 3.
"""

import argparse
import os
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from common import ROOT, print_table

sys.path[:0] = [str(ROOT / "tools")]

from simulated_cluster.cluster import Conditions  # noqa: E402
from simulated_cluster.job_array import run_array  # noqa: E402
from simulated_cluster.sweep import Outcome, Work, run_sweep  # noqa: E402

LLAMA_3 = 419 / (54 * 16_384 / 8)  # failures per node-day
RSC_1, RSC_2 = 6.50e-3, 2.34e-3
GPU_SHARE = (148 + 72 + 19 + 17) / 419  # of the failures


@dataclass(frozen=True)
class Scenario:
    """A row of the table."""

    rate: str
    runs: str
    failures_per_node_day: float
    run: Callable[..., Outcome]
    options: dict[str, Any] = field(default_factory=dict)  # of `run`
    conditions: dict[str, Any] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)

    def outcome(self, work: Work, conditions: Conditions, seed: int) -> Outcome:
        """The outcome with one seed."""
        work = replace(work, **self.work)
        conditions = replace(conditions, failures_per_node_day=self.failures_per_node_day, **self.conditions)
        return self.run(work, conditions, seed=seed, **self.options)


def scenarios() -> list[Scenario]:
    """The rows of the table."""
    packed, array, ten = "Trainyard", "job array", "10 x RSC-1"
    without = {"conditions": {"checkpoint_seconds": None}}
    unknown = {"work": {"known": 0.0, "noise": 1.0}}
    rates = {"none": 0.0, "RSC-2": RSC_2, "Llama 3": LLAMA_3, "RSC-1": RSC_1, ten: 10 * RSC_1}
    rows = [Scenario(name, packed, rate, run_sweep) for name, rate in rates.items()]
    for name in ("RSC-1", ten):
        rate = rates[name]
        rows += [
            Scenario(name, f"{packed}, no retries", rate, run_sweep, {"retries": 0}),
            Scenario(name, f"{packed}, no checkpoints", rate, run_sweep, **without),
            Scenario(name, f"{packed}, nothing predicts durations", rate, run_sweep, **unknown),
            Scenario(name, array, rate, run_array),
            Scenario(name, f"{array}, no checkpoints", rate, run_array, **without),
        ]
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=64, help="of eight GPUs each (default: 64)")
    parser.add_argument("--seeds", type=int, default=3, help="simulated sweeps per row (default: 3)")
    parser.add_argument("--only", default="", metavar="REGEX", help="only rows that match, as in '^RSC-1: Trainyard$'")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per CPU core)")
    arguments = parser.parse_args()
    work, conditions = Work(trials=arguments.trials), Conditions(nodes=arguments.nodes, gpu_share=GPU_SHARE)
    rows = [row for row in scenarios() if re.search(arguments.only, f"{row.rate}: {row.runs}")]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        outcomes = [
            [pool.submit(partial(row.outcome, work, conditions), seed) for seed in range(arguments.seeds)]
            for row in rows
        ]
        cells = []
        for row, own in zip(rows, outcomes, strict=True):
            cells.append([row.rate, row.runs, *summarize([each.result() for each in own])])
            print(*cells[-1], sep=" | ", file=sys.stderr, flush=True)  # all rows may take an hour
    print_table(
        [
            "failures",
            "simulated",
            "nodes, GPUs failed",
            "jobs",
            "over the bound",
            "GPU-hours",
            "idle",
            "lost GPU-hours",
            "slots retired",
            "trials submitted again by hand",
        ],
        cells,
    )


def summarize(outcomes: Sequence[Outcome]) -> list[str]:
    """The cells of a row: means over the seeds."""

    def mean(value: Callable[[Outcome], float]) -> float:
        return statistics.mean(map(value, outcomes))

    return [
        f"{mean(lambda each: each.account.node_failures):.1f}, {mean(lambda each: each.account.gpu_failures):.1f}",
        f"{mean(lambda each: each.jobs):,.1f}",
        f"{mean(lambda each: each.seconds / each.bound):.3f}",
        f"{mean(lambda each: each.gpu_seconds) / 3600:,.0f}",
        f"{mean(lambda each: each.idle_fraction):.1%}",
        f"{mean(lambda each: each.lost) / 3600:,.0f}",
        f"{mean(lambda each: each.slots_retired):.1f}",
        f"{mean(lambda each: each.by_hand):,.1f}",
    ]


if __name__ == "__main__":
    main()
