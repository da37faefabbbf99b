"""CPU seconds, memory and file sizes of the programs that read the journal of a large sweep.

python benchmarks/large_sweeps.py [--trials 10000 --epochs 10] [--kind train|command] [--dry-run-only]
"""

import argparse
import heapq
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from common import ROOT, TINY, TRIVIAL, print_table, run_program
from trainyard.config.load import read_config
from trainyard.planning.journal_fold import Fold
from trainyard.planning.plan import plan_sweep

SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
SLOTS = 8


def main() -> None:
    """Make the journal of a finished sweep, and measure each program that reads it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--kind", choices=["train", "command"], default="train")
    parser.add_argument("--dry-run-only", action="store_true", help="measure `snakemake -n` only")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="make the sweep in this folder, and keep it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        size = _run_in_process(make_sweep, folder, arguments.trials, arguments.epochs, arguments.kind)
        print(f"{arguments.trials:,} trials ({arguments.kind}) x {arguments.epochs} epochs: {size / 1e6:.0f} MB")
        print_table(
            ["what", "CPU seconds", "MiB", "largest file (MB)"],
            list(measured(folder, dry_run_only=arguments.dry_run_only)),
        )


def make_sweep(folder: Path, trials: int, epochs: int, kind: str) -> int:
    """Write a config and the journal of its sweep as the driver writes it; return the journal's size in bytes."""
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
    journal = folder / "results/sweeps/s/journal.jsonl"
    journal.parent.mkdir(parents=True, exist_ok=True)
    values = {name: trial.values for name, trial in plan.state.trials.items()}
    with open(journal, "w") as file:
        file.writelines(json.dumps(event, separators=(",", ":")) + "\n" for event in _events(values, epochs))
    return journal.stat().st_size


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
    queues = [_of_trials(waiting[slot::SLOTS], slot, began + 5, trials, epochs, generator, failing)
              for slot in range(SLOTS)]  # fmt: skip
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
            yield {"event": "finished", **end, "metrics": row, "heard": ""}


def measured(folder: Path, *, dry_run_only: bool) -> Iterator[list[str]]:
    """Rows of the table."""
    journal = folder / "results/sweeps/s/journal.jsonl"
    for what in ("the fold of the journal, first", "the fold of the journal, again"):
        yield [what, f"{_run_in_process(fold_seconds, journal):.2f}", "", ""]
    journal.with_name(".journal-fold.json").unlink(missing_ok=True)
    (folder / "Empty").write_text("rule all:\n    input: []\n")
    dry_run = [SNAKEMAKE, "-n", "--snakefile", str(ROOT / "Snakefile"), "--profile", str(ROOT / "profiles/local"),
               "--configfile", "config.yaml", "--", "results/sweeps/s/trials.csv"]  # fmt: skip
    yield row_of("`-n` of an empty workflow", [SNAKEMAKE, "-n", "--snakefile", "Empty", "--cores", "1"], folder)
    yield row_of("`-n` of the sweep, first", dry_run, folder)
    yield row_of("`-n` of the sweep, again", dry_run, folder)
    if dry_run_only:
        return
    for program, options in (("status", []), ("sweep", ["--sweep", "s"]),
                             ("tables", ["--kind", "sweeps", "--name", "s"]),
                             ("plots", ["--kind", "sweeps", "--name", "s"])):  # fmt: skip
        command = [sys.executable, str(ROOT / "scripts" / f"{program}.py"), "--config", "config.yaml", *options]
        yield row_of(f"`{program}.py`", command, folder, made=folder / "results/plots" if program == "plots" else None)


def fold_seconds(journal: Path) -> float:
    """CPU seconds of reading a journal."""
    began = time.process_time()
    Fold(journal).update()
    return time.process_time() - began


def _run_in_process(function: Any, *arguments: Any) -> Any:
    """Call a function in another process: memory of this process would be counted for its children, too."""
    with ProcessPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def row_of(what: str, command: list[str], folder: Path, *, made: Path | None = None) -> list[str]:
    """CPU seconds and peak memory of a command and its children."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed:\n{errors}")
    sizes = [path.stat().st_size for path in made.rglob("*.*")] if made else []
    largest = f"{max(sizes) / 1e6:.2f}" if sizes else ""
    return [what, f"{used.ru_utime + used.ru_stime:.2f}", f"{used.ru_maxrss / 1024:.0f}", largest]


if __name__ == "__main__":
    main()
