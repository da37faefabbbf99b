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

Each row is a real run on the [test cluster](slurm.md#a-cluster-on-one-machine): `snakemake --profile profiles/slurm`
starts a small sweep or training, a fault is injected once a part of the work is finished, and the same command runs
again unless the first one has recovered by its retries. [tests/cluster/fault_table.py](../tests/cluster/fault_table.py)
holds the rows. In each of them, the tests check that

- no finished trial or epoch is lost or runs a second time;
- the work is complete at the end, and its results have the same bits as those of an undisturbed run;
- the job ends within the stated time after the fault, and its output names what failed;
- no process, GPU, port, lock or temporary file is left on any host, except for Ray's folder in `/tmp` on a host that
  was cut off: Slurm kills what runs there when it returns, and the next job there removes the folder.

Measured on {day} on a machine with {cores} cores at a load of {load:.0f}, by

<!-- not run: takes 40 minutes -->
```sh
make test-all
```

"to the end" is the time from the fault to the end of the job that it hit, "to recover" the time from there until all
work was finished, with the queue and the start of the next job. Both grow with the load of the machine.{busy}
"""
COLUMNS = {
    "fault": "fault",
    "jobs": "jobs submitted",
    "finished_before": "finished before",
    "lost": "lost",
    "repeated": "repeated",
    "seconds_to_end": "seconds to the end",
    "bound_seconds": "at most",
    "seconds_to_recover": "seconds to recover",
    "holds": "holds",
}
TITLES = {
    "Sweep": "## Sweeps\n\nSix trials on two slots; two of them had finished before the fault.",
    "Trial": "## Trials\n\nAll in one sweep. The times are from the fault to the end of the attempt, and from there to"
    " the end of the next one.",
    "Training": "## Trainings\n\nThree epochs on one GPU of each of two hosts, with a checkpoint after every epoch "
    "(`checkpoint_every_seconds: 0`); one had ended before the fault.",
}


def main() -> None:
    """Write the page."""
    folder, page = map(Path, sys.argv[1:])
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    day = time.strftime("%Y-%m-%d", time.gmtime(max(row["time"] for row in rows)))
    load = sum(row["load"] for row in rows) / len(rows)
    cores = os.cpu_count() or 1
    busy = " It was busy with other work: on a quiet one they are a fraction of these." if load > 3 * cores else ""
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
    """The rows as a Markdown table."""
    lines = [list(COLUMNS.values()), ["---"] + ["---:"] * (len(COLUMNS) - 2) + ["---"]]
    lines += [[_text(row[name]) for name in COLUMNS] for row in rows]
    found = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*found, *(f"\n{row['fault']}: {row['defect']}" for row in rows if row["defect"])])


def soak(row: dict[str, Any]) -> str:
    """The section about the soak."""
    faults = ", ".join(f"{name} {count}" for name, count in row["faults"].items())
    parts = [
        f"{row['trials']} short trials on eight slots of four hosts, with a random fault every few seconds for",
        f"{row['fault_seconds']:.0f} s (seed {row['seed']}): {faults}. It took {row['seconds']:.0f} s in all,",
        f"{row['jobs']} jobs, {row['commands']} commands and {row['attempts']} attempts; {row['failed']} failed",
        f"or were interrupted. {row['finished']} trials finished, {row['repeated']} of them more than once.",
    ]
    return "## The soak\n\n" + " ".join(parts) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
