"""Predicted and measured makespan and walltime of a sweep on the test cluster (as root; 7 minutes).

python benchmarks/predictions.py
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd
from common import ROOT, print_table

sys.path[:0] = [str(ROOT / folder) for folder in ("tools", "tests", "tests/cluster")]


def main() -> None:
    """Run 20 trials that sleep 1 to 20 s, first without and then with evidence, and print the second run."""
    from slurm_cluster.cluster import Cluster
    from submitting import depth_sweep_twice

    with Cluster() as cluster, tempfile.TemporaryDirectory(dir=cluster.shared) as folder:
        _, second = depth_sweep_twice(cluster, Path(folder), seconds_per_block=1 / 4)
        job = pd.read_csv(second / "jobs.csv").iloc[-1]
        strategies = pd.read_csv(second / "strategies.csv").set_index("strategy")
    low, high = job["predicted_low_seconds"], job["predicted_high_seconds"]
    rows = [
        ["predicted makespan", f"{job['predicted_seconds']:.1f} ({low:.1f} to {high:.1f})"],
        ["measured makespan", f"{job['measured_seconds']:.1f}"],
        ["lower bound", f"{strategies.loc['packed', 'makespan_lower_bound_seconds']:.1f}"],
        ["requested walltime", f"{job['requested_seconds']:.0f}"],
        ["used walltime (sacct)", f"{job['elapsed_seconds']:.0f}"],
    ]
    print_table(["second run", "seconds"], rows)
    columns = ["requested_gpu_seconds", "running_gpu_seconds", "wasted_fraction", "startup_gpu_seconds"]
    cells = strategies[columns].map(lambda value: f"{value:.3g}" if value < 1 else f"{value:.0f}")
    print_table(["strategy", *columns], [[name, *row] for name, row in zip(cells.index, cells.values, strict=True)])


if __name__ == "__main__":
    main()
