"""The file best.yaml of a sweep, which trains its best configuration again, and the command line to paste."""

import math
import re
import shlex
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Final, TypeGuard

from trainyard.config.config import Config
from trainyard.config.parser import write_yaml
from trainyard.config.placeholders import GPUS, PORT, TRIAL_DIR, build_argv, find_placeholders, insert_resume_option
from trainyard.config.scaling import split_scale, study_of_trial
from trainyard.config.settings import SETTINGS
from trainyard.config.sweep import CommandSweep, Sweep, TrainSweep
from trainyard.config.train import Training
from trainyard.config.trials import Trial
from trainyard.planning.attempts import Attempt, find_continued
from trainyard.planning.history import History, TrialRecord
from trainyard.planning.task import folder_name, output_name
from trainyard.programs.runner import CheckpointFile, find_checkpoint, list_checkpoints, numbers_of
from trainyard.programs.script_options import find_switches
from trainyard.programs.started_scripts import find_started
from trainyard.programs.user_environment import find_interpreter, resolve_program_paths
from trainyard.programs.wandb_runs import WANDB_SETTINGS
from trainyard.results.answer import Answer
from trainyard.results.provenance import describe_mismatch, describe_origin, sessions_of_results
from trainyard.results.ranking import Ranking
from trainyard.utils.files import atomic_write
from trainyard.utils.text import printable
from trainyard.utils.typed_commands import run_call, shell_folder

FILE: Final = "best.yaml"
# What makes the trials of a sweep, or is about several of them.
_OF_SEVERAL: Final = ("grid", "trials", "sample", "search", "stop", "cost", "goal", "slots", "retrain", "keep",
                      "repeats", "repeat_best", "budget", "objectives", "constraints")  # fmt: skip
_STUDIES: Final = ("datasets", "sweeps", "scaling")
_FREE_PORT: Final = 29500  # torch's default
_MAX_NAME: Final = 64  # characters of the name of a study
_AT_ONCE: Final = 0.05  # seconds between the reports that a driver reads together, at most


def best_config(config: Config, name: str, trials: Sequence[Trial], *, new_name: str) -> dict[str, Any]:
    """A config with these trials of a sweep as the sweep `new_name`, and a scaling study of the first one's training.

    The trials keep their identities. The sweep has one slot.
    """
    whole = config.model_dump(mode="json", exclude_unset=True)
    sweep = config.sweeps[name]
    content = {section: value for section, value in whole.items() if section not in _STUDIES}
    if sweep.dataset:
        content["datasets"] = {sweep.dataset: whole["datasets"][sweep.dataset]}
    kept = {key: value for key, value in whole["sweeps"][name].items() if key not in _OF_SEVERAL}
    if sweep.search or sweep.stop:
        kept |= dict(zip(("metric", "mode"), sweep.target, strict=True))
    cpus, (nodes, gpus) = sweep.slots.cpus_per_trial, split_scale(sweep.slots.scale)
    slots = {"gpus_per_node": gpus if sweep.slots.has_gpus else 0, "cpus_per_trial": cpus}
    if nodes > 1:
        slots["nodes_per_trial"] = nodes
    elif sweep.slots.has_gpus:
        slots["gpus_per_trial"] = gpus
    content["sweeps"] = {new_name: kept | {"trials": [each.values for each in trials], "slots": slots}}
    if has_study(sweep) and isinstance(spec := trials[0].spec, Training):
        # Its scale is this training; it has as many CPUs, so that sums have the same order.
        spec = spec.judged_by(sweep.epoch_metric(spec) or spec.metric)
        study = study_of_trial(spec, str(sweep.dataset), scale=sweep.slots.scale, cpus=cpus)
        content["scaling"] = {new_name: study}
    return content


def has_study(sweep: Sweep) -> TypeGuard[TrainSweep]:
    """Whether best.yaml has a scaling study, too: for trainings, unless the sweep requests no GPUs."""
    return isinstance(sweep, TrainSweep) and sweep.slots.gpus_per_node > 0


def study_name(config: Config, sweep: str) -> str:
    """The name of what trains the best configuration of a sweep again, a sweep and a scaling study: no other's."""
    ends = chain(["-best"], (f"-best-{number}" for number in count(2)))
    names = (f"{sweep[: _MAX_NAME - len(end)]}{end}" for end in ends)
    return next(name for name in names if name not in config.sweeps and name not in config.scaling)


def paste_line(state: History, ranking: Ranking) -> str | None:
    """The command line of the best trial; None without one, or if it is no command."""
    best = ranking.best_trial
    return trial_line(state, best.trial) if best else None


def trial_line(state: History, trial: str) -> str | None:
    """The command line of a trial, for a shell in the folder where Trainyard ran; None if there is none."""
    return " && ".join(list_commands(state, trial)) or None


def list_commands(state: History, trial: str) -> list[str]:
    """The command line of a trial, after those that set up its environment and its folder; empty if there is none.

    It has a folder of its own, so that the program does not overwrite what is there.
    """
    sweep = state.sweep
    if not isinstance(sweep, CommandSweep):
        return []
    command = sweep.command_line
    arguments = state.trials[trial].settings
    folder = str((state.folder / "trials" / "by-hand").absolute())
    dataset = str((state.folder.parents[1] / "data" / sweep.dataset).absolute()) if sweep.dataset else ""
    placeholders = {"trial": "by-hand", "attempt": 1, "trial_dir": folder, "cpus": sweep.slots.cpus_per_trial,
                    GPUS: math.ceil(sweep.slots.share), "resume_from": "", "dataset": dataset,
                    PORT: _FREE_PORT}  # fmt: skip
    of_trial = folder_of(state, trial).absolute()
    files = [sweep.settings.name] if sweep.settings else []
    files += [WANDB_SETTINGS] if sweep.is_wandb else []
    if not all((of_trial / name).exists() for name in files):
        return []  # the trial has not started, or the file was removed
    if sweep.settings:
        placeholders[SETTINGS] = str(of_trial / sweep.settings.name)
    command = insert_resume_option(command, None, arguments)
    switch_of = find_switches(command, Path.cwd())
    if sweep.has_workdirs:
        command = resolve_program_paths(command, Path.cwd())
    argv = build_argv(command, arguments, placeholders, switch_of=switch_of)
    line = argv[-1].strip() if isinstance(command, str) else shlex.join(argv)
    reads_folder = find_started(line, Path.cwd()).mentions(TRIAL_DIR)
    needs_folder = sweep.has_workdirs or reads_folder or "trial_dir" in find_placeholders(command)
    before = [f"mkdir -p {shlex.quote(folder)}"] if needs_folder else []
    before += [f"export {TRIAL_DIR}={shlex.quote(folder)}"] if reads_folder else []
    if sweep.has_workdirs:
        before += [f"cd {shlex.quote(folder)}", f'export PYTHONPATH={shlex.quote(str(Path.cwd()))}:"$PYTHONPATH"']
    if sweep.setup:  # it may end with a comment, and change the folder
        before = [f"{{ {sweep.setup.strip()}\n}}", f"cd {shlex.quote(str(Path.cwd()))}", *before]
    if python := find_interpreter(sweep):
        before.insert(0, f'export PATH={shlex.quote(str(python.parent))}:"$PATH"')
    if sweep.is_wandb:
        path = shlex.quote(str(of_trial / WANDB_SETTINGS))
        line = f"export WANDB_SWEEP_PARAM_PATH={path} WANDB_MODE=offline && {line}"
    return [*before, line]


def folder_of(state: History, trial: str) -> Path:
    """The folder of the attempt that is the result of a trial, or of its last one."""
    record = state.record(trial)
    attempt = record.result or record.last
    name = folder_name(trial, attempt.generation, attempt.takeover) if attempt else trial
    return state.folder / "trials" / name


def find_files(state: History, ranking: Ranking) -> Path | None:
    """The checkpoint of the best trial, or else its folder; None if it has kept nothing there but its output.

    If it counts by its best epoch, it is the checkpoint that was there then.
    """
    best = ranking.best_trial
    if best is None or state.sweep.trains:
        return None
    folder = folder_of(state, best.trial)
    pattern = state.sweep.checkpoint_pattern
    value = best.value
    if ranking.score == "best" and value and value.epoch is not None:
        checkpoint = _checkpoint_at(
            value.epoch, state.record(best.trial), list_checkpoints(folder, pattern or "**/*best*")
        )
    else:
        checkpoint = find_checkpoint(folder, pattern)
    if checkpoint:
        return folder / checkpoint.name
    return folder if any(not each.match(output_name("*")) for each in folder.glob("*")) else None


def _checkpoint_at(epoch: float, record: TrialRecord, checkpoints: Sequence[CheckpointFile]) -> CheckpointFile | None:
    """The checkpoint that a trial had at an epoch, the last one before or at it; None if that is not known.

    The number in its name is its epoch, if it is so for most of them by time, or the last one is of the last epoch.
    Otherwise, time tells: a program saves shortly before or after it reports an epoch, so the closest report counts.
    Of several of an epoch, it is the one that is called best.
    """
    assert record.result is not None
    times = _report_times(record, record.result)
    epochs = record.epochs_of(record.result)

    def possible(file: CheckpointFile) -> list[float]:
        distances = {at: abs(time - file.modified_ns / 1e9) for at, time in times.items()}
        closest = min(distances.values(), default=0.0)
        return [at for at, distance in distances.items() if distance < closest + _AT_ONCE]

    numbered = [
        checkpoint.name for checkpoint in checkpoints if re.search(r"\d", checkpoint.name) and not _is_best(checkpoint)
    ]
    numbers = numbers_of(numbered)
    agreeing = sum(numbers.get(checkpoint.name) in possible(checkpoint) for checkpoint in checkpoints)
    if 2 * agreeing <= len(numbers) and max(numbers.values(), default=None) != epochs[-1].get("epoch"):
        numbers = {}
    candidates = list[tuple[float, bool, int, CheckpointFile]]()
    for checkpoint in checkpoints:
        of = [numbers[checkpoint.name]] if checkpoint.name in numbers else sorted(possible(checkpoint))
        if not of or of[0] > epoch:
            continue
        if of[-1] > epoch and not _is_best(checkpoint):
            return None  # it may be of a later epoch
        candidates.append(
            (of[0] if _is_best(checkpoint) else of[-1], _is_best(checkpoint), checkpoint.modified_ns, checkpoint)
        )
    return max(candidates)[-1] if candidates else None


def _is_best(file: CheckpointFile) -> bool:
    return "best" in file.name.lower()


def _report_times(record: TrialRecord, result: Attempt) -> dict[float, float]:
    """When a trial reported its epochs for the last time, in Unix seconds; {} if this was not recorded of all."""
    times = dict[float, float]()
    for attempt in [*(each for each, _ in find_continued(record.attempts, result)), result]:
        recorded = record.history.fold.attempts[attempt.trial, attempt.number].epoch_times
        if not all(row.get("epoch") in recorded for row in attempt.epochs):
            return {}  # its output was read later
        first = min(recorded, default=math.inf)
        times = {at: time for at, time in times.items() if at < first} | recorded
    return times


def find_config(state: History, answer: Answer) -> Path | None:
    """The file best.yaml of a sweep; None if it is not there, or of another answer than this."""
    path = state.folder / FILE
    return path if path.exists() and path.read_text().startswith(_title(state, answer)) else None


def _title(state: History, answer: Answer) -> str:
    return f"# {printable(f'Sweep {state.name}: {answer.lines[0]}')}\n"


def write_best(config: Config, state: History, answer: Answer) -> Path:
    """Write best.yaml in the sweep's folder; return it. Before a trial has finished, it is a config with an error."""
    ranking = answer.ranking
    path = state.folder / FILE
    best = ranking.best_trial
    first, *lines = answer.lines
    # Without a best one, whoever uses the file gets this in an error.
    content: dict[str, Any] = {"sweeps": f"Sweep {state.name}: {first}"}
    if best:
        if files := find_files(state, ranking):
            lines.append(f"Its files: {files}")
        session = sessions_of_results(state).get(best.trial)
        if origin := describe_origin(session):
            lines.append(f"It ran with {origin}")
        if session and session.config:
            lines.append(f"The config of its job: {state.folder.parents[1]}/configs/{session.config}.json")
        lines += filter(None, [describe_mismatch(state)])
        best_first = sorted(ranking.counting[0].trials, key=lambda each: each != best)
        optional = state.space.optional
        ran = [each.trial for each in best_first if each.trial not in optional or state.record(each.trial).result]
        study = study_name(config, state.name)
        seeds = f", with its {len(ran)} seeds" if len(ran) > 1 else ""
        lines += ["", f"Sweep {study} trains it again{seeds}. In {shell_folder()}:"]
        lines.append(run_call(path, "--", "sweeps"))
        if has_study(state.sweep):
            lines.append(f"Scaling study {study} trains its best seed, keeps checkpoints, and can have further scales:")
            lines.append(run_call(path, "--", "scaling"))
        if line := paste_line(state, ranking):
            lines += ["By hand:", *line.splitlines()]
        content = best_config(config, state.name, [state.trials[each] for each in ran], new_name=study)
    with atomic_write(path) as file:
        file.write(_title(state, answer))
        file.write("".join(f"# {printable(line)}".rstrip() + "\n" for line in lines) + "\n" + write_yaml(content))
    return path
