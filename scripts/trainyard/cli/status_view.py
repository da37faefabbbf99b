"""The progress of all sweeps and scaling studies, as `trainyard status` shows it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from trainyard.cli.progress import SweepProgress, read_progress, study_counts
from trainyard.cluster.slurm_queries import UserJob, describe_jobs
from trainyard.config.config import Config
from trainyard.packing.live_table import slot_table
from trainyard.planning.attempts import Fold
from trainyard.planning.history import History
from trainyard.results.comparability import describe_finished_work
from trainyard.results.ranking import describe_ranking, rank_sweep
from trainyard.utils.terminal import Column, TerminalTable
from trainyard.utils.text import count_of, format_time

SWEEP_COLUMNS = (
    Column("sweep", is_cut=True),
    Column("finished"),
    Column("stopped", rank=6),
    Column("diverged", rank=5),
    Column("running", rank=1),
    Column("failed", rank=2),
    Column("pending", rank=3),
    Column("of"),
    Column("predicted time left", rank=4),
)
STUDY_COLUMNS = (Column("scaling study", is_cut=True), Column("trained"), Column("of"))


def status_view(
    config: Config,
    results: Path,
    folds: Mapping[str, Fold],
    *,
    jobs: Sequence[UserJob] = (),
    height: int | None = None,
) -> RenderableType:
    """The progress of all sweeps and studies, in `height` lines; only new events of the journals are read.

    `jobs` are those in Slurm's queue.
    """
    sweeps = [read_progress(config, name, results, fold) for name, fold in folds.items()]
    running = [sweep for sweep in sweeps if sweep.attempts]
    blocks: list[list[RenderableType]] = []
    if sweeps:
        blocks.append([TerminalTable(SWEEP_COLUMNS, list(map(_row, sweeps)))])
    states = [sweep.plan.state for sweep in sweeps]
    notes = [f"sweep {state.name}: {text}" for state in states for text in _notes(state, jobs)]
    if notes:
        blocks.append([Text(line, style="yellow") for line in notes])
    if config.scaling:
        rows_of_studies = [list(map(str, counts.values())) for counts in study_counts(config, results)]
        blocks.append([TerminalTable(STUDY_COLUMNS, rows_of_studies)])
    best: list[RenderableType] = [Text(line, no_wrap=True, overflow="ellipsis") for line in map(_best, states) if line]
    if best:
        blocks.append(best)
    lines = len(best) + len(notes) + len(sweeps) + len(config.scaling) + 2 * len(blocks) + 3 * len(running)
    rows = None if height is None else max(1, (height - lines) // max(1, len(running)))
    for sweep in running:
        state = sweep.plan.state
        title = f"sweep {state.name}: "
        if state.sweep.slots.jobs > 1:
            title += f"{count_of(len(sweep.sessions), 'job')} "
        title += "running" if sweep.is_live else "running, or killed without a final event"
        line = Text(title, no_wrap=True, overflow="ellipsis")
        blocks.append([line, slot_table(sweep.attempts, state, max_rows=rows)])
    return Group(*(part for number, block in enumerate(blocks) for part in ([""] if number else []) + block))


def _row(sweep: SweepProgress) -> list[str]:
    """The cells of `SWEEP_COLUMNS`."""
    return [sweep.plan.state.name, *map(str, sweep.counts.values()), sweep.time_left]


def _best(state: History) -> str:
    """The best configuration so far; "" before there is one."""
    ranking = rank_sweep(state)
    return f"sweep {state.name}: {describe_ranking(ranking)[0]}" if ranking.best_trial else ""


def _notes(state: History, jobs: Sequence[UserJob]) -> list[str]:
    """Its jobs in Slurm's queue, what users have requested and still holds, and what makes values hard to compare."""
    requests = state.requests
    parts = list[str]()
    if requests.paused_at:
        parts.append(f"paused since {format_time(requests.paused_at)}")
    if budget := state.describe_budget():
        parts.append(budget)
    if requests.jobs:
        parts.append(f"at most {count_of(requests.jobs, 'job')}")
    if state.cancelled:
        parts.append(f"{count_of(len(state.cancelled), 'trial')} cancelled")
    parts += [f"first {trial}" for trial in state.unfinished if trial in requests.first]
    queued = describe_jobs(job for job in jobs if job.is_of(state.name))
    return [*filter(None, [queued, "; ".join(parts)]), *describe_finished_work(state)]
