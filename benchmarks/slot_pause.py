"""The pause on a slot between two trivial trials, from the end of one in its worker to the start of the next.

python benchmarks/slot_pause.py [--trials 400]
"""

import argparse
import itertools

import numpy as np
from common import folder_with, print_table, run_program, sweep_config
from trainyard.planning.attempts import Attempt, fold_attempts
from trainyard.planning.journal import read_journal

KINDS = {"a training of one step": {}, "a command, `true`": {"command": "true {seed}"},
         "a function that returns": {"function": "trivial:run"}}  # fmt: skip


def main() -> None:
    """Run a sweep of trivial trials of each kind, and compute the pauses from its journal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    trials = parser.parse_args().trials
    rows = []
    for name, kind in KINDS.items():
        config = sweep_config(trials)
        if kind:
            config["sweeps"]["s"] = {**kind, "grid": config["sweeps"]["s"]["grid"], "slots": {"gpus_per_node": 2}}
        with folder_with(config) as folder:
            (folder / "trivial.py").write_text("def run(config, context): return {}\n")
            run_program(folder, "sweep", "--sweep", "s")
            tries = fold_attempts(read_journal(folder / "results/sweeps/s/journal.jsonl"))
        slots = [[each for each in tries if each.location.slot == slot] for slot in (0, 1)]
        pauses = np.array([pause for each in slots for pause in pauses_of(each)])
        taken = 1000 * float(np.median([each.seconds or 0 for each in tries]))
        p50, p95 = np.percentile(pauses, [50, 95])
        rows.append([name, str(trials), *(f"{value:.1f}" for value in (taken, p50, p95, pauses.max()))])
    print_table(["trial", "trials", "duration p50 (ms)", "pause p50 (ms)", "pause p95 (ms)", "pause max (ms)"], rows)


def pauses_of(tries: list[Attempt]) -> list[float]:
    """Milliseconds between two ends on a slot, less the duration of the later trial; without the first ten trials."""
    return [
        (later.end - earlier.end - (later.seconds or 0)) * 1000 for earlier, later in itertools.pairwise(tries[10:])
    ]


if __name__ == "__main__":
    main()
