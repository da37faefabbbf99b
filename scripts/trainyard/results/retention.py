"""Retention: which files of ended trials a sweep keeps (`keep`), and what else stays after a removal."""

import json
import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainyard.config.metric_names import DURATION
from trainyard.config.settings import SETTINGS
from trainyard.config.trial_status import CONCLUSIVE
from trainyard.planning.history import History
from trainyard.planning.journal import Ended, Event
from trainyard.planning.task import folder_name, output_name
from trainyard.programs.metric_files import metric_files
from trainyard.programs.wandb_runs import WANDB_SETTINGS
from trainyard.results.ranking import rank_sweep
from trainyard.utils.files import atomic_write
from trainyard.utils.guarded_process import HOLD_SECONDS, hold_folder
from trainyard.utils.locks import LockHeldError

RESULTS: Final = ("history.csv", "summary.json")  # of a run of a scaling study
PASS_SECONDS: Final = 60.0  # between two removals while a sweep runs
log = logging.getLogger(__name__)
Folders = Mapping[Path, Collection[Path]]


def reduced_folders(state: History, keep: str, *, known: Collection[str] = ()) -> dict[str, Folders]:
    """The folders of ended trials that `keep` reduces, by trial, each with what it keeps beside its outputs.

    The outputs and the file of metrics stay, because they are read again if `metrics` change, and the file of
    settings, with which a user can run the program again. Of `best N`, the best N
    configurations whose trials have all ended stay whole, and so do those of which a trial has not. Trials that are
    `known` to be reduced are left out.
    """
    sweep = state.sweep
    if sweep.trains or keep == "all":
        return {}
    kept = _best_trials(state, int(keep.split()[1])) if keep.startswith("best ") else frozenset[str]()
    reduced = dict[str, Folders]()
    for name in state.trials.keys() - kept - set(known):
        if is_concluded(state, name):
            attempts = {(folder.generation, folder.takeover) for folder in state.record(name).attempts}
            folders = [state.folder / "trials" / folder_name(name, *folder) for folder in attempts]
            metrics = sweep.program_metrics
            complete = sweep.completion
            reduced[name] = {
                folder: metric_files(metrics, folder)
                + metric_files(metrics, folder, earlier=True)
                + list(folder.glob(f"{SETTINGS}.*"))
                + list(folder.glob(WANDB_SETTINGS))
                + list(folder.glob(complete.file) if complete and complete.file else ())
                for folder in folders
            }
    return reduced


def keep_results(run: Path, digest: str) -> None:
    """Copy the results of a training by `train`, in the folder `run`, to that of its checkpoints, which are removed.

    Before a job that is to write them again, Snakemake removes the results; the checkpoints would still have them.
    """
    if json.loads((run / "summary.json").read_text())["spec_digest"] == digest:
        _copy_results(run, run / "checkpoints" / digest)


def restore_results(run: Path, digest: str) -> bool:
    """Restore what `keep_results` has kept of this training; returns whether there was any."""
    kept = run / "checkpoints" / digest
    is_kept = all((kept / name).exists() for name in RESULTS)
    if is_kept:
        _copy_results(kept, run)
    return is_kept


def _copy_results(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in RESULTS:
        with atomic_write(target / name) as file:
            file.write((source / name).read_text())


def is_concluded(state: History, trial: str) -> bool:
    """Whether a trial has a result or has diverged, also by the present `metrics`, so that it is not resumed."""
    end = state.record(trial).end
    return end is not None and end.outcome in CONCLUSIVE and not state.must_read(end)


def _best_trials(state: History, count: int) -> frozenset[str]:
    """The trials that `best N` keeps; all of them if no metric ranks them."""
    ranking = rank_sweep(state)
    if ranking.candidates or DURATION == ranking.metric != state.sweep.metric:  # nothing better was reported
        return frozenset(state.trials)
    names = ([trial.trial for trial in each.trials] for each in ranking.configurations)
    counting = {trial.trial for each in ranking.counting for trial in each.trials}
    drawn = (each for each in names if len(each) >= state.sweep.trials_of_each)  # a search draws one after the other
    ended = [each for each in drawn if all(is_concluded(state, name) for name in each)]
    best = [each for each in ended if counting.issuperset(each)][:count]
    return frozenset(state.trials).difference(*ended).union(*best)


def surplus_of(folder: Path, kept: Collection[Path]) -> Iterator[Path]:
    """What is in the folder of a trial but for its outputs and what is `kept`: files, links and whole folders."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if any(each.is_relative_to(path) for each in kept):
            yield from surplus_of(path, kept)
        elif not path.match(output_name("*")):
            yield path


def reduce_folders(folders: Folders) -> None:
    """Remove the surplus of some folders, but for those in which a process still runs."""
    for folder, kept in folders.items():
        if surplus := list(surplus_of(folder, kept)):
            with suppress(LockHeldError), hold_folder(folder, purpose="removing files", grace_seconds=-HOLD_SECONDS):
                for path in surplus:
                    remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder. What cannot be removed is left, with a warning."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s cannot be removed: %s", path, error.strerror)


class Retention:
    """Removes what a sweep does not keep while it runs, in a thread.

    `read_state` returns the state of the sweep as it is now.
    """

    def __init__(self, keep: str, read_state: Callable[[], History]) -> None:
        self._keep = keep
        self._read_state = read_state
        self._pool = ThreadPoolExecutor(1)
        self._due = 0.0
        self._reduced = set[str]()  # trials

    def on_event(self, event: Event, attempt: object, *, is_own: bool) -> None:
        """After the end of a trial of this job, begin a removal, unless one has begun in the last minute."""
        if is_own and isinstance(event, Ended) and time.monotonic() >= self._due:
            self._due = time.monotonic() + PASS_SECONDS
            folders_by_trial = reduced_folders(self._read_state(), self._keep, known=self._reduced)
            self._reduced |= folders_by_trial.keys()
            for folders in folders_by_trial.values():
                self._pool.submit(reduce_folders, folders)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a trial, which must have its end on the disk. Short trials have none."""
    shutil.rmtree(folder, ignore_errors=True)
