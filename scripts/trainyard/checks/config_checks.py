"""Checks of a config before a job is queued, by `snakemake -n`, by `make check` and at the start of a run.

What the config alone decides is checked when it is read (`config/load.py`). Here follows what depends on files, on the
data and on a user's code. The state of a cluster is checked by `make doctor`.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trainyard.checks.code_checks import check_code
from trainyard.checks.findings import Finding
from trainyard.checks.program_checks import (
    CheckedStudy,
    check_environment,
    check_notify,
    check_program,
    check_script,
    check_source,
)
from trainyard.checks.script_checks import check_script_source
from trainyard.config.config import Config
from trainyard.config.metric_names import TRAINING_METRICS, Mode, guess_mode
from trainyard.config.placeholders import dotted_items
from trainyard.config.scaling import ScriptScaling, TrainScaling, split_scale
from trainyard.config.sweep import CommandSweep, ProgramSweep, Sweep, TrainSweep
from trainyard.config.train import BUILT_IN_MODEL_ARGS, Train
from trainyard.config.trials import expand, trainings
from trainyard.data.known_images import KnownImages, known_images
from trainyard.planning.journal import journal_files
from trainyard.planning.plan import read_state
from trainyard.planning.search import read_evidence
from trainyard.programs.metric_patterns import PatternParser
from trainyard.programs.metric_rows import numeric_row
from trainyard.utils.errors import UserError
from trainyard.utils.text import count_of, suggest


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
        checked = CheckedStudy(place, study, images, has_scheduler, dry_run, may_be_elsewhere)
        for check in STUDY_CHECKS:
            yield from check(checked)
    yield from _check_evidence(config, results)
    yield from _check_budgets(config, results)
    yield from check_code(config, results, anew=anew, other_environment=other_environment)


def _check_evidence(config: Config, results: Path) -> Iterator[Finding]:
    """The files from which searches learn that lack something; a sweep of the config writes its own one before."""
    for name, sweep in config.sweeps.items():
        place, given = f"sweeps.{name}.search", config.evidence_of(name, results)
        for path in (path for path, source in given.items() if source == name):
            message = f"evidence: {path} is the table of this sweep, whose trials count anyway"
            yield Finding(place, "fails", message, "leave it out")
        paths = [path for path, source in given.items() if source is None or (source != name and Path(path).exists())]
        for path in paths if paths and read_state(sweep, name, results).space.undrawn_count else ():
            try:
                read_evidence(sweep, path)
            except UserError as error:
                yield Finding(place, "warns" if given[path] else "fails", str(error))


def _check_budgets(config: Config, results: Path) -> Iterator[Finding]:
    """The times that have passed before their sweep has begun; later ones end the sweep as it is."""
    for name, sweep in config.sweeps.items():
        if not (budget := sweep.budget) or budget.end_time(math.inf) > time.time():
            continue
        if not journal_files(results / "sweeps" / name):
            message = f"{budget.until} has passed, and the sweep has not begun"
            yield Finding(f"sweeps.{name}.budget.until", "fails", message, "give a later time, or remove it")


def _check_trials(checked: CheckedStudy) -> Iterator[Finding]:
    """The number of trials; that each is valid, and has a cost, was checked when the config was read."""
    if isinstance(sweep := checked.study, Sweep):
        cost = f", their cost by {sweep.cost}" if sweep.cost else ""
        yield Finding(checked.place, "ok", f"{count_of(_count_trials(sweep), 'trial')}{cost}")


def _check_keys(checked: CheckedStudy) -> Iterator[Finding]:
    """Keys of `trials` that only the program knows, but that are similar to one of the search which the trial lacks."""
    if not isinstance(sweep := checked.study, ProgramSweep) or not sweep.search:
        return
    used = sweep.find_names(sweep.command) if isinstance(sweep, CommandSweep) else set[str]()
    searched = sweep.search.values.keys()
    known = {*searched, *(key for key, _ in dotted_items(sweep.base))}
    for index, values in enumerate(sweep.trials):
        missing = searched - values.keys()
        for key in (key for key in values if missing and key not in known and key.partition(".")[0] not in used):
            if (hint := suggest(key, missing, otherwise="-")) != "-":
                yield Finding(f"{checked.place}.trials.{index}.{key}", "warns", "is no key of `search` or `args`", hint)


def _check_slots(checked: CheckedStudy) -> Iterator[Finding]:
    """GPUs that no trial gets, because a trial has several and their number does not divide that of a node."""
    if not isinstance(sweep := checked.study, Sweep) or sweep.goal is not None or sweep.slots.node_share <= 1:
        return
    slots, used = sweep.slots, sweep.slots.count * int(sweep.slots.node_share)
    if idle := slots.gpus_per_node - used:
        message = f"{idle} of {slots.gpus_per_node} GPUs of each node idle, as a trial has {int(slots.node_share)}"
        yield Finding(f"{checked.place}.slots", "warns", message, f"request {used}, or {used + int(slots.node_share)}")


def _count_trials(sweep: Sweep) -> int:
    return sweep.distinct_draw_count + len(expand(sweep).trials)


def _check_folder(checked: CheckedStudy) -> Iterator[Finding]:
    """Whether nothing in the config keeps the files of several trials or scales apart."""
    match study := checked.study:
        case CommandSweep():
            command, own, what, count = study.command, {"trial_dir", "trial"}, "trials", _count_trials(study)
        case ScriptScaling():
            command, own, what = study.script, {"out_dir"}, "runs"
            count = sum(len(study.runs(scale)) for scale in study.scales)
        case _:
            return
    if count < 2 or "workdir" in study.model_fields_set or own & study.find_names(command):
        return
    if "TRAINYARD_TRIAL_DIR" not in str(command):
        folder = f"`{{{sorted(own)[-1]}}}`"
        message = f"{count} {what} run in one folder, and may overwrite each other's files"
        own_folder = "`workdir: trial`, with absolute paths of its inputs"
        remedy = f"let the program write to {folder}, or set {own_folder}; `keep` if it writes none"
        yield Finding(f"{checked.place}.workdir", "warns", message, remedy)


def _check_model_arguments(checked: CheckedStudy) -> Iterator[Finding]:
    """Arguments that Trainyard's own models do not have; other models are tried in another process."""
    specs = trainings(checked.study)
    given = ((spec.model, key, value) for spec in specs for key, value in spec.model_args.items())
    found: dict[Finding, None] = {}  # each once
    for model, key, value in given:
        known = BUILT_IN_MODEL_ARGS.get(model)
        where = f"{checked.place}.train.model_args.{key}"
        if known and key not in known:
            found[Finding(where, "fails", f"is not an argument of {model}", suggest(key, known))] = None
        elif known and (type(value) is not int or value < (key == "width")):
            found[Finding(where, "fails", "must be a positive integer", f"it is {value!r}")] = None
    yield from found


def _check_batches(checked: CheckedStudy) -> Iterator[Finding]:
    """The largest global batch is not larger than the number of training images."""
    study, place, images = checked.study, f"{checked.place}.train.batch_size", checked.images
    if not isinstance(study, (TrainSweep, TrainScaling)):
        return
    batch, where = max(_largest_step(study, spec) for spec in trainings(study))
    if images.training_images is None:
        message = f"{batch:,} images per step{where}: the number of images is known once they are staged"
        yield Finding(place, "unknown", message, "Snakemake's target `data` stages them")
    elif batch > images.training_images:
        message = f"the global batch of {batch:,} images{where} is larger than the {images.training_images:,} images"
        yield Finding(place, "fails", f"{message} for training", "lower it")
    else:
        yield Finding(place, "ok", f"{batch:,} images per step{where}, of {images.training_images:,}")


def _largest_step(study: TrainSweep | TrainScaling, spec: Train) -> tuple[int, str]:
    """The images of a training's largest step, and at which scale it has them."""
    if isinstance(study, TrainSweep):
        return spec.images_per_step(), ""
    gpus = {scale: nodes * count for scale in study.scales for nodes, count in [split_scale(scale)]}
    largest = max(gpus, key=lambda scale: gpus[scale])
    return spec.images_per_step(gpus=gpus[largest], is_strong=study.mode == "strong"), f" at {largest}"


def _check_average(checked: CheckedStudy) -> Iterator[Finding]:
    """Averages of the weights in trainings that are too short for their decay."""
    study, images = checked.study, checked.images.training_images
    if not isinstance(study, (TrainSweep, TrainScaling)) or images is None:
        return
    findings: dict[Finding, None] = {}  # each once
    for spec in trainings(study):
        batch, where = _largest_step(study, spec)
        steps = images // batch * spec.epochs
        if spec.ema_decay is None or not steps:
            continue
        last = spec.ema_decay_after(steps - 1)
        if last < spec.ema_decay:
            message = f"{spec.ema_decay:g} is not reached in {count_of(steps, 'step')}{where}: it ends at {last:.4g}"
            remedy = f"lower it, or train longer: all values above {last:.4g} give the same average"
            findings[Finding(f"{checked.place}.train.ema_decay", "warns", message, remedy)] = None
    yield from findings


def _check_patterns(checked: CheckedStudy) -> Iterator[Finding]:
    """What the patterns find in the sample; that each matches was checked when the config was read."""
    place, metrics = f"{checked.place}.metrics.pattern", checked.study.program_metrics
    if metrics is None or not metrics.patterns:
        return
    if not metrics.sample_lines:
        message = "not compared with the output of your program before it runs"
        yield Finding(place, "unknown", message, "give `sample`, lines of its output")
        return
    parser = PatternParser(metrics.compiled)
    for line in metrics.sample_lines:
        parser.add_line(line)
    found = {name: value for row in parser.take_rows(final=True) for name, value in row.items()}
    numbers = numeric_row(found)
    if parser.warning:
        yield Finding(place, "fails", parser.warning)
    elif words := [name for name in found if name not in numbers]:
        message = f"finds {found[words[0]]!r} for {words[0]}, which is not a number"
        yield Finding(place, "fails", message, f"write (?P<{words[0]}>{{number}})")
    else:
        listed = ", ".join(f"{name} = {value:.6g}" for name, value in numbers.items())
        yield Finding(place, "ok", f"finds {listed} in the sample")


def _check_throughput(checked: CheckedStudy) -> Iterator[Finding]:
    """Whether the throughput of a script on several GPUs is known to be that of one GPU or of all."""
    study = checked.study
    if not isinstance(study, ScriptScaling) or study.per or study.metrics is None or set(study.scales) == {"1x1"}:
        return
    if "images_per_second" in study.metrics.groups:
        message = "whether the script prints `images_per_second` of one GPU or of all is unknown"
        yield Finding(
            f"{checked.place}.per", "warns", f"{message}: it is taken for all", "set `per: gpu` or `per: all`"
        )


def _check_ranking(checked: CheckedStudy) -> Iterator[Finding]:
    """Which metric ranks the trials, and whether a smaller or a larger one is taken to be better, by its name."""
    study, place = checked.study, checked.place
    if not isinstance(study, Sweep):
        return
    is_by_seconds = isinstance(study, CommandSweep) and not study.program_metrics and study.target[0] is None
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
    train = study.train if isinstance(study, TrainSweep) else None
    if train and train.monitor_mode and metric in (train.monitor, train.best_metric):
        return
    better, other = ("smaller", "max") if guess_mode(metric) == "min" else ("larger", "min")
    yield Finding(f"{place}.mode", "ok", f"a {better} {metric} is better, by its name", f"or set `mode: {other}`")


STUDY_CHECKS: tuple[Callable[[CheckedStudy], Iterable[Finding]], ...] = (
    _check_trials,
    _check_keys,
    _check_slots,
    _check_model_arguments,
    _check_batches,
    _check_average,
    _check_patterns,
    _check_throughput,
    _check_ranking,
    check_script,
    check_script_source,
    _check_folder,
    check_program,
    check_environment,
)
