"""Reads from the results what has happened: the history of a sweep, and whether a scale is trained."""

import json
from collections.abc import Sequence
from pathlib import Path

from trainyard.config.scaling import Scaling
from trainyard.config.sweep import Sweep
from trainyard.config.trials import result_digest
from trainyard.data.staged import read_meta
from trainyard.planning.attempts import Fold
from trainyard.planning.history import History
from trainyard.planning.trial_space import NOT_STAGED
from trainyard.utils.errors import MissingResultError


def read_state(
    sweep: Sweep, name: str, results: Path, *, gpu_models: Sequence[str] = (), fold: Fold | None = None
) -> History:
    """The history of a sweep, from its dataset and journal in `results`. `gpu_models`: those that a job may get."""
    folder = results / "sweeps" / name
    fold = (fold or Fold(folder)).update()
    return History(name, sweep, dataset_digest(results, sweep), folder, fold, gpu_models=gpu_models)


def dataset_digest(results: Path, study: Sweep | Scaling) -> str:
    """The digest of a study's staged dataset; a constant if it has none or it is not staged."""
    if study.dataset is None:
        return "no dataset"
    try:
        return read_meta(results / "data" / study.dataset).digest
    except MissingResultError:
        return NOT_STAGED


def is_trained(study: Scaling, run: str, folder: Path, results: Path) -> bool:
    """Whether a run of a study, whose results are in `folder`, has results of this config."""
    try:
        known = json.loads((folder / run / "summary.json").read_text()).get("spec_digest")
    except (FileNotFoundError, ValueError):
        return False
    return bool(known == result_digest(study, run, dataset_digest(results, study)))
