"""Results of sweeps and scaling studies as a run leaves them, for the pages of the report."""

import json
import os

import pandas as pd
from sweep_journals import write_session
from trainyard.config.load import check_config
from trainyard.config.trials import result_digest
from trainyard.planning.history import read_state
from trainyard.report.study_tables import write_tables
from trainyard.results.ranking import rank_sweep
from trainyard.results.sweep_tables import write_sweep_tables
from trainyard.utils.csv_files import write_table

FAILED = ("failed", {"error": "RuntimeError: <b>bad</b>", "log": "results/sweeps/s/logs/x.txt"})
DIVERGED = ("diverged", {"error": "rmse is nan"})
GRID = {"grid": {"lr": [1, 2, 3, 4]}, "metric": "rmse", "mode": "min"}


def finished(value):
    return ("finished", {"metrics": {"rmse": value}})


def write_results(results, sweep, ends, *, device="cpu", gpu_hour=None, slots=2):
    """The tables of a sweep whose trials ended so, one after another: (event, fields)."""
    config = check_config({"sweeps": {"s": {"function": "os:getcwd", **sweep}}, "pricing": {"gpu_hour": gpu_hour}})
    folder = results / "sweeps/s"
    folder.mkdir(parents=True)
    names, now = list(read_state(config.sweeps["s"], "s", results).trials), 1_800_000_000.0
    lines = [{"event": "session", "time": now, "slots": slots, "gpus": slots, "nodes": 1, "node": "n1", "job": "local",
              "pending": len(names), "predicted_seconds": 20.0}]  # fmt: skip
    for name, (event, fields) in zip(names, ends, strict=False):
        now += 10.0
        where = {"slot": 0, "node": "n1", "gpu": "0", "device": device}
        about = {"trial": name, "attempt": 1}
        lines.append({"event": "started", "time": now, "expected_seconds": 8.0, **where, **about})
        lines.append({"event": event, "time": now + 10.0, "seconds": 9.5, **fields, **about})
    if ends:
        write_session(folder, lines)
    state = read_state(config.sweeps["s"], "s", results)
    write_sweep_tables(state, rank_sweep(state), folder)
    write_tables(config, "sweeps", "s", results)
    return config


def write_scaling_results(results, seconds, **columns):
    """The tables of a scaling study whose repeats took so long, by scale; returns its config."""
    study = {"script": "train.py", "scales": list(seconds), "repeats": max(map(len, seconds.values()))}
    config = check_config({"scaling": {"wide": study}})
    row = {"verdict": "", "speedup": 1.0, "efficiency": 1.0, "images_per_second": 5.0, "gpu_hours": None, **columns}
    medians = [sorted(each)[len(each) // 2] for each in seconds.values()]
    table = pd.DataFrame({"scale": list(seconds), "train_seconds": medians}).assign(**row)
    write_table(table, results / "scaling/wide/scaling.csv")
    for scale, repeats in seconds.items():
        for number, each in enumerate(repeats, start=1):
            run = f"{scale}/repeat-{number}" if number > 1 else scale
            path = results / "scaling/wide" / run / "summary.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            summary = {"train_seconds": each, "sessions": [{"code": f"commit-{scale}"}]}
            summary["spec_digest"] = result_digest(config.scaling["wide"], run, "no dataset")
            path.write_text(json.dumps(summary))
            os.utime(path, (number > 1 and 1_800_000_000,) * 2)
    return config
