"""Write docs/faults.md from the rows that the tests have measured: python fault_page.py FOLDER PAGE."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from fault_table import SWEEP, TRAINING, TRIALS

HEAD = """\
# The table of faults

A sweep or training runs on the [test cluster](slurm.md#a-cluster-on-one-machine), a fault is injected once a part of it
has finished, and the same command runs again if retries have not recovered. The tests
([fault_table.py](../tests/cluster/fault_table.py)) check that nothing finished is lost or runs twice, that the results
have the bits of an undisturbed run, that the job ends in time and says what failed, and that no process, GPU, port,
lock or file is left (except Ray's folder in `/tmp` on a host that was cut off, until the next job there).

Measured on {day} by `make test-all`, on {cores} cores at a load of {load:.0f}.{busy}
"""
COLUMNS = {
    "fault": "fault",
    "seconds_to_end": "seconds until the job ended",
    "seconds_to_recover": "from there until all was finished",
}
SHOWN_IF_ANY = {"lost": "lost", "repeated": "repeated", "fails": "does not hold"}
TITLES = {
    "Sweep": "## Sweeps\n\nSix trials on two slots; two had finished.",
    "Trial": "## Trials\n\nAll in one sweep; the times are those of the attempt and of the next one.",
    "Training": "## Trainings\n\nThree epochs on a GPU of each of two hosts, each with a checkpoint; one had ended.",
}


def main() -> None:
    """Write the page."""
    folder, page = map(Path, sys.argv[1:])
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    day = time.strftime("%Y-%m-%d", time.gmtime(max(row["time"] for row in rows)))
    load = sum(row["load"] for row in rows) / len(rows)
    cores = os.cpu_count() or 1
    busy = " On a quiet machine, the times are a fraction." if load > 3 * cores else ""
    parts = [HEAD.format(day=day, cores=cores, load=load, busy=busy)]
    for group, title in TITLES.items():
        chosen = sorted((row for row in rows if row["group"] == group), key=lambda row: row["number"])
        if chosen:
            parts.append(f"{title}\n\n{table(chosen)}\n")
    if missing := unmeasured(rows):
        parts.append(f"Not measured in this run: {', '.join(missing)}.\n")
    parts += [soak(row) for row in rows if row["group"] == "Soak"]
    page.write_text("\n".join(parts))


def unmeasured(rows: list[dict[str, Any]]) -> list[str]:
    """The rows of the table without a record."""
    known = {(row["group"], row.get("fault")) for row in rows}
    table = [("Trial", fault.name) for fault in TRIALS]
    table += [(fault.job.__name__, fault.name) for fault in (*SWEEP, *TRAINING)]
    return [f"{group.lower()}: {name}" for group, name in table if (group, name) not in known]


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table; what is lost, repeated or does not hold has a column if there is any."""
    rows = [{**row, "fails": not row["holds"]} for row in rows]
    columns = COLUMNS | {name: title for name, title in SHOWN_IF_ANY.items() if any(row[name] for row in rows)}
    lines = [list(columns.values()), ["---"] + ["---:"] * (len(columns) - 1)]
    lines += [[_text(row[name]) for name in columns] for row in rows]
    found = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*found, *(f"\n{row['fault']}: {row['defect']}" for row in rows if row["defect"])])


def soak(row: dict[str, Any]) -> str:
    """The section about the soak."""
    faults = ", ".join(f"{name} {count}" for name, count in row["faults"].items())
    parts = [
        f"{row['trials']} short trials on eight slots of four hosts, with a random fault every few seconds for",
        f"{row['fault_seconds']:.0f} s (seed {row['seed']}): {faults}. It took {row['seconds']:.0f} s,",
        f"{row['jobs']} jobs, {row['commands']} commands and {row['attempts']} attempts; {row['failed']} failed",
        f"or were interrupted. {row['finished']} trials finished, {row['repeated']} of them more than once.",
    ]
    return "## The soak\n\n" + " ".join(parts) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "**yes**" if value else ""
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
