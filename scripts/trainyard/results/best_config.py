"""The config that trains the best trial of a sweep again, and the command line of a user's program to paste."""

import shlex
from pathlib import Path
from typing import Any, Final

from trainyard.config.config import Config
from trainyard.config.sweep import Sweep
from trainyard.config.train import Train
from trainyard.config.trials import Trial
from trainyard.config.user_programs import (
    PORT,
    TrainingSection,
    UserProgram,
    build_argv,
    find_placeholders,
    insert_resume_option,
    make_values,
)
from trainyard.programs.environment import find_interpreter, resolve_own_paths

# What makes the trials of a sweep, or is about several of them.
_OF_SEVERAL: Final = ("grid", "trials", "sample", "search", "stop", "cost", "goal", "slots", "retrain")
_STUDIES: Final = ("datasets", "sweeps", "scaling", "trees")
_FREE_PORT: Final = 29500  # torch's default
_MAX_NAME: Final = 64  # characters of the name of a study


def best_config(config: Config, name: str, trial: Trial) -> dict[str, Any]:
    """A config with the sweep `name` of this trial only, and with a scaling study of the same training.

    The trial keeps its identity: in the same results, it is finished. The sweep has one slot.
    """
    whole, sweep = config.model_dump(mode="json", exclude_unset=True), config.sweeps[name]
    content = {section: value for section, value in whole.items() if section not in _STUDIES}
    if sweep.dataset:
        content["datasets"] = {sweep.dataset: whole["datasets"][sweep.dataset]}
    kept = {key: value for key, value in whole["sweeps"][name].items() if key not in _OF_SEVERAL}
    if sweep.search or sweep.stop:
        kept |= dict(zip(("metric", "mode"), sweep.target, strict=True))
    content["sweeps"] = {name: kept | {"trials": [trial.values], "slots": _one_slot(sweep)}}
    if has_study(sweep) and isinstance(trial.spec, Train):
        shared = {key: kept[key] for key in TrainingSection.model_fields if key in kept}
        content["scaling"] = {study_name(name): shared | _study(sweep, trial.spec)}
    return content


def has_study(sweep: Sweep) -> bool:
    """Whether best.yaml has a scaling study, too: for trainings, unless the sweep requests no GPUs."""
    return sweep.is_training and sweep.slots.gpus_per_node > 0


def study_name(sweep: str) -> str:
    """The name of the scaling study of a sweep's best trial."""
    return f"{sweep[: _MAX_NAME - 5]}-best"


def _one_slot(sweep: Sweep) -> dict[str, Any]:
    """The slots of a job that runs one trial, with a GPU or several of its own, or without GPUs as the sweep."""
    slots = sweep.slots
    if not slots.gpus_per_node:
        return {"gpus_per_node": 0, "cpus_per_trial": slots.cpus_per_trial}
    gpus = max(1, int(slots.share))
    return {"gpus_per_node": gpus, "gpus_per_trial": gpus, "cpus_per_trial": slots.cpus_per_trial}


def _study(sweep: Sweep, train: Train) -> dict[str, Any]:
    """A scaling study whose scale 1x1 is this training; it has as many CPUs, so that sums have the same order."""
    study = {
        "train": train.model_dump(mode="json", exclude_unset=True),
        "scales": ["1x1"],
        "cpus_per_gpu": sweep.slots.cpus_per_trial,
    }
    return study | ({"mode": "strong"} if train.global_batch_size else {})


def command_to_paste(sweep: Sweep, trial: Trial, *, folder: Path, dataset: Path | None) -> str | None:
    """The command line of a trial with its values, for a shell in the folder where Trainyard ran; None without one.

    `folder` replaces the trial's own, so that the program does not overwrite what is there.
    """
    spec = trial.spec
    if not isinstance(spec, UserProgram) or spec.command is None:
        return None
    placeholders = {"trial": "by-hand", "attempt": 1, "trial_dir": str(folder), "cpus": sweep.slots.cpus_per_trial,
                    "resume_from": "", "dataset": str(dataset or ""), PORT: _FREE_PORT}  # fmt: skip
    command = insert_resume_option(spec.command, None, spec.args)
    if has_workdir := sweep.workdir == "trial":
        command = resolve_own_paths(command, Path.cwd())
    argv = build_argv(command, make_values(command, spec.args, placeholders))
    needs_folder = has_workdir or "trial_dir" in find_placeholders(command)
    before = [f"mkdir -p {shlex.quote(str(folder))}"] if needs_folder else []
    if has_workdir:
        before += [f"cd {shlex.quote(str(folder))}", f'export PYTHONPATH={shlex.quote(str(Path.cwd()))}:"$PYTHONPATH"']
    if python := find_interpreter(sweep):
        before.insert(0, f'export PATH={shlex.quote(str(python.parent))}:"$PATH"')
    return " && ".join([*before, argv[-1].strip() if isinstance(command, str) else shlex.join(argv)])
