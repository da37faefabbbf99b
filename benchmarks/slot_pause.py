"""The pause on a slot between two trivial trials, from the end of one in its worker to the beginning of the next.

python benchmarks/slot_pause.py [--trials 400]
"""

import argparse
import itertools

import numpy as np
from common import folder_with, print_table, run_program, sweep_config
from trainyard.journal import attempts, read_events


def main() -> None:
    """Run a sweep of trivial trials, and take the pauses from its journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    trials = parser.parse_args().trials
    with folder_with(sweep_config(trials)) as folder:
        run_program(folder, "sweep", "--sweep", "s")
        tries = attempts(read_events(folder / "results/sweeps/s/journal.jsonl"))
    pauses = np.array([pause for slot in (0, 1) for pause in pauses_of([a for a in tries if a.where["slot"] == slot])])
    p50, p95 = np.percentile(pauses, [50, 95])
    print_table(
        ["trials", "slots", "pause p50 (ms)", "pause p95 (ms)", "pause max (ms)"],
        [[str(trials), "2", f"{p50:.1f}", f"{p95:.1f}", f"{pauses.max():.1f}"]],
    )


def pauses_of(tries: list) -> list[float]:
    """Milliseconds between two ends on a slot that were not spent in the later trial; the first ten are left out."""
    return [(later.end - earlier.end - later.seconds) * 1000 for earlier, later in itertools.pairwise(tries[10:])]


if __name__ == "__main__":
    main()
