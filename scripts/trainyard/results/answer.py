"""The result of a sweep: its best configuration and the runner-up in words, and the file best.yaml."""

from pathlib import Path
from typing import Any, Final

from trainyard.config.config import Config
from trainyard.config.parser import write_yaml
from trainyard.planning.sweep_state import SweepState
from trainyard.planning.task import folder_name, output_name
from trainyard.programs.command import find_checkpoint
from trainyard.results.best_config import best_config, command_to_paste, has_study, study_name
from trainyard.results.ranking import FALLBACK, Configuration, Ranking, is_seed
from trainyard.utils.files import atomic_write
from trainyard.utils.text import printable
from trainyard.utils.typed_commands import snakemake_call

FILE: Final = "best.yaml"


def describe_best(ranking: Ranking, *, metric: str = "") -> str:
    """The description of a best value, as `best rmse (lowest)`; `metric` replaces the name of the metric."""
    mean, extreme = "mean " * ranking.has_seeds, {"min": "lowest", "max": "highest"}[ranking.mode]
    return f"best {mean}{metric or ranking.metric} ({extreme}{', guessed from its name' * ranking.is_guessed})"


def describe_ranking(ranking: Ranking) -> list[str]:
    """The best configuration and the runner-up, a line each."""
    if ranking.candidates:
        return [_describe_undecided(ranking)]
    if not ranking.counting:
        return ["no trial has finished" + f" with {ranking.metric}" * (ranking.metric != FALLBACK)]
    first, *others = ranking.counting
    instead = f"; no trial has reported {ranking.unreported}, the metric of the sweep" if ranking.unreported else ""
    lines = [f"{describe_best(ranking)}: {_describe(first, ranking)}{instead}"]
    return lines + [f"runner-up: {_describe(second, ranking)}" for second in others[:1]]


def _describe_undecided(ranking: Ranking) -> str:
    """Why no metric ranks the trials."""
    names = f"{', '.join(ranking.candidates[:-1])} and {ranking.candidates[-1]}"
    if ranking.unreported:
        missing = f"no trial has reported {ranking.unreported}, the metric of the sweep"
        return f"no ranking: {missing}, but {names}: set `metric` to one of them"
    return f"no ranking: trials report {names}, and nothing says which one ranks them: set `metric`"


def _describe(configuration: Configuration, ranking: Ranking) -> str:
    """The value of a configuration that counts, its trial, and the values of its varied keys."""
    trial, deviation = configuration.best_trial(ranking.mode), configuration.deviation
    assert trial is not None
    varied = (configuration if ranking.has_seeds else trial).values.items()
    values = _assignments({key: value for key, value in varied if key not in ranking.constant_keys})
    if not ranking.has_seeds:
        return f"{configuration.mean:.6g}, by trial {trial.trial}{f' with {values}' if values else ''}"
    total = len(configuration.trials)
    count = f"n = {configuration.n}" + (f" of {total}" if configuration.n < total else "")
    spread = "" if deviation is None else f" ± {deviation:.2g}"
    seed = _assignments({key: value for key, value in trial.values.items() if is_seed(key)})
    mean = f"{configuration.mean:.6g}{spread} ({count}){f' with {values}' if values else ''}"
    return f"{mean}; its best trial is {trial.trial} ({seed}): {trial.score:.6g}"


def _assignments(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def find_files(state: SweepState, ranking: Ranking) -> Path | None:
    """The checkpoint of the best trial, or else its folder; None if it has kept nothing there but its output."""
    best = ranking.best_trial
    if best is None or state.sweep.is_training:
        return None
    result = state.result(best.trial)
    folder = state.folder / "trials" / folder_name(best.trial, result.generation if result else 0)
    checkpoint = find_checkpoint(folder, state.sweep.checkpoint)
    if checkpoint:
        return folder / checkpoint.name
    return folder if any(not each.match(output_name("*")) for each in folder.glob("*")) else None


def write_best(config: Config, state: SweepState, ranking: Ranking) -> Path:
    """Write best.yaml in the sweep's folder; return it. Before a trial has finished, it has no study."""
    path, best = state.folder / FILE, ranking.best_trial
    lines = [f"Sweep {state.name}: {line}" for line in describe_ranking(ranking)[:1]] + describe_ranking(ranking)[1:]
    content = ""
    if best:
        trial = state.trials[best.trial]
        lines += _how_to_run(config, state, ranking, path)
        content = "\n" + write_yaml(best_config(config, state.name, trial))
    with atomic_write(path) as file:
        file.write("".join(f"# {printable(line)}".rstrip() + "\n" for line in lines) + content)
    return path


def _how_to_run(config: Config, state: SweepState, ranking: Ranking, path: Path) -> list[str]:
    """What to do with best.yaml, in lines."""
    best = ranking.best_trial
    assert best is not None
    files = find_files(state, ranking)
    generation = result.generation if (result := state.result(best.trial)) else 0
    lines = [f"Its files: {files}"] if files else []
    lines += [
        "",
        f"It is finished in this folder. To run it again here, add `retrain: {generation + 1}` to the sweep. To run it",
        "in another folder, where relative paths must be valid, too (on a cluster: profiles/slurm):",
        snakemake_call(path, "--directory", "../again", "--", "sweeps"),
    ]
    if has_study(state.sweep):
        lines += [f"As scaling study {study_name(state.name)}, which keeps checkpoints and can have further scales:"]
        lines += [snakemake_call(path, "--", "scaling")]
    line = paste_line(state, ranking)
    return lines + (["By hand:", *line.splitlines()] if line else [])


def paste_line(state: SweepState, ranking: Ranking) -> str | None:
    """The command line of the best trial, to paste into a shell; None if it is no command."""
    best, dataset = ranking.best_trial, state.sweep.dataset
    if best is None:
        return None
    staged = (state.folder.parents[1] / "data" / dataset).absolute() if dataset else None
    folder = (state.folder / "trials" / "by-hand").absolute()
    return command_to_paste(state.sweep, state.trials[best.trial], folder=folder, dataset=staged)
