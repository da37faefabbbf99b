"""A short run of a training script, which shows where its metrics are and whether it writes where it runs."""

import fnmatch
import importlib.util
import logging
import math
import re
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainyard.cli.first_config import Observed, Values, Varied, build_command, input_words
from trainyard.cluster import host
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.placeholders import PORT, build_argv
from trainyard.config.settings import SETTINGS
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import WANDB_RUNS, Metrics
from trainyard.planning.task import output_name
from trainyard.programs.metrics import MetricsCollector
from trainyard.programs.pattern_guess import (
    NoMetric,
    best_varied_metric,
    find_decimal_comma,
    guess_pattern,
    held_out_values,
    tells_more,
)
from trainyard.programs.runner import OUT_OF_TIME, ProgramRun, as_own_job, run_user_program, trial_environment
from trainyard.programs.script_options import Script, ScriptOption
from trainyard.programs.user_environment import program_environment, resolve_program_paths
from trainyard.programs.wandb_runs import wandb_environment
from trainyard.utils.guarded_process import ProcessGuard
from trainyard.utils.typed_commands import trainyard_call

GRACE_SECONDS: Final = 5.0
FIRST_LINES: Final = 5_000  # of output that are kept,
LAST_LINES: Final = 5_000  # and of its end
ENOUGH_VALUES: Final = 3  # of one metric of held-out data: the run ends,
LEAST_SECONDS: Final = 10.0  # but not before: a better metric may come less often
FILES: Final = (".jsonl", ".txt", ".log", ".csv", ".tsv", ".json")  # that may have metrics
TRACKERS: Final = frozenset(("wandb", "mlruns", ".hydra"))  # folders of files that are not for others to read
# In a path, what is new in each run: its number, or the time of its start.
_RUN_NUMBER: Final = re.compile(
    r"(?<=version_)\d+"
    r"|(?<!\d)20\d\d-?\d\d-?\d\d(?:[T_ -]?\d\d[-:_]?\d\d(?:[-:_]?\d\d)?)?(?!\d)"
    r"|(?<!\d)\d\d[-:]\d\d[-:]\d\d(?!\d)|\d{9,}"
)
_ULTRALYTICS: Final = re.compile(r"^(runs/\w+/[a-z]+)\d*(?=/results\.csv$)")  # train, then train2
_CHECKPOINT: Final = re.compile("ckpt|checkpoint", re.IGNORECASE)
_STEP: Final = re.compile("step|iter|epoch", re.IGNORECASE)  # in the name of a column
MOST_ROWS: Final = 50  # of a file of metrics without epochs; more are predictions, say
log = logging.getLogger("init")


class _Output:
    """The output of a run, which ends once it has shown enough."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._began = time.monotonic()
        self._first = list[str]()
        self._last = deque[str](maxlen=LAST_LINES)
        self._values = dict[str, set[float | int | None]]()

    @property
    def lines(self) -> list[str]:
        """The first and the last lines."""
        return [*self._first, *self._last]

    def take(self, line: str) -> None:
        """Take a line; called in another thread."""
        (self._first if len(self._first) < FIRST_LINES else self._last).append(line)
        for name, value in held_out_values(line).items():
            self._values.setdefault(name, set()).add(value)
        is_enough = any(len(values) >= ENOUGH_VALUES for values in self._values.values())
        if is_enough and time.monotonic() - self._began > LEAST_SECONDS:
            self._stop.make()


def observe(script: Script, varied: Varied, seconds: float) -> Observed:
    """Run the script with its defaults for at most `seconds`, or until a metric of held-out data has changed.

    It runs in a temporary folder, so that it overwrites nothing, with its inputs by their absolute paths.
    """
    stop = StopRequest()
    output = _Output(stop)
    command = build_command(script, varied, inputs=input_words(script, must_exist=True))
    values = {key: _example(option, values) for key, (option, values) in varied.items()}
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-init-") as folder,
        closing(ProcessGuard()) as guard,
        host.reserved_port() as port,
    ):
        here = Path(folder, "here")
        own = Path(folder, "trial")
        here.mkdir()
        own.mkdir()
        environment = trial_environment(program_environment(), trial="init", folder=own, cpus=1, start=Path.cwd())
        if script.source.uses_wandb:
            environment = wandb_environment(environment, values, own, run="init", group="init")
        placeholders = {"trial_dir": str(own), PORT: port, SETTINGS: str(Path(script.settings_file).absolute())}
        run = ProgramRun(
            command=build_argv(resolve_program_paths(command, Path.cwd()), values, placeholders),
            cwd=str(here),
            environment=as_own_job(environment, folder=own, cpus=1, port=port),
            output=Path(folder, "output.log"),
            metrics=MetricsCollector(None, own),
            deadline=time.time() + seconds,
            grace_seconds=GRACE_SECONDS,
            stop_request=stop,
            on_line=output.take,
        )
        ended = run_user_program(run, guard)
        inputs = {Path(option.default).parts[:1] for option in script.options if option.is_input}
        written = {path.relative_to(here).parts[:1] for path in here.rglob("*") if path.is_file()} - inputs
        rejected = NoMetric()
        observed = _find_metrics(output.lines, [own, here], [str(value) for value in values.values()], rejected)
    if ended.error == OUT_OF_TIME:
        longer = trainyard_call("init", str(script.path), "--seconds", f"{10 * seconds:g}")
        log.info("%s still ran after %g s, and was ended; for a longer run: `%s`", script.path, seconds, longer)
    writes_here = bool(written)
    if observed and observed.metrics:
        where = observed.metrics.file or "; ".join(observed.metrics.sample_lines)
        where = "event files of TensorBoard" if observed.metrics.has_event_files else where
        where = "what it logs to W&B" if observed.metrics.is_wandb else where
        log.info("its metrics: %s, to be ranked by %s", where, observed.metric)
        log.info("this is a guess: %s", observed.guess)
        return replace(observed, writes_here=writes_here)
    if ended.status is TrialStatus.FAILED:
        python = shutil.which("python", path=run.environment.get("PATH"))
        log.info("%s failed here, so that its metrics are not known: %s (python: %s)", script.path, ended.error, python)
        return Observed(problem="it failed when it was tried")
    count = len(output.lines)
    problem = str(rejected) or f"its output ({count} lines) has no loss or accuracy, and it wrote no file with one"
    if number := find_decimal_comma(output.lines):
        problem = f"it prints numbers with a decimal comma ({number}), which are not read: have it print a point"
    log.info("%s", problem)
    if ended.error == OUT_OF_TIME:
        problem = f"in the first {seconds:g} s, {problem}"
    return Observed(writes_here=writes_here, problem=problem)


def _example(option: ScriptOption, values: Values) -> Any:
    if option.default is not None:
        return option.default
    return values["low"] if isinstance(values, dict) else values[0]


def _find_metrics(
    lines: Sequence[str], folders: Sequence[Path], settings: Collection[str], rejected: NoMetric
) -> Observed | None:
    """The metrics of a run: in a file, unless its output has a better one, or else in W&B's or TensorBoard's files.

    `settings` are the values of the varied options, which may be in the name of a file.
    """
    in_file = next(filter(None, (_in_files(folder, settings, rejected) for folder in folders)), None)
    guess = guess_pattern(lines, rejected)
    in_output = None
    if guess:
        in_output = Observed(Metrics(pattern=guess.pattern, sample=guess.sample), guess.metric, guess.values)
    if in_file and in_output:
        is_better = tells_more(in_output.metric, in_file.metric)
        return in_output if is_better or not in_file.has_epochs else in_file
    in_run = _read(Metrics(file=WANDB_RUNS), folders[0], rejected) if not in_file and not in_output else None
    return in_file or in_output or in_run or next(filter(None, (_in_events(each, rejected) for each in folders)), None)


def _in_files(folder: Path, settings: Collection[str], rejected: NoMetric) -> Observed | None:
    """The file in a folder whose metric tells most."""
    best = None
    paths = sorted(folder.rglob("*"))
    series = Counter(re.sub(r"\d+", "*", str(path)) for path in paths)
    for path in paths:
        name = path.relative_to(folder)
        if path.suffix not in FILES or not path.is_file() or not TRACKERS.isdisjoint(name.parts):
            continue
        if series[re.sub(r"\d+", "*", str(path))] > 1 or _CHECKPOINT.search(name.stem):  # with one row each
            continue
        found = _read(Metrics(file=file_pattern(str(name), settings)), folder, rejected)
        if found and (best is None or tells_more(found.metric, best.metric)):
            best = found
    return best


def file_pattern(name: str, settings: Collection[str] = ()) -> str:
    """A pattern for the file of other runs, if its name has a number, a time or a setting that they do not share."""
    pattern = _ULTRALYTICS.sub(r"\1*", _RUN_NUMBER.sub("*", name))
    for text in settings:
        if len(text) > 1:
            pattern = re.sub(rf"(?<![\d.*]){re.escape(text)}(?![\d.]*\d)", "*", pattern)
    is_of_trainyard = fnmatch.fnmatch(output_name(1), pattern)
    return pattern.replace("*", "[0-9]*", 1) if is_of_trainyard else pattern


def _in_events(folder: Path, rejected: NoMetric) -> Observed | None:
    if not any(folder.rglob("*tfevents*")):
        return None
    if not importlib.util.find_spec("tensorboard"):
        log.info("its event files of TensorBoard need the package tensorboard: install trainyard[tensorboard]")
        return None
    return _read(Metrics(file="**"), folder, rejected)  # the names of folders often have the time of the run


def _read(metrics: Metrics, folder: Path, rejected: NoMetric) -> Observed | None:
    """The metric in files that tells most; None if there is none, or if they are a table of something else."""
    collector = MetricsCollector(metrics, folder, began=0.0, burst=math.inf)
    rows = collector.new_rows(final=True)
    metric, values = best_varied_metric(rows, rejected)
    has_epochs = collector.counts_epochs or any(map(_STEP.search, collector.latest))
    if not metric or (len(rows) > MOST_ROWS and not has_epochs):
        return None
    return Observed(metrics, metric, values, has_epochs)
