"""Checks of a config before a job is queued, by `snakemake -n`, by `trainyard check` and at the start of a run.

What the config alone decides is checked when it is read (`config/load.py`). Here follows what depends on files, on the
data and on a user's code. The state of a cluster is checked by `trainyard doctor`.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainyard.checks.code_checks import check_code
from trainyard.checks.findings import Finding
from trainyard.checks.program_checks import (
    CheckedStudy,
    check_environment,
    check_notify,
    check_program,
    check_source,
)
from trainyard.checks.script_checks import check_script_source, find_started_by
from trainyard.config.command_lines import LINE
from trainyard.config.config import Config
from trainyard.config.metric_names import TRAINING_METRICS, Mode, guess_mode
from trainyard.config.placeholders import PLACEHOLDER, TRIAL_DIR, dotted_items, find_placeholders, takes_all
from trainyard.config.scaling import ScriptScaling, TrainScaling
from trainyard.config.sweep import CommandSweep, ProgramSweep, Sweep, TrainSweep
from trainyard.config.train import BUILT_IN_MODEL_ARGS
from trainyard.config.trials import count_configured, expand, trainings
from trainyard.config.user_programs import CommandOptions
from trainyard.data.known_images import KnownImages, known_images
from trainyard.planning.journal import journal_files
from trainyard.programs.metric_patterns import parse_lines
from trainyard.programs.metric_rows import numeric_row
from trainyard.programs.started_scripts import split_commands
from trainyard.utils.text import count_of, suggest

Trained = TrainSweep | TrainScaling


def check_use(
    config: Config,
    results: Path,
    *,
    anew: bool = False,
    has_scheduler: bool = False,
    dry_run: bool = False,
    in_container: bool = False,
    other_environment: bool = False,
) -> Iterator[Finding]:
    """The findings of all checks. With `anew`, the user's code is tried again even if it has passed before.

    With a scheduler, it is a warning if a file is absent that only its nodes may have; in a dry run, which may plan for
    another machine, also if it is a script. `in_container`: jobs run in a container, which may have other programs.
    `other_environment`: as in `check_code`.
    """
    for name, dataset in config.datasets.items():
        known = known_images(dataset, results / "data" / name)
        yield check_source(f"datasets.{name}", dataset, known, has_scheduler=has_scheduler)
    if config.notify:
        yield from check_notify(config.notify)
    may_be_elsewhere = has_scheduler or in_container or bool(config.env_modules)
    for place, study in config.studies():
        images = KnownImages()
        if study.dataset is not None:
            images = known_images(config.datasets[study.dataset], results / "data" / study.dataset)
        checked = CheckedStudy[Any](place, study, images, has_scheduler, dry_run, may_be_elsewhere)
        for kind, check in STUDY_CHECKS:
            if isinstance(study, kind):
                yield from check(checked)
    yield from _check_budgets(config, results)
    yield from check_code(config, results, anew=anew, other_environment=other_environment)


def _check_budgets(config: Config, results: Path) -> Iterator[Finding]:
    """The times that have passed before their sweep has begun; later ones end the sweep as it is."""
    for name, sweep in config.sweeps.items():
        if not (budget := sweep.budget) or budget.end_time(math.inf) > time.time():
            continue
        if not journal_files(results / "sweeps" / name):
            message = f"{budget.until} has passed, and the sweep has not begun"
            yield Finding(f"sweeps.{name}.budget.until", "fails", message, "give a later time, or remove it")


def _check_trials(checked: CheckedStudy[Sweep]) -> Iterator[Finding]:
    """The number of trials; that each is valid, and has a cost, was checked when the config was read."""
    sweep = checked.study
    trials = expand(checked.study).trials
    cost = f", their cost by {sweep.cost}" if sweep.cost else ""
    yield Finding(checked.place, "ok", f"{count_of(_count_trials(sweep), 'trial')}{cost}")
    equal = count_configured(sweep) - sweep.draw_count - len(trials)
    if equal > 0:
        yield Finding(checked.place, "warns", f"{equal} more are equal to one of them, and do not run again")


def _check_keys(checked: CheckedStudy[ProgramSweep]) -> Iterator[Finding]:
    """Keys of `trials` that only the program knows, but that are similar to one of the search which the trial lacks."""
    sweep = checked.study
    if not sweep.search:
        return
    used = sweep.used_names
    searched = sweep.search.values.keys()
    used_keys = {*searched, *(key for key, _ in dotted_items(sweep.base))}
    for index, values in enumerate(sweep.trials):
        missing = searched - values.keys()
        for key in (key for key in values if missing and key not in used_keys and key.partition(".")[0] not in used):
            if (hint := suggest(key, missing, otherwise="-")) != "-":
                yield Finding(f"{checked.place}.trials.{index}.{key}", "warns", "is no key of `search` or `args`", hint)


def _check_fixed_values(checked: CheckedStudy[CommandSweep]) -> Iterator[Finding]:
    """Words of the command that set a varied key after the sweep does, of which most programs take the last value."""
    varied = {key.replace("-", "_") for key in checked.study.varied_keys}
    command = checked.study.command
    if isinstance(command, str):
        text = PLACEHOLDER.sub(lambda found: found[0].replace(" ", ""), command)  # one word
        commands = split_commands(text.replace("\\\n", " "))
    else:
        commands = [command]
    for words in commands:
        set_by = dict[str, str]()  # the varied key, by the name that sets it
        if "settings" in find_placeholders(words):
            set_by = {key: key for key in varied}
        for word, following in pairwise([*words, ""]):
            name, sign, text = word.partition("=")
            value = text if sign else following
            name = name.lstrip("-+").replace("-", "_")
            is_option = word.startswith("--")
            is_fixed = (sign or is_option) and not PLACEHOLDER.search(value) and "$" not in value
            if is_fixed and name in set_by:
                message = f"{word if sign else f'{word} {following}'} may take the place of the varied {set_by[name]}"
                yield Finding(f"{checked.place}.command", "warns", message, "remove it from the command")
            placed = find_placeholders([word])
            takes_them_all = any(takes_all(each, varied) for each in placed)
            set_by |= {key: key for key in (varied if takes_them_all else placed & varied)}
            whole = PLACEHOLDER.fullmatch(value)
            if is_option and whole and whole[1] in varied:
                set_by[name] = whole[1]


def _check_slots(checked: CheckedStudy[Sweep]) -> Iterator[Finding]:
    """GPUs that no trial gets, because a trial has several and their number does not divide that of a node."""
    sweep = checked.study
    if sweep.goal is not None or sweep.slots.node_share <= 1:
        return
    slots = sweep.slots
    used = sweep.slots.count * int(sweep.slots.node_share)
    if idle := slots.gpus_per_node - used:
        message = f"{idle} of {slots.gpus_per_node} GPUs of each node idle, as a trial has {int(slots.node_share)}"
        yield Finding(f"{checked.place}.slots", "warns", message, f"request {used}, or {used + int(slots.node_share)}")


def _count_trials(sweep: Sweep) -> int:
    return sweep.distinct_draw_count + len(expand(sweep).trials)


def _check_folder(checked: CheckedStudy[CommandOptions]) -> Iterator[Finding]:
    """Whether nothing in the config keeps the files of several trials or scales apart."""
    study = checked.study
    own = checked.study.own_folders
    if isinstance(study, Sweep):
        what = "trials"
        count = _count_trials(study)
    else:
        assert isinstance(study, ScriptScaling)
        what = "runs"
        count = study.run_count
    if count < 2 or "workdir" in study.model_fields_set or own & study.used_names:
        return
    if not find_started_by(study).mentions(TRIAL_DIR):
        folder = f"`${TRIAL_DIR}`" if LINE in study.used_names else f"`{{{sorted(own)[-1]}}}`"
        message = f"{count} {what} run in one folder, and may overwrite each other's files"
        own_folder = "`workdir: trial`, with absolute paths of its inputs"
        remedy = f"let the program write to {folder}, or set {own_folder}; `keep` if it writes none"
        yield Finding(f"{checked.place}.workdir", "warns", message, remedy)


def _check_completing_file(checked: CheckedStudy[CommandOptions]) -> Iterator[Finding]:
    """Whether the program can write the file that completes it where it counts: not where all trials run."""
    study = checked.study
    folder = max(checked.study.own_folders)
    file = study.complete.file if study.complete else None
    has_folder = folder in study.used_names or find_started_by(study).mentions(TRIAL_DIR)
    if file and study.workdir == "keep" and not has_folder:
        message = f"{file} counts in {{{folder}}} alone, which the command does not name"
        yield Finding(f"{checked.place}.complete.file", "warns", message, f"let the program write it to {{{folder}}}")


def _check_model_arguments(checked: CheckedStudy[Trained]) -> Iterator[Finding]:
    """Arguments that Trainyard's own models do not have; other models are tried in another process."""
    specs = trainings(checked.study)
    given = ((spec.model, key, value) for spec in specs for key, value in spec.model_args.items())
    findings: dict[Finding, None] = {}  # each once
    for model, key, value in given:
        arguments = BUILT_IN_MODEL_ARGS.get(model)
        where = f"{checked.place}.train.model_args.{key}"
        if arguments and key not in arguments:
            findings[Finding(where, "fails", f"is not an argument of {model}", suggest(key, arguments))] = None
        elif arguments and (type(value) is not int or value < (key == "width")):
            findings[Finding(where, "fails", "must be a positive integer", f"it is {value!r}")] = None
    yield from findings


def _check_batches(checked: CheckedStudy[Trained]) -> Iterator[Finding]:
    """The largest global batch is not larger than the number of training images."""
    study = checked.study
    place = f"{checked.place}.train.batch_size"
    images = checked.images
    batch, where = max(map(study.largest_step, trainings(study)))
    if images.training_images is None:
        message = f"{batch:,} images per step{where}: the number of images is known once they are staged"
        yield Finding(place, "unknown", message, "Snakemake's target `data` stages them")
    elif batch > images.training_images:
        message = f"the global batch of {batch:,} images{where} is larger than the {images.training_images:,} images"
        yield Finding(place, "fails", f"{message} for training", "lower it")
    else:
        yield Finding(place, "ok", f"{batch:,} images per step{where}, of {images.training_images:,}")


def _check_average(checked: CheckedStudy[Trained]) -> Iterator[Finding]:
    """Averages of the weights in trainings that are too short for their decay."""
    study = checked.study
    images = checked.images.training_images
    if images is None:
        return
    findings: dict[Finding, None] = {}  # each once
    for spec in trainings(study):
        batch, where = study.largest_step(spec)
        steps = images // batch * spec.epochs
        if spec.ema_decay is None or not steps:
            continue
        last = spec.ema_decay_after(steps - 1)
        if last < spec.ema_decay:
            message = f"{spec.ema_decay:g} is not reached in {count_of(steps, 'step')}{where}: it ends at {last:.4g}"
            remedy = f"lower it, or train longer: all values above {last:.4g} give the same average"
            findings[Finding(f"{checked.place}.train.ema_decay", "warns", message, remedy)] = None
    yield from findings


def _check_patterns(checked: CheckedStudy[CommandOptions]) -> Iterator[Finding]:
    """What the patterns find in the sample; that each matches was checked when the config was read."""
    place = f"{checked.place}.metrics.pattern"
    metrics = checked.study.program_metrics
    if metrics is None or not metrics.patterns or not metrics.sample_lines:
        return
    rows, unread = parse_lines(metrics.compiled, metrics.sample_lines)
    texts = {name: value for row in rows for name, value in row.items()}
    numbers = numeric_row(texts)
    if problem := next(iter(unread.values()), ""):
        yield Finding(place, "fails", problem)
    elif words := [name for name in texts if name not in numbers]:
        message = f"finds {texts[words[0]]!r} for {words[0]}, which is not a number"
        yield Finding(place, "fails", message, f"write (?P<{words[0]}>{{number}})")
    else:
        listed = ", ".join(f"{name} = {value:.6g}" for name, value in numbers.items())
        yield Finding(place, "ok", f"finds {listed} in the sample")
    study = checked.study
    complete = checked.study.complete
    last = complete.epoch if complete else None
    counts = [value for key, values in study.argument_values.items() if "epoch" in key for value in values]
    counts += map(float, re.findall(r"epochs?\W+(\d+)", str(study.started_command)))
    if last and last in counts and any(numeric_row(row).get("epoch") == 0 for row in rows):
        message = f"the sample counts epochs from 0, so that the last of {last:g} is {last - 1:g}"
        yield Finding(f"{checked.place}.complete.epoch", "warns", message, f"write {{epoch: {last - 1:g}}}")


def _check_throughput(checked: CheckedStudy[ScriptScaling]) -> Iterator[Finding]:
    """Whether the throughput of a script on several GPUs is known to be that of one GPU or of all."""
    study = checked.study
    if study.per or study.metrics is None or set(study.scales) == {"1x1"}:
        return
    if "images_per_second" in study.metrics.groups:
        message = "whether the script prints `images_per_second` of one GPU or of all is unknown"
        yield Finding(
            f"{checked.place}.per", "warns", f"{message}: it is taken for all", "set `per: gpu` or `per: all`"
        )


def _check_ranking(checked: CheckedStudy[Sweep]) -> Iterator[Finding]:
    """Which metric ranks the trials, and whether a smaller or a larger one is taken to be better, by its name."""
    study = checked.study
    place = checked.place
    is_by_seconds = study.keeps_output and not study.program_metrics and study.target[0] is None
    if is_by_seconds and _count_trials(study) > 1:
        remedy = "say where they are, as in metrics: {pattern: 'acc=(?P<acc>{number})'}, or set `metric: seconds`"
        yield Finding(f"{place}.metrics", "warns", "without metrics, trials are ranked by their seconds", remedy)
    groups = study.program_metrics.groups if study.program_metrics else []
    metric, mode = study.target
    metric, mode = (metric, mode) if metric else study.ranking_metric(groups) or (None, None)
    if metric is None and len(candidates := study.ranking_candidates(groups)) > 1 and _count_trials(study) > 1:
        names = f"{', '.join(candidates[:-1])} and {candidates[-1]}"
        message = f"trials report {names}, and the config names none to rank them by"
        yield Finding(f"{place}.metric", "fails", message, "set `metric`")
    named: list[tuple[str, str, Mode | None]] = [("mode", metric, mode)] if metric else []
    if study.objectives:
        named = [(f"objectives.{name}", name, objective) for name, objective in study.objectives.items()]
    for key, name, chosen in named:
        if chosen == "max" and guess_mode(name) == "min":
            yield Finding(f"{place}.{key}", "warns", f"max, but by its name a smaller {name} is better")
    known = (*TRAINING_METRICS, *(f"best_{name}" for name in TRAINING_METRICS))
    if metric is None or metric in known or study.mode or mode not in (None, guess_mode(metric)):
        return
    better, other = ("smaller", "max") if guess_mode(metric) == "min" else ("larger", "min")
    yield Finding(f"{place}.mode", "ok", f"a {better} {metric} is better, by its name", f"or set `mode: {other}`")


# In the order of their findings, each with the studies that it is about.
STUDY_CHECKS: tuple[tuple[Any, Callable[[CheckedStudy[Any]], Iterable[Finding]]], ...] = (
    (Sweep, _check_trials),
    (ProgramSweep, _check_keys),
    (CommandSweep, _check_fixed_values),
    (Sweep, _check_slots),
    (Trained, _check_model_arguments),
    (Trained, _check_batches),
    (Trained, _check_average),
    (CommandOptions, _check_patterns),
    (ScriptScaling, _check_throughput),
    (Sweep, _check_ranking),
    (CommandOptions, check_script_source),
    (CommandOptions, _check_folder),
    (CommandOptions, _check_completing_file),
    (CommandSweep, check_program),
    (CommandOptions, check_environment),
)
