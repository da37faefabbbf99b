"""Trials that a config gains while its sweep runs.

Each run of Snakemake appends its config to the log of claims, before it submits a job of a sweep or waits for one; so
does a program that is started by hand. The jobs of earlier runs take up what it adds, if nothing else has changed.
"""

import logging
import os
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

from trainyard.config.config import Config
from trainyard.config.load import as_given, config_copy, read_config
from trainyard.config.sweep import Sweep
from trainyard.config.trials import expand, published_weights, trainings
from trainyard.planning.attempts import Fold
from trainyard.planning.claims import ClaimLog
from trainyard.planning.history import History
from trainyard.planning.job_marks import RUN
from trainyard.planning.requests import UserRequest, UserRequests
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json

GROWING: Final = frozenset({"grid", "trials", "sample", "repeats", "repeat_best"})  # may gain trials
log = logging.getLogger(__name__)


def announce_config(config: Config, name: str, results: Path) -> int:
    """Tell the jobs of a sweep the config of this run, once; returns the entry of the log that has it.

    Raises:
        StorageError: it cannot be written.
    """
    claims = ClaimLog(results / "sweeps" / name)
    run = os.environ.get(RUN)
    claims.read()
    if entry := claims.requests.entry_of(run):
        return entry
    copy = config_copy(config, results)
    if not copy.exists():
        write_json(copy, as_given(config))
    if claims.requests.configs:
        before = read_sweep(results, name, claims.requests.configs[-1][1].config)
        changes = list_changes(before, config.sweeps[name]) if before else []
        if changes and Fold(results / "sweeps" / name).update().live:
            log.warning(
                "jobs of this sweep that run now go on with the config that they know: %s changed, and they take up "
                "only trials that are added. What this run starts uses the new config",
                " and ".join(changes),
            )
    claims.request(UserRequest("config", time.time(), config=copy.name, run=run))
    return len(claims.entries)


def announce_end(name: str, results: Path) -> None:
    """Tell who waits for a sweep that this run works on it no longer, if it has announced its config.

    Raises:
        StorageError: it cannot be written.
    """
    claims = ClaimLog(results / "sweeps" / name)
    run = os.environ.get(RUN)
    claims.read()
    if claims.requests.entry_of(run):
        claims.request(UserRequest("end", time.time(), run=run))


def add_trials(config: Config, name: str, results: Path, requests: UserRequests, *, after: int) -> Config:
    """The config with the trials of its sweep that configs of entries after `after` add."""
    for entry, request in requests.configs:
        found = read_copy(results / "configs" / request.config) if entry > after else None
        sweep = found and found.sweeps.get(name)
        if sweep and sweep != config.sweeps[name] and not list_changes(config.sweeps[name], sweep):
            config = config.model_copy(update={"sweeps": {**config.sweeps, name: sweep}})
    return config


def read_current_config(path: Path, results: Path, *, study: str | None = None) -> Config:
    """The config of a file, with the trials that runs after the one of this process have added to its sweeps.

    Only the sweep with the name of the `study` needs to have them, if it is given.

    Raises:
        ConfigError: it cannot be read, or has errors.
    """
    config = read_config(path)
    run = os.environ.get(RUN)
    for name in [each for each in config.sweeps if study in (None, each)]:
        claims = ClaimLog(results / "sweeps" / name)
        claims.read()
        if entry := claims.requests.entry_of(run):
            config = add_trials(config, name, results, claims.requests, after=entry)
    return config


_read_once = cache(read_config)  # for copies: their names have the digest of their content


def read_copy(path: Path) -> Config | None:
    """The copy of a config in the results; None if it is not there, or of a version with other options."""
    try:
        return _read_once(path)
    except UserError:
        return None


def read_sweep(results: Path, name: str, file: str) -> Sweep | None:
    """A sweep as a copy of the config in the results has it; None as in `read_copy`."""
    found = read_copy(results / "configs" / file)
    return found.sweeps.get(name) if found else None


def recorded_sweep(state: History, digest: str | None) -> Sweep | None:
    """The same as the config of a session had it, which records the digest."""
    return read_sweep(state.folder.parents[1], state.name, f"{digest}.json")


def list_changes(before: Sweep, now: Sweep) -> list[str]:
    """What differs between two configs of a sweep, by name, other than trials that `now` adds."""
    names = changed_options(before, now)
    is_smaller = bool(expand(before).by_name("").keys() - expand(now).by_name("").keys())
    if before.search and now.search:
        is_smaller |= now.search.trials < before.search.trials
        names += ["repeats"] if before.trials_of_each != now.trials_of_each else []
    if is_smaller:
        names.append("the number of trials")
    return names


def changed_options(before: Sweep, now: Sweep) -> list[str]:
    """The names of the options that differ between two configs of a sweep, without those that have its trials."""
    old = _comparable(before)
    new = _comparable(now)
    return [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]


def _comparable(sweep: Sweep) -> dict[str, Any]:
    """What two configs of a sweep must have in common for its running jobs to take up the trials of the other one."""
    slots = sweep.slots.model_copy(update={"jobs": 1})
    search = sweep.search and sweep.search.model_copy(update={"trials": 1})
    content = sweep.model_copy(update={"slots": slots, "search": search}).model_dump(exclude=set(GROWING))
    return content | {
        "kind": type(sweep),
        "pretrained": published_weights(sweep),
        "deterministic": any(spec.deterministic for spec in trainings(sweep)),
    }
