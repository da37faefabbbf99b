"""A short run of a training script, which shows where its metrics are and whether it writes where it runs."""

import importlib.util
import logging
import shutil
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from trainyard.cli.first_config import Observed, Values, Varied, build_command, input_words
from trainyard.cluster.stop_request import StopRequest
from trainyard.config.placeholders import build_argv
from trainyard.config.trial_status import TrialStatus
from trainyard.config.user_programs import Metrics
from trainyard.programs.metrics import MetricsCollector
from trainyard.programs.pattern_guess import best_metric, guess_pattern, is_held_out
from trainyard.programs.runner import ProgramRun, run_user_program, trial_environment
from trainyard.programs.script_options import Script, ScriptOption
from trainyard.programs.trial_messages import TrialEnded
from trainyard.programs.user_environment import program_environment, resolve_program_paths
from trainyard.utils.guarded_process import ProcessGuard

GRACE_SECONDS: Final = 5.0
MOST_LINES: Final = 10_000  # of output that are kept
FILES: Final = (".jsonl", ".txt", ".log", ".csv", ".json")  # that may have metrics
log = logging.getLogger("init")


def observe(script: Script, varied: Varied, seconds: float) -> Observed:
    """Run the script with its defaults for at most `seconds`, or until it has printed a metric of held-out data.

    It runs in a temporary folder, so that it overwrites nothing, with its inputs by their absolute paths.
    """
    lines, stop = list[str](), StopRequest()

    def take(line: str) -> None:
        if len(lines) < MOST_LINES:
            lines.append(line)
        if (guess := guess_pattern([line])) and is_held_out(guess.metric):
            stop.make()

    command = build_command(script, varied, inputs=input_words(script, must_exist=True))
    values = {key: _example(option, values) for key, (option, values) in varied.items()}
    with tempfile.TemporaryDirectory(prefix="trainyard-init-") as folder, closing(ProcessGuard()) as guard:
        here, own = Path(folder, "here"), Path(folder, "trial")
        here.mkdir()
        own.mkdir()
        run = ProgramRun(
            command=build_argv(resolve_program_paths(command, Path.cwd()), values, {"trial_dir": str(own)}),
            cwd=str(here),
            environment=trial_environment(program_environment(), trial="init", folder=own, cpus=1, start=Path.cwd()),
            output=Path(folder, "output.log"),
            metrics=MetricsCollector(None, own),
            deadline=time.time() + seconds,
            grace_seconds=GRACE_SECONDS,
            stop_request=stop,
            on_line=take,
        )
        ended = _end_of(run_user_program(run, guard))
        inputs = {Path(option.default).parts[:1] for option in script.options if option.is_input}
        written = {path.relative_to(here).parts[:1] for path in here.rglob("*") if path.is_file()} - inputs
        found = _metrics_of(lines) or _metrics_in(here if written else own)
    metrics, metric = found or (None, "")
    if metrics:
        place = "event files of TensorBoard" if metrics.tensorboard else metrics.file or metrics.sample
        log.info("its metrics: %s, to be ranked by %s", place, metric)
    elif ended.status is TrialStatus.FAILED:
        python = shutil.which("python", path=run.environment.get("PATH"))
        log.info("%s failed here, so that its metrics are not known: %s (python: %s)", script.path, ended.error, python)
        return Observed()
    else:
        log.info("its output (%d lines) has no loss or accuracy, and it wrote no file with one", len(lines))
    is_known = bool(written) or ended.status is TrialStatus.FINISHED
    return Observed(metrics, metric, writes_here=bool(written) if is_known else None)


def _end_of(run: Generator[Any, Any, TrialEnded]) -> TrialEnded:
    try:
        while True:
            next(run)
    except StopIteration as end:
        ended: TrialEnded = end.value
        return ended


def _example(option: ScriptOption, values: Values) -> Any:
    if option.default is not None:
        return option.default
    return values["low"] if isinstance(values, dict) else values[0]


def _metrics_of(lines: Sequence[str]) -> tuple[Metrics, str] | None:
    guess = guess_pattern(lines)
    return (Metrics(pattern=guess.pattern, sample=guess.sample), guess.metric) if guess else None


def _metrics_in(folder: Path) -> tuple[Metrics, str] | None:
    """A file of metrics in a folder, and the metric that tells how good a trial is."""
    written = sorted(path for path in folder.rglob("*") if path.suffix in FILES)
    candidates = [Metrics(file=str(path.relative_to(folder))) for path in written]
    if any(folder.rglob("*tfevents*")):
        if importlib.util.find_spec("tensorboard"):
            candidates.append(Metrics(tensorboard="**"))  # the names of folders often have the time of the run
        else:
            log.info("its event files of TensorBoard need the package tensorboard: install trainyard[tensorboard]")
    for metrics in candidates:
        collector = MetricsCollector(metrics, folder, resumes=True)
        collector.new_rows(final=True)
        if metric := best_metric(collector.latest):
            return metrics, metric
    return None
