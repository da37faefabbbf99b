"""The tables of README.md, from the lines of runs.jsonl."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peers.participants import HERE, Peer
from peers.works import GPUS_PER_NODE, HOSTS, Work

PAGE = HERE / "README.md"
RUNS = Sequence[Mapping[str, Any]]
OWN = "trainyard"


@dataclass(frozen=True)
class Column:
    """A column of a work's table; of all of them, less is better."""

    key: str
    title: str
    factor: float = 1.0
    digits: int = 1

    def values(self, runs: RUNS) -> list[float]:
        """Its value in each of the runs that have one."""
        return [self.factor * run[self.key] for run in runs if run.get(self.key) is not None]


COMMON = (
    Column("seconds", "submit to finish (s)"),
    Column("over_seconds", "until all is over (s)"),
    Column("over_bound", "makespan / bound", digits=2),
    Column("gpu_seconds", "GPU-seconds allocated", digits=0),
    Column("idle_fraction", "idle (%)", factor=100, digits=0),
    Column("overhead_p50_seconds", "overhead p50 (ms)", factor=1000, digits=0),
    Column("overhead_p95_seconds", "p95 (ms)", factor=1000, digits=0),
    Column("lines", "lines", digits=0),
)
TROUBLE = (
    Column("seconds", "submit to finish (s)"),
    Column("gpu_seconds", "GPU-seconds allocated", digits=0),
    Column("extra_gpu_seconds", "of these extra", digits=0),
    Column("lost_seconds", "finished work lost (s)"),
    Column("repeated_seconds", "work repeated (s)"),
    Column("person_steps", "commands to resume", digits=0),
    Column("lines", "lines", digits=0),
)
CROWDED = (
    Column("first_seconds", "first trial starts (s)"),
    Column("seconds", "last trial ends (s)"),
    Column("gpu_seconds", "GPU-seconds allocated", digits=0),
    Column("idle_fraction", "idle (%)", factor=100, digits=0),
    Column("lines", "lines", digits=0),
)


def columns_of(work: Work) -> tuple[Column, ...]:
    """The columns of a work's table."""
    return TROUBLE if work.has_trouble else CROWDED if work.is_crowded else COMMON


def runs_of(runs: RUNS, work: Work) -> RUNS:
    """The runs of this work, each with what it needed more than its trials take on GPUs."""
    # Without trouble, a participant that wastes nothing is allocated what its trials take.
    return [
        {**run, "extra_gpu_seconds": run["gpu_seconds"] - sum(work.seconds)}
        for run in runs
        if (run["work"], run["scale"], run["trials"]) == (work.name, work.scale, len(work.seconds))
    ]


def work_table(work: Work, runs: RUNS, peers: Mapping[str, Peer]) -> list[str]:
    """The lines of a work's table: medians and ranges; the best of a column, and those within its range, are bold."""
    columns = columns_of(work)
    done = {peer.name: [run for run in runs if run["peer"] == peer.name] for peer in peers.values()}
    complete = _completed(runs, peers)
    ties = {column.key: within_noise(column, complete) for column in columns}
    rows = [["", *(column.title for column in columns)], ["---"] * (len(columns) + 1)]
    for name, each in done.items():
        if not each:
            continue
        cells = [cell(column, complete[name], is_best=name in ties[column.key]) for column in columns]
        if len(complete[name]) < len(each):
            failed = [run for run in each if run["reason"]]
            which = "" if len(failed) == len(each) else f" ({len(failed)} of {len(each)} runs)"
            reason = failed[-1]["reason"] + which
            cells[0] = reason if not complete[name] else f"{cells[0]}; {reason}"
        rows.append([peers[name].title, *cells])
    return ["| " + " | ".join(row) + " |" for row in rows]


def within_noise(column: Column, runs: Mapping[str, RUNS]) -> set[str]:
    """Who has the smallest median, and whose range reaches into the range of that one."""
    values = {name: column.values(each) for name, each in runs.items()}
    values = {name: each for name, each in values.items() if each}
    if not values:
        return set()
    best = min(values.values(), key=np.median)
    shown = 10**-column.digits / 2  # what a reader sees as equal is equal
    return {name for name, each in values.items() if min(each) <= max(best) + shown}


def cell(column: Column, runs: RUNS, *, is_best: bool, has_range: bool = True) -> str:
    """The median, and the range if there are several values and they differ."""
    values = column.values(runs)
    if not values:
        return ""
    median, low, high = (f"{value:.{column.digits}f}" for value in (np.median(values), min(values), max(values)))
    text = f"**{median}**" if is_best else median
    return f"{text} ({low} to {high})" if has_range and low != high else text


def not_first(work: Work, runs: RUNS, peers: Mapping[str, Peer]) -> list[str]:
    """Where Trainyard is neither first nor within noise, and who is first; with the cause that its peer.py names."""
    complete = _completed(runs, peers)
    own = complete[OWN]
    if not own:
        return []
    by_cause: dict[str, list[str]] = {}
    for column in columns_of(work):
        if not column.values(own) or OWN in within_noise(column, complete):
            continue
        medians = {name: np.median(values) for name, each in complete.items() if (values := column.values(each))}
        best = min(medians, key=lambda name: medians[name])
        cause = peers[OWN].causes.get(column.key, "not known yet")
        by_cause.setdefault(cause, []).append(f"{column.title} ({peers[best].title} is first)")
    lines = [f"- {'; '.join(behind)}. Cause: {cause}." for cause, behind in by_cause.items()]
    return lines and ["Trainyard is neither first nor within noise here:", "", *lines]


def participants_table(peers: Mapping[str, Peer], versions: Mapping[str, str]) -> list[str]:
    """The lines of the table of participants."""
    lines = ["| participant | version | files | followed | settings, and what it does not do |", "| --- " * 5 + "|"]
    for peer in peers.values():
        folder = peer.folder or peer.name
        pages = ", ".join(f"[{number}]({page})" for number, page in enumerate(peer.documentation, start=1))
        reasons: dict[str, list[str]] = {}
        for work, reason in peer.cannot.items():
            reasons.setdefault(reason, []).append(work)
        cannot = "".join(f" Not done: {', '.join(works)} ({reason})." for reason, works in reasons.items())
        version = versions.get(peer.name, "not measured yet")
        lines.append(f"| {peer.title} | {version} | [{folder}/]({folder}) | {pages} | {peer.note}{cannot} |")
    return lines


def results(works: Mapping[str, Work], runs: RUNS, peers: Mapping[str, Peer]) -> list[str]:
    """The section with the results of all works that were run."""
    lines = []
    for work in works.values():
        found = runs_of(runs, work)
        if not found:
            continue
        repeats = len({run["repeat"] for run in found})
        lines += [f"### {work.title}", "", described(work, repeats), "", *work_table(work, found, peers), ""]
        if remarks := not_first(work, found, peers):
            lines += [*remarks, ""]
    return lines[:-1]


def summary(works: Mapping[str, Work], runs: RUNS, peers: Mapping[str, Peer]) -> list[str]:
    """The table of all works: seconds from the submission to the end of the last trial, in all works."""
    column = COMMON[0]
    shown = {work.title: found for work in works.values() if (found := runs_of(runs, work))}
    complete = {title: _completed(found, peers) for title, found in shown.items()}
    ties = {title: within_noise(column, found) for title, found in complete.items()}
    rows = [["", *shown], ["---"] * (len(shown) + 1)]
    for name, peer in peers.items():
        cells = []
        for title, found in shown.items():
            text = cell(column, complete[title][name], is_best=name in ties[title], has_range=False)
            was_run = any(run["peer"] == name for run in found)
            cells.append("not finished" if was_run and not text else text)
        if any(cells):
            rows.append([peer.title, *cells])
    return ["| " + " | ".join(row) + " |" for row in rows]


def _completed(runs: RUNS, peers: Mapping[str, Peer]) -> dict[str, RUNS]:
    """The completed runs of each participant."""
    return {name: [run for run in runs if run["peer"] == name and not run["reason"]] for name in peers}


def described(work: Work, repeats: int) -> str:
    """What the work is, in one sentence or two."""
    trials, longest = len(work.seconds), max(work.seconds)
    where = f"{work.nodes} nodes with {GPUS_PER_NODE} GPUs each"
    runs = f"{repeats} {'run' if repeats == 1 else 'runs'} of each"
    if work.is_real:
        return (
            f"{trials} trainings of ResNets of 1 to {longest:.0f} blocks, with imports and data, on {where}; {runs}. "
            "All hosts share the two cores of one machine: this work is bound by its CPUs, not by the schedulers."
        )
    total = f"{trials} trials of {min(work.seconds):.3g} to {longest:.3g} s ({sum(work.seconds):.1f} s together)"
    if work.name == "short":
        total = f"{trials} trials of {1000 * longest:.0f} ms"
    if work.is_crowded:
        return (
            f"{total} on {HOSTS} nodes with {GPUS_PER_NODE} GPUs each, of which one is taken by a job of others that "
            f"ends at a random time; {runs}."
        )
    extra = ""
    if work.has_trouble:
        extra = " The longest trial crashes once; at half of the bound everything is killed, then resumed."
    return f"{total} on {where}; bound {work.bound_seconds:.1f} s; {runs}.{extra}"


def write_page(sections: Mapping[str, Sequence[str]], page: Path = PAGE) -> None:
    """Replace what is between `<!-- NAME -->` and `<!-- end of NAME -->`."""
    text = page.read_text()
    for name, lines in sections.items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->\n")
        text = before + start + "\n" + "\n".join(lines) + "\n\n" + end + after
    page.write_text(text)
