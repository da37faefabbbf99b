"""What of the results can be removed, how much that frees, and which process still works on them."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, get_args

from trainyard.checks.resume_drill import FOLDER as DRILL
from trainyard.cluster import slurm_queries
from trainyard.config.config import Config
from trainyard.config.scaling import Scaling, TrainScaling
from trainyard.config.trials import result_digest
from trainyard.config.user_programs import checkpoints_of
from trainyard.planning.history import History, dataset_digest, is_trained, read_state
from trainyard.results.retention import (
    RESULTS,
    is_concluded,
    keep_results,
    reduce_folders,
    reduced_folders,
    remove,
    surplus_of,
)
from trainyard.utils.errors import UserError
from trainyard.utils.locks import Holder, LockHeldError, hold
from trainyard.utils.text import count_of

Kind = Literal["trials", "checkpoints", "data", "drill"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SILENT_SECONDS: Final = 3600.0  # without a sign of life, after which a process on another machine has ended
_BEATS: Final = ("sweeps/*/sessions/*.beat", f"{DRILL}/*/*/sweeps/*/sessions/*.beat")
_LOCKS: Final = ("scaling/*/*/.lock", "scaling/*/*/*/.lock", "data/*/.lock")


@dataclass(frozen=True)
class Removable:
    """Files of one study or dataset that can be removed, and what is lost with them."""

    kind: Kind
    owner: str  # such as `sweep lr`
    paths: list[Path]
    loss: str
    remove: Callable[[], None]


def find_removable(config: Config, results: Path) -> list[Removable]:
    """All that can be removed of the studies and datasets of a config; nothing outside of `results`.

    Of a sweep that keeps all files of its trials, those of the best configuration stay.
    """
    removable: list[Removable] = []
    for name, sweep in config.sweeps.items():
        state = read_state(sweep, name, results)
        if not sweep.trains:
            removable.append(_of_trials(state, "best 1" if sweep.kept_files == "all" else sweep.kept_files))
        ended = list[Path]()
        for checkpoints in _listed(state.folder / "checkpoints"):
            trial = checkpoints.name.partition("~")[0].partition("-")[0]
            if trial in state.trials and is_concluded(state, trial):
                ended.append(checkpoints)
        removable.append(_of_paths("checkpoints", f"sweep {name}", ended, "nothing: their trials have ended"))
    for name, study in config.scaling.items():
        removable.append(_of_scaling(study, name, results))
    for path in _listed(results / "data"):
        known = path.name in config.datasets
        loss = (
            "nothing: the next run stages it again, first" if known else "it is not in this config: another may have it"
        )
        removable.append(_of_paths("data", f"dataset {path.name}", [path], loss))
    drills = _listed(results / DRILL)
    loss = "what its resume drill did, to look into"
    removable += (_of_paths("drill", f"sweep {path.name}", [path], loss) for path in drills)
    root = results.resolve()
    inside = (
        each
        for each in removable
        if each.paths and all(path.parent.resolve().is_relative_to(root) for path in each.paths)
    )
    return sorted(inside, key=lambda each: KINDS.index(each.kind))


def _of_trials(state: History, keep: str) -> Removable:
    """The files of ended trials of a sweep that it need not keep."""
    by_trial = reduced_folders(state, keep)
    folders = {folder: kept for each in by_trial.values() for folder, kept in each.items()}
    paths = [path for folder, kept in folders.items() for path in surplus_of(folder, kept)]
    rest = "" if keep == "metrics" else f"; {keep.replace('best 1', 'the best')} stays"
    loss = f"files of up to {count_of(len(by_trial), 'ended trial')}, but no output and no metrics{rest}"
    return Removable("trials", f"sweep {state.name}", paths, loss, partial(reduce_folders, folders))


def _of_scaling(study: Scaling, name: str, results: Path) -> Removable:
    """The checkpoints of the finished runs of a scaling study."""
    folder = results / "scaling" / name
    dataset = dataset_digest(results, study)
    runs = [run for scale in study.scales for run in study.runs(scale) if is_trained(study, run, folder, results)]
    if isinstance(study, TrainScaling) and study.keep_checkpoints == "all":
        runs = []
    digests = {run: result_digest(study, run, dataset) for run in runs}
    paths = list[Path]()
    for run, digest in digests.items():
        if study.trains:
            paths += (path for path in sorted((folder / run).glob("checkpoints/*/*")) if path.name not in RESULTS)
        elif study.checkpoint_pattern:
            paths += sorted((folder / run / "out" / digest).glob(checkpoints_of(study.checkpoint_pattern)))

    def remove_all() -> None:
        with ExitStack() as held:
            for run, digest in digests.items():
                held.enter_context(hold(folder / run / ".lock"))
                if study.trains:
                    keep_results(folder / run, digest)
            for path in paths:
                remove(path)

    loss = f"the weights of {count_of(len(runs), 'finished run')}"
    return Removable("checkpoints", f"scaling study {name}", paths, loss, remove_all)


def _of_paths(kind: Kind, owner: str, paths: list[Path], loss: str) -> Removable:
    def remove_all() -> None:
        for path in paths:
            remove(path)

    return Removable(kind, owner, paths, loss, remove_all)


def _listed(folder: Path) -> list[Path]:
    """The folders in a folder that are not elsewhere; none if it is absent."""
    return sorted(path for path in folder.glob("*") if path.is_dir() and not path.is_symlink())


def space_of(paths: Iterable[Path]) -> tuple[int, int]:
    """Bytes on the disk and number of files; of a file with several names, the bytes count once. Links lead nowhere."""
    used = dict[tuple[int, int], int]()
    files = 0
    for path in paths:
        is_folder = path.is_dir() and not path.is_symlink()
        inner = (Path(top, name) for top, _, names in os.walk(path) for name in names) if is_folder else (path,)
        for each in inner:
            with suppress(OSError):  # it was removed meanwhile
                status = os.lstat(each)
                used[status.st_dev, status.st_ino] = 512 * status.st_blocks
                files += 1
    return sum(used.values()), files


def check_unused(results: Path) -> None:
    """Check that no process works on the results.

    Raises:
        UserError: one does, or may do; the message names it.
    """
    users = [*_running_sessions(results)]
    for lock in (path for pattern in _LOCKS for path in results.glob(pattern)):
        try:
            with hold(lock):
                pass
        except LockHeldError as error:
            users.append(str(error).partition(":")[0])
    if users:
        raise UserError(f"nothing is removed: {'; '.join(users)}: wait until it has ended, then run this again")


def _running_sessions(results: Path) -> Iterator[str]:
    """The processes that run trials of a sweep, as far as can be seen from here."""
    for beat in sorted(path for pattern in _BEATS for path in results.glob(pattern)):
        holder = Holder.parse(beat.read_bytes())
        modified = beat.stat().st_mtime
        if holder and holder.is_here():
            has_ended_here = holder.has_ended()
        elif holder and holder.job:
            has_ended_here = slurm_queries.has_ended(holder.job)
        else:
            has_ended_here = time.time() > modified + SILENT_SECONDS
        if not has_ended_here:
            yield f"{beat.parents[1]} is in use by {holder or 'another process'}"
