"""How time, memory and files grow with the trials of a sweep: each stage with 1,000 and 10,000 trials.

python benchmarks/scale.py [--trials 1000 10000] [--epochs 10] [--kind train|command] [--only NAME ...]

The growth of a stage is the exponent e of time ~ trials**e between the two largest sweeps; 1 is linear. The time is
that of the whole program, with its imports.
"""

import argparse
import heapq
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from common import ROOT, TINY, TRIVIAL, print_result, print_table, run_program
from trainyard.config.load import read_config
from trainyard.config.trial_status import TrialStatus
from trainyard.planning.attempts import Fold
from trainyard.planning.journal import Ended, Epoch, Journal
from trainyard.planning.plan import plan_sweep

SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
SLOTS = 8
STUDY = ["--kind", "sweeps", "--name", "s"]
PROGRAMS = {  # of a finished sweep, in Snakemake's order: options, and what they write
    "status": ([], ""),
    "sweep": (["--sweep", "s"], "sweeps/s/*.csv"),
    "tables": (STUDY, "tables/sweeps/*.html"),
    "plots": (STUDY, "plots/**/*.*"),
    "overview": ([], "overview.html"),
    "event_files": (STUDY, "tensorboard/**/*tfevents*"),
}


@dataclass(frozen=True)
class Measured:
    """A stage with a sweep of one size."""

    seconds: float  # of CPU time
    mib: float | None = None  # peak memory of the largest process
    largest_mb: float | None = None  # the largest file that it has written


def main() -> None:
    """Measure all stages with sweeps of all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--kind", choices=["train", "command"], default="train")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(PROGRAMS),
        default=list(PROGRAMS),
        help="programs that read the finished sweep (default: all)",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the sweeps in this folder, and keep them")
    arguments = parser.parse_args()
    found: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for trials in sorted(arguments.trials):
            folder = (arguments.keep or Path(temporary)) / f"{arguments.kind}-{trials}"
            for stage, measured in stages(folder, trials, arguments.epochs, arguments.kind, arguments.only):
                found.setdefault(stage, []).append(measured)
                print(f"{trials:,} trials, {stage}: {measured}", file=sys.stderr)
        print_journal_rates(Path(temporary))
    sizes = [f"{trials:,}" for trials in sorted(arguments.trials)]
    header = ["stage", *(f"{size}: CPU s" for size in sizes), "growth", *(f"{size}: MiB" for size in sizes),
              f"largest file of {sizes[-1]} (MB)"]  # fmt: skip
    rows = [row_of(stage, sorted(arguments.trials), measured) for stage, measured in found.items()]
    print_table(header, rows)


def row_of(stage: str, trials: list[int], measured: list[Measured]) -> list[str]:
    """A row of the table."""
    growth = ""
    if len(trials) > 1 and measured[-2].seconds:
        growth = f"{math.log(measured[-1].seconds / measured[-2].seconds) / math.log(trials[-1] / trials[-2]):.2f}"
    memory = ["" if each.mib is None else f"{each.mib:,.0f}" for each in measured]
    largest = measured[-1].largest_mb
    return [stage, *(f"{each.seconds:.2f}" for each in measured), growth, *memory,
            "" if largest is None else f"{largest:.2f}"]  # fmt: skip


def stages(folder: Path, trials: int, epochs: int, kind: str, programs: list[str]) -> Iterator[tuple[str, Measured]]:
    """Measure each stage of a sweep, before it has begun, when half of its events are recorded, and at its end."""
    journal = _run_in_process(make_sweep, folder, trials, epochs, kind)
    (folder / "Empty").write_text("rule all:\n    input: []\n")
    dry_run = [SNAKEMAKE, "-n", "--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles/local"),
               "--configfile", "config.yaml", "--", "results/sweeps/s/trials.csv"]  # fmt: skip
    yield (
        "`-n` of an empty workflow",
        measure([SNAKEMAKE, "-n", "--snakefile", "Empty", "--cores", "1"], folder),
    )
    yield "`-n`, nothing has run", measure(dry_run, folder)
    whole = journal.rename(journal.with_suffix(".whole"))
    _run_in_process(copy_lines, whole, journal, 0.5)
    yield "`-n`, half has run", measure(dry_run, folder)
    yield "`status.py`, half has run", measure(program_of("status"), folder)
    _run_in_process(copy_lines, whole, journal, 1.0)
    yield "fold of the journal", _run_in_process(fold_seconds, journal)
    yield "`-n`, all has run", measure(dry_run, folder)
    for program in programs:
        options, made = PROGRAMS[program]
        yield f"`{program}.py`", measure(program_of(program, *options), folder, made=made)


def program_of(name: str, *options: str) -> list[str]:
    """The command line of one of Trainyard's programs."""
    return [sys.executable, str(ROOT / "scripts" / f"{name}.py"), "--config", "config.yaml", *options]


def make_sweep(folder: Path, trials: int, epochs: int, kind: str) -> Path:
    """Write a config and the journal of its sweep as the driver writes it; return the journal."""
    folder.mkdir(parents=True, exist_ok=True)
    lr = [round(0.001 * 1.07**index, 6) for index in range(100)]
    grid: dict[str, Any] = {"lr": lr, "seed": {"start": 1, "stop": trials // len(lr)}}
    sweep: dict[str, Any] = {"grid": grid, "slots": {"gpus_per_node": SLOTS}}
    if kind == "train":
        sweep |= {"dataset": "tiny", "train": {**TRIVIAL, "epochs": epochs}}
    else:
        sweep["command"] = "true {lr} {seed}"
    (folder / "config.yaml").write_text(yaml.safe_dump({"datasets": {"tiny": TINY}, "sweeps": {"s": sweep}}))
    if kind == "train":
        run_program(folder, "stage", "--dataset", "tiny")
    plan = plan_sweep(read_config(folder / "config.yaml"), "s", folder / "results")
    journal = folder / "results/sweeps/s/sessions/0-local.0-0.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    values = {name: trial.values for name, trial in plan.state.trials.items()}
    with open(journal, "w") as file:
        file.writelines(json.dumps(event, separators=(",", ":")) + "\n" for event in _events(values, epochs))
    return journal


def _events(trials: dict[str, dict[str, Any]], epochs: int) -> Iterator[dict[str, Any]]:
    """The events of a sweep on eight slots, in which one trial in 97 fails once, in the order of their times."""
    generator = random.Random(0)
    began = 1.8e9
    yield {"event": "session", "time": began, "job": "local", "node": "n1", "process": 1, "slots": SLOTS, "nodes": 1,
           "gpus": SLOTS, "gpus_per_trial": 1.0, "walltime_seconds": None, "lead_seconds": None,
           "pending": len(trials), "predicted_seconds": None}  # fmt: skip
    waiting = [(name, 1) for name in trials]
    waiting += [(name, 2) for name in list(trials)[::97]]
    failing = set(list(trials)[::97])
    queues = [
        _of_trials(waiting[slot::SLOTS], slot, began + 5, trials, epochs, generator, failing) for slot in range(SLOTS)
    ]
    yield from heapq.merge(*queues, key=lambda event: event["time"])


def _of_trials(
    mine: list[tuple[str, int]],
    slot: int,
    now: float,
    trials: dict[str, dict[str, Any]],
    epochs: int,
    generator: random.Random,
    failing: set[str],
) -> Iterator[dict[str, Any]]:
    for name, attempt in mine:
        about = {"trial": name, "attempt": attempt}
        yield {"event": "started", "time": round(now, 4), **about, "generation": 0, "values": trials[name],
               "gpus_per_trial": 1.0, "job": "local", "node": "n1", "gpu": str(slot), "slot": slot, "gpu_model": "",
               "device": "cpu", "expected_seconds": round(generator.uniform(8, 12), 4)}  # fmt: skip
        start, row = now, dict[str, float]()
        for epoch in range(1, epochs + 1):
            now += generator.uniform(0.8, 1.2)
            loss = 2.3 * epoch**-0.5 * generator.uniform(0.9, 1.1)
            row = {"epoch": epoch, "lr": trials[name]["lr"], "train_loss": loss, "train_accuracy": 1 - loss / 2.6,
                   "val_loss": loss * 1.05, "val_accuracy": 1 - loss / 2.5, "images_per_second": 1e4 / loss,
                   "seconds": 1 / loss, "step_ms_p50": loss, "step_ms_p95": 2 * loss,
                   "data_wait_fraction": 0.01}  # fmt: skip
            yield {"event": "epoch", "time": round(now, 4), **about, "metrics": row}
        now += 0.004
        end = {"time": round(now, 4), **about, "seconds": round(now - start, 4), "precision": "fp32"}
        if name in failing and attempt == 1:
            yield {"event": "failed", **end, "error": "boom", "log": "results/logs/x.log", "retried": True}
        else:
            yield {"event": "finished", **end, "metrics": row, "metrics_digest": ""}


def copy_lines(source: Path, target: Path, share: float) -> None:
    """Append a share of a file's lines to another one, without those that it has already."""
    done = target.stat().st_size if target.exists() else 0
    with open(source, "rb") as old, open(target, "ab") as new:
        left = math.ceil(share * source.stat().st_size) - done
        old.seek(done)
        new.write(old.read(left) + old.readline() * (share < 1))


def fold_seconds(journal: Path) -> Measured:
    """CPU seconds of reading a journal."""
    began = time.process_time()
    Fold(journal.parent.parent).update()
    return Measured(time.process_time() - began)


def print_journal_rates(folder: Path, *, epochs: int = 50_000, ends: int = 1_000) -> None:
    """Print how many events per second the driver records: rows of metrics, and ends of trials, which it syncs."""
    row = {"epoch": 1, "lr": 0.1, "train_loss": 0.123456789, "val_loss": 0.123456789, "val_accuracy": 0.987654321}
    with Journal.of_new_session(folder) as journal:
        for what, count, event in (
            ("epochs", epochs, Epoch(trial="t", attempt=1, metrics=row)),
            ("ends of trials, durable", ends, Ended(trial="t", attempt=1, status=TrialStatus.FINISHED, metrics=row)),
        ):
            began, cpu = time.perf_counter(), time.process_time()
            for _ in range(count):
                journal.record(event)
            seconds, used = time.perf_counter() - began, time.process_time() - cpu
            rate, each = count / seconds, 1e6 * used / count
            print_result(f"journal, {what}: {rate:,.0f} events/s, {each:.0f} us of CPU time each")


def _run_in_process(function: Any, *arguments: Any) -> Any:
    """Call a function in another process: memory of this process would be counted for its children, too."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def measure(command: list[str], folder: Path, *, made: str = "") -> Measured:
    """CPU seconds and peak memory of a command and its children, and the size of the files that it made."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed:\n{errors}")
    sizes = [path.stat().st_size / 1e6 for path in (folder / "results").glob(made)] if made else []
    return Measured(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, max(sizes, default=None))


if __name__ == "__main__":
    main()
