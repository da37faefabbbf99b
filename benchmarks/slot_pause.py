"""The pause on a slot between two trivial trials, from the end of one in its worker to the start of the next.

python benchmarks/slot_pause.py [--trials 400]
python benchmarks/slot_pause.py --short [--trials 1000]

With `--short`: how long trials of 50 ms take on eight slots.
"""

import argparse
import itertools
from typing import Any

import numpy as np
from common import folder_with, print_table, run_program, sweep_config
from trainyard.planning.attempts import Attempt, Fold

KINDS = {"a training of one step": {}, "a command, `true`": {"command": "true {seed}"},
         "a function that returns": {"function": "trivial:run"}}  # fmt: skip
SHORT = {"a command, `sleep 0.05`": {"command": "SEED={seed} sleep 0.05"},
         "a function that sleeps": {"function": "trivial:wait"}}  # fmt: skip
SHORT_SECONDS = 0.05
FUNCTIONS = """
import time

def run(config, context):
    return {}

def wait(config, context):
    time.sleep(0.05)
"""


def main() -> None:
    """Run sweeps of trivial or short trials of each kind, and compute the columns from their journals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="trials of 50 ms on eight slots")
    parser.add_argument("--trials", type=int, help="default: 400, or 1000 short ones")
    options = parser.parse_args()
    if options.short:
        measure_makespans(options.trials or 1000)
    else:
        measure_pauses(options.trials or 400)


def measure_pauses(trials: int) -> None:
    """Print the pauses between trivial trials on two slots."""
    rows = []
    for name, kind in KINDS.items():
        tries = run_sweep(kind, trials, slots=2)
        pauses = np.array(pauses_of(tries))
        taken = 1000 * float(np.median([each.seconds or 0 for each in tries]))
        p50, p95 = np.percentile(pauses, [50, 95])
        rows.append([name, str(trials), *(f"{value:.1f}" for value in (taken, p50, p95, pauses.max()))])
    print_table(["trial", "trials", "duration p50 (ms)", "pause p50 (ms)", "pause p95 (ms)", "pause max (ms)"], rows)


def measure_makespans(trials: int) -> None:
    """Print how long short trials take on eight slots, compared with their lower bound.

    The second bound counts each slot from its first trial on, since workers start one after another.
    """
    rows = []
    for name, kind in SHORT.items():
        tries = run_sweep(kind, trials, slots=8)
        first, last = min(each.start for each in tries), max(each.end for each in tries)
        starts = [lane[0].start for lane in lanes(tries)]
        bound = trials * SHORT_SECONDS / 8
        late = bound + float(np.mean(starts)) - first
        p50, p95 = np.percentile(pauses_of(tries, seconds=SHORT_SECONDS), [50, 95])
        taken = last - first
        rows.append([name, str(trials), *(f"{value:.2f}" for value in (taken, taken / bound, taken / late, p50, p95))])
    columns = ["makespan (s)", "relative", "relative, slots as they start", "pause p50 (ms)", "pause p95 (ms)"]
    print_table(["trial", "trials", *columns], rows)


def run_sweep(kind: dict[str, Any], trials: int, *, slots: int) -> list[Attempt]:
    """Run a sweep of trials of a kind; returns their attempts from its journal."""
    config = sweep_config(trials, slots=slots)
    if kind:
        config["sweeps"]["s"] = {**kind, "grid": config["sweeps"]["s"]["grid"], "slots": {"gpus_per_node": slots}}
    with folder_with(config) as folder:
        (folder / "trivial.py").write_text(FUNCTIONS)
        run_program(folder, "sweep", "--sweep", "s")
        return list(Fold(folder / "results/sweeps/s").update().attempts.values())


def lanes(tries: list[Attempt]) -> list[list[Attempt]]:
    """The attempts of each slot, in their order."""
    found: dict[int | str, list[Attempt]] = {}
    for each in tries:
        found.setdefault(each.location.slot, []).append(each)
    return list(found.values())


def pauses_of(tries: list[Attempt], *, seconds: float | None = None) -> list[float]:
    """Milliseconds between two ends on a slot, less the duration of the later trial, or less `seconds`.

    The first ten trials of a slot do not count.
    """
    return [
        1000 * (later.end - earlier.end - ((later.seconds or 0.0) if seconds is None else seconds))
        for lane in lanes(tries)
        for earlier, later in itertools.pairwise(lane[10:])
    ]


if __name__ == "__main__":
    main()
