"""The resume drill: a trial of each sweep is interrupted as at the end of its job, continued, and compared.

A program runs once undisturbed, and once more until about the middle, where it gets its stop signal and, after the
grace period of this site, SIGKILL. The driver of the sweep then runs it again, as in the next job. The metrics from
there on must be those of the undisturbed run; where they are not, a second undisturbed run shows how much two runs
differ anyway. A program that does not resume is tried with the other signals that its source names. One that does is
killed while it writes a checkpoint, too.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from trainyard.checks.findings import Finding, Verdict
from trainyard.checks.script_checks import named_signals
from trainyard.cluster.slurm_queries import controller_settings
from trainyard.config.config import Config
from trainyard.config.load import check_config
from trainyard.config.metric_names import is_counter, is_timing
from trainyard.config.placeholders import TRIAL_DIR
from trainyard.config.sweep import Sweep
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import Trial, trials_to_check
from trainyard.config.user_programs import checkpoints_of
from trainyard.planning.attempts import Fold
from trainyard.planning.history import dataset_digest, read_state
from trainyard.planning.journal import Ended, Epoch, Resumed
from trainyard.planning.trial_space import NOT_STAGED
from trainyard.programs.metrics import MetricsCollector
from trainyard.results.best_config import best_config
from trainyard.utils.errors import UserError
from trainyard.utils.files import write_json
from trainyard.utils.guard import kill_tree
from trainyard.utils.guarded_process import processes_ended
from trainyard.utils.import_path import SCRIPTS
from trainyard.utils.text import count_of, format_duration, list_some

FOLDER: Final = "drill"  # in the results
POLL_SECONDS: Final = 0.2
LAG_SECONDS: Final = 1.0  # at most, from the report of a row to its record
LEAST_ROWS: Final = 3  # of metrics in an undisturbed run
MOST_FILES: Final = 100_000  # in the folder where programs run, whose changes are looked for
CHECKPOINTS: Final = re.compile(r"\.(pt|pth|ckpt|bin|safetensors|pkl|h5|npz)$|checkpoint", re.IGNORECASE)
_LOGS: Final = re.compile(r"\.(log|txt|csv|jsonl?|ya?ml|wandb)$|tfevents", re.IGNORECASE)
SAVE_POLL_SECONDS: Final = 0.02  # between two looks for a file that is being written
RENAME: Final = "write it to a name that `checkpoint` does not match, and then rename it, as by `os.replace`"
KILLED: Final = (-9, 137)  # exit codes
ROUNDING: Final = 1e-6  # of the largest value of a metric
NEAR: Final = 0.03  # of the range of a metric in the undisturbed run: no difference that matters,
FAR: Final = 0.15  # and a failure
RESUME_OPTION: Final = "`resume: --resume {resume_from}`, with your program's own option"
log = logging.getLogger(__name__)
Row = Mapping[str, Any]  # metrics, with their epoch


def drill(config: Config, results: Path, *, minutes: float) -> Iterator[Finding]:
    """The findings of the drill of each sweep of a command or function; no run takes longer than `minutes`."""
    for name, sweep in config.sweeps.items():
        place = f"sweeps.{name}"
        if sweep.resumption:
            yield Finding(place, "ok", sweep.resumption)
        elif sweep.dataset and dataset_digest(results, sweep) == NOT_STAGED:
            yield Finding(place, "unknown", "its dataset is not staged", "Snakemake's target `data` stages it")
        else:
            with tempfile.TemporaryDirectory(prefix="drill-") as temporary:
                yield from _Drill(config, name, results, 60 * minutes, Path(temporary)).findings()


# ---- runs


@dataclass
class Launch:
    """What one run of the driver has recorded of the trial."""

    rows: list[Row] = field(default_factory=list)  # as they were reported
    times: list[float] = field(default_factory=list)  # of the rows, Unix seconds
    checkpoint: str = ""  # from which the program was to resume, and when it was written
    checkpoint_time: float = 0.0
    end: Ended | None = None
    seconds: float = 0.0
    damage: str = ""  # the error with which an attempt failed at once on a checkpoint
    was_stopped: bool = False  # by SIGTERM to the driver
    last_line: str = ""  # of the driver

    @property
    def is_finished(self) -> bool:
        """Whether the program ended by itself and succeeded."""
        return self.end is not None and self.end.status in (TrialStatus.FINISHED, TrialStatus.UNREADABLE)

    @property
    def is_interrupted(self) -> bool:
        """Whether it was ended by the signal to the driver."""
        return self.was_stopped and self.end is not None and self.end.status is TrialStatus.INTERRUPTED

    @property
    def never_began(self) -> bool:
        """Whether the signal came before the driver had started the program."""
        return self.was_stopped and self.end is None

    @property
    def failure(self) -> str:
        """Why the program failed, or could not start; "" if neither."""
        if self.is_finished or self.is_interrupted or self.never_began:
            return ""
        return (self.end.error if self.end else None) or self.last_line

    @property
    def epochs(self) -> float:
        """How many are between the first and the last that it reported."""
        return float(self.rows[-1]["epoch"] - self.rows[0]["epoch"])


class Runs:
    """The launches of one trial, with results of their own."""

    def __init__(self, folder: Path, config: Config, name: str, *, data: Path, temporary: Path) -> None:
        self._folder = folder
        self._name = name
        self._temporary = temporary
        self._sweep = config.sweeps[name]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "data").symlink_to(data.absolute())
        write_json(folder / "config.json", config.model_dump(mode="json", exclude_unset=True))
        state = read_state(self._sweep, name, folder)
        trial = next(iter(state.trials))
        self._fold = Fold(state.folder)
        self.trial_folder = state.folder / "trials" / trial
        self._checkpoints = (state.folder / "checkpoints" / trial, "*")  # of a function
        if self._sweep.keeps_output:
            self._checkpoints = (self.trial_folder, self._sweep.checkpoint_pattern or "")

    def checkpoint_time(self) -> float | None:
        """When the oldest checkpoint was written, in Unix seconds; None without one."""
        folder, pattern = self._checkpoints
        with suppress(FileNotFoundError):  # it was replaced meanwhile
            return min((path.stat().st_mtime for path in folder.glob(pattern)), default=None) if pattern else None
        return None

    def launch(self, ends: Callable[[Launch], bool], *, poll_seconds: float = POLL_SECONDS) -> Launch:
        """Run the trial to its end, or until `ends` holds: then the driver gets SIGTERM, as from Slurm."""
        launch = Launch()
        began = time.monotonic()
        kept = self._kept_rows()
        config = str(self._folder / "config.json")
        folder = str(self._folder)
        options = ["--config", config, "--results", folder, "--sweep", self._name]
        output = self._folder / "sweep.log"
        with processes_ended() as mark, open(output, "ab") as file:
            environment = {**os.environ, **mark, "TMPDIR": str(self._temporary)}
            command = [sys.executable, str(SCRIPTS / "sweep.py"), *options]
            driver = subprocess.Popen(command, env=environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
            while driver.poll() is None:
                self._read(launch)
                if not launch.was_stopped and ends(launch):
                    driver.terminate()
                    launch.was_stopped = True
                time.sleep(poll_seconds)
        self._read(launch)
        if launch.checkpoint:
            del launch.rows[:kept], launch.times[:kept]
        launch.seconds = time.monotonic() - began
        launch.last_line = (output.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
        return launch

    def _read(self, launch: Launch) -> None:
        for _, event in self._fold.news():
            match event:
                case Epoch(metrics=row):
                    launch.rows.append(row)
                    launch.times.append(event.time)
                case Resumed(checkpoint=checkpoint):
                    launch.checkpoint = checkpoint["name"]
                    launch.checkpoint_time = checkpoint["modified_ns"] / 1e9
                case Ended():
                    launch.end = event
                    if event.status is TrialStatus.FAILED and event.retried and launch.checkpoint:
                        launch.damage = f"{launch.checkpoint}: {event.error}"
                        launch.checkpoint = ""

    def _kept_rows(self) -> int:
        """The rows that a file of metrics has before a launch, which reports them again if its program resumes."""
        metrics = self._sweep.program_metrics
        if metrics is None or metrics.file is None:
            return 0
        return len(MetricsCollector(metrics, self.trial_folder, began=0.0).new_rows(final=True))


def config_of_trial(config: Config, name: str, trial: Trial) -> Config:
    """A config with one trial of a sweep, which has no retries, and no more time to end than at this site."""
    raw = best_config(config, name, [trial], new_name=name)
    raw["sweeps"][name]["retries"] = 0
    if grace := config.sweeps[name].trial_grace_seconds:
        raw["sweeps"][name]["grace_seconds"] = min(grace, site_grace_seconds())
    return check_config(raw)


# ---- the drill


class _TooShort(Exception):
    """The time of a run was over before the program began."""


class _Drill:
    """The drill of one sweep."""

    def __init__(self, config: Config, name: str, results: Path, limit_seconds: float, temporary: Path) -> None:
        self._name = name
        self._results = results.absolute()
        self._limit = limit_seconds
        self._temporary = temporary
        self._place = f"sweeps.{name}"
        self._folder = self._results / FOLDER / name
        self._config = config_of_trial(config, name, trials_to_check(config.sweeps[name])[0])
        self._sweep = self._config.sweeps[name]

    def findings(self) -> Iterator[Finding]:
        """Run the drill. First the verdict, then what else there is to say of the program."""
        try:
            yield from self._try()
        except _TooShort:
            yield self._few_rows(0)

    def _try(self) -> Iterator[Finding]:
        shutil.rmtree(self._folder, ignore_errors=True)
        files = [self._list_files()]
        runs = self._runs("undisturbed")
        checkpoints = list[float]()

        def watch(found: Launch) -> None:
            if not checkpoints and (written := runs.checkpoint_time()):
                checkpoints.append(written)

        whole = self._launch(runs, watch)
        files.append(self._list_files())
        if problem := self._problem(whole):
            yield problem
            return
        before, after, saved = self._interrupt("interrupted", whole, checkpoints)
        if not before.is_interrupted:
            reason = before.failure or "it ended before it could be interrupted"
            yield Finding(self._place, "unknown", reason, "give the drill a trial that takes longer")
            return
        files.append(self._list_files())
        changed = [_changes(*pair) for pair in pairwise(files)]
        same = sorted(set.intersection(*changed))
        verdict = self._judge(whole, before, after, saved=saved, elsewhere=same)
        was_killed = before.end is not None and before.end.exit_code in KILLED
        remedy = ""
        if (was_killed or verdict.verdict != "ok") and (name := self._find_signal(whole, checkpoints)):
            remedy = f"add `stop_signal: {name}`: it then saves its state, and resumes"
        yield replace(verdict, remedy=remedy) if remedy and verdict.verdict != "ok" else verdict
        if was_killed:
            message = f"it did not end at its stop signal, and was killed after {self._sweep.trial_grace_seconds:g} s"
            remedy = remedy or "let it save its state and exit at SIGTERM"
            yield Finding(f"{self._place}.grace_seconds", "warns", message, remedy)
        if same:
            message = f"each run writes {list_some(same)} in {Path.cwd()}, where trials overwrite the files of others"
            yield Finding(f"{self._place}.workdir", "warns", message, "use {trial_dir}, or `workdir: trial`")
        elif others := sorted(set.union(*changed) if all(changed) else ()) + sorted(list_files(self._temporary)):
            yield Finding(f"{self._place}.workdir", "ok", f"leaves {list_some(others)} outside of its folder")
        if verdict.verdict == "ok":
            yield from self._kill_in_save(whole, checkpoints)
            shutil.rmtree(self._folder)

    def _interrupt(self, what: str, whole: Launch, checkpoints: Sequence[float]) -> tuple[Launch, Launch, list[str]]:
        """A run that is interrupted, the next one, which continues it, and the files that the first has left."""
        runs = self._runs(what)
        before = self._launch(runs, _interruption(whole, runs, checkpoints))
        saved = sorted(_changes({}, list_files(runs.trial_folder)))
        if not before.is_interrupted:
            return before, before, saved
        last = None if whole.is_finished or not whole.rows else whole.rows[-1]["epoch"]
        after = self._launch(runs, lambda found: last is not None and bool(found.rows) and _last(found) >= last)
        return before, after, saved

    def _kill_in_save(self, whole: Launch, checkpoints: Sequence[float]) -> Iterator[Finding]:
        """What a program does that was killed while it wrote a checkpoint; nothing if no save took long enough."""
        if not self._sweep.keeps_output or not self._sweep.checkpoint_pattern:
            return
        runs = self._runs("killed")
        saves = Saves(runs.trial_folder, self._sweep.checkpoint_pattern)
        is_late = _interruption(whole, runs, checkpoints)

        def ends(launch: Launch) -> bool:
            if saves.look():
                kill_tree(str(runs.trial_folder), variable=TRIAL_DIR)
                return True
            return is_late(launch)

        self._launch(runs, ends, poll_seconds=SAVE_POLL_SECONDS)
        if not saves.written:
            return
        after = self._launch(runs, lambda found: bool(found.rows))
        place = f"{self._place}.checkpoint"
        when = f"killed while it wrote {saves.written}, it"
        starts = f"then resumes from {after.checkpoint}" if after.checkpoint else "then starts over"
        if after.failure:
            yield Finding(place, "fails", f"{when} fails when it continues: {after.failure}", RENAME)
        elif after.damage:
            yield Finding(place, "warns", f"{when} fails on {after.damage}; it {starts}", RENAME)
        elif after.checkpoint and Path(after.checkpoint) in (Path(saves.written), *Path(saves.written).parents):
            yield Finding(place, "warns", f"{when} gets it to resume from, and shows no error", RENAME)
        else:
            yield Finding(place, "ok" if after.checkpoint else "warns", f"{when} {starts}")

    def _find_signal(self, whole: Launch, checkpoints: Sequence[float]) -> str:
        """The first of the other signals in the source with which the program ends and resumes; "" without one."""
        own = self._config
        for name in named_signals(self._sweep):
            raw = own.model_dump(mode="json", exclude_unset=True)
            raw["sweeps"][self._name]["stop_signal"] = name
            self._config = check_config(raw)
            before, after, saved = self._interrupt(f"interrupted-{name}", whole, checkpoints)
            ended = before.is_interrupted and before.end is not None and before.end.exit_code not in KILLED
            if ended and self._judge(whole, before, after, saved=saved, elsewhere=[]).verdict == "ok":
                return name
        self._config = own
        return ""

    def _runs(self, what: str) -> Runs:
        log.info("%s: %s run, at most %s", self._place, what, format_duration(self._limit))
        data = self._results / "data"
        return Runs(self._folder / what, self._config, self._name, data=data, temporary=self._temporary)

    def _launch(
        self,
        runs: Runs,
        ends: Callable[[Launch], bool | None] = lambda launch: None,
        *,
        poll_seconds: float = POLL_SECONDS,
    ) -> Launch:
        began = time.monotonic()
        launch = runs.launch(
            lambda launch: bool(ends(launch)) or time.monotonic() - began > self._limit, poll_seconds=poll_seconds
        )
        if launch.never_began:
            raise _TooShort
        return launch

    def _list_files(self) -> dict[str, tuple[int, int]]:
        """The files where programs run."""
        return list_files(Path.cwd(), results=self._results)

    def _find(self, verdict: Verdict, message: str, remedy: str = "") -> Finding:
        return Finding(self._place, verdict, message, remedy)

    def _problem(self, whole: Launch) -> Finding | None:
        """Why an undisturbed run is no measure for an interrupted one."""
        if whole.failure:
            message = f"the program fails without an interruption: {whole.failure}"
            return self._find("fails", message, f"its output is in {self._folder}")
        if whole.end and whole.end.status is TrialStatus.UNREADABLE:
            return self._find("fails", str(whole.end.error), "correct `metrics`")
        for before, after in pairwise(row["epoch"] for row in whole.rows):
            if after < before:
                remedy = "let one process report, or `metrics` find the number of the epoch in each row"
                return self._find("unknown", f"its epochs go back from {before:g} to {after:g}", remedy)
        if len(whole.rows) >= LEAST_ROWS or (self._sweep.keeps_output and not self._sweep.program_metrics):
            return None
        if whole.is_finished:
            few = f"it reports {count_of(len(whole.rows), 'row')} of metrics in all"
            return self._find("unknown", few, f"{LEAST_ROWS} show whether it resumes")
        return self._few_rows(len(whole.rows))

    def _few_rows(self, count: int) -> Finding:
        message = f"it reported {count_of(count, 'row')} of metrics in {format_duration(self._limit)}"
        more = f"`--drill {2 * self._limit / 60:g}` gives it more time; or let its arguments give it less to do"
        return self._find("unknown", message, more)

    # ---- verdicts

    def _judge(
        self, whole: Launch, before: Launch, after: Launch, *, saved: Sequence[str], elsewhere: Sequence[str]
    ) -> Finding:
        """Whether the program resumes, from where, and whether it goes on as the undisturbed run."""
        if after.failure:
            return self._find("fails", f"it fails when it continues: {after.failure}", f"see {self._folder}")
        if not whole.rows and after.checkpoint:
            message = f"it gets {after.checkpoint} to resume from, but reports no metrics that show whether it does"
            return self._find("unknown", message, "give `metrics`")
        if whole.rows and not (before.rows and after.rows):
            when = "after the interruption" if before.rows else f"in {format_duration(self._limit)} of its second run"
            return self._find("unknown", f"it reported no metrics {when}", "give it more to do, and more time")
        starts_over = self._find(*describe_start(self._sweep, whole, before, after, saved=saved, elsewhere=elsewhere))
        if not whole.rows:
            return starts_over
        first = whole.rows[0]["epoch"]
        begins = after.rows[0]["epoch"]
        is_whole = whole.is_finished and after.is_finished
        metrics = self._sweep.program_metrics
        if not is_whole and begins <= first and (metrics is None or metrics.numbers_rows):
            message = "it was not seen to resume: its rows have no numbers of epochs, and it did not finish in time"
            return self._find("unknown", message, "report `epoch`")
        repeats_all = after.epochs >= whole.epochs if is_whole else begins <= first
        if repeats_all:
            return starts_over
        if begins <= first:  # its rows are counted from 1 again
            by = int(_last(whole) - _last(after))
            after.rows = [{**row, "epoch": row["epoch"] + by} for row in after.rows]
        where = f"resumes with epoch {after.rows[0]['epoch']} after epoch {_last(before)}"
        return self._judge_curves(where, whole, after)

    def _judge_curves(self, where: str, whole: Launch, after: Launch) -> Finding:
        compared = compare(whole.rows, after.rows)
        if not compared:
            return self._find("unknown", f"{where}; no metric shows how it goes on", "report a loss")
        if all(each.typical <= each.rounding for each in compared):
            return self._find(
                "ok", f"{where}; {', '.join(each.metric for each in compared)} as without an interruption"
            )
        if not (far := [each for each in compared if each.typical > each.allowed]):
            worst = max(compared, key=lambda each: each.share)
            return self._find("ok", f"{where}; {worst.metric} differs by {worst.typical:.2g}, less than it varies")
        again = self._launch(self._runs("second undisturbed"))
        noise = {each.metric: each.largest for each in compare(whole.rows, again.rows)}
        if not (far := [each for each in far if each.typical > 3 * noise.get(each.metric, 0.0)]):
            return self._find("ok", f"{where}; it differs by no more than two undisturbed runs do")
        worst = max(far, key=lambda each: each.share)
        usual = noise.get(worst.metric)
        message = f"{where}, but {worst.metric} then differs by {worst.typical:.2g} from an undisturbed run"
        differing = f"by {usual:.2g}" if usual else "not at all"
        message += f", and two undisturbed runs differ {differing}"
        remedy = "save and load the optimizer, the schedule and the random numbers, too"
        return self._find("fails" if worst.share > FAR else "warns", message, remedy)


def describe_start(
    sweep: Sweep, whole: Launch, before: Launch, after: Launch, *, saved: Sequence[str], elsewhere: Sequence[str]
) -> tuple[Verdict, str, str]:
    """Verdict, message and remedy for a program that starts over.

    It is a failure if the config says that it resumes. `saved` are the files in its folder when it was interrupted,
    `elsewhere` those that each run has written where it was started.
    """
    message = "starts over after an interruption"
    own, others = (list(filter(CHECKPOINTS.search, files)) for files in (saved, elsewhere))
    pattern = sweep.checkpoint_pattern
    if not sweep.keeps_output:
        remedy = "save to and load from `context.checkpoint_dir`"
    elif after.checkpoint and after.checkpoint_time < _first_epoch_until(before):
        message = f"it repeats all epochs but the first, of which {after.checkpoint} is, that it resumed from"
        return "warns", message, "have it save its last state, and not only its best one"
    elif after.checkpoint:
        message = "repeats all epochs after an interruption"
        remedy = f"it gets {after.checkpoint} to resume from: check {RESUME_OPTION}, and that it loads the epoch, too"
    elif others and not own:
        remedy = f"it saves {others[0]}, outside of its folder: have it save to {{trial_dir}}"
    elif pattern and not whole.is_finished:
        message = f"it saved no checkpoint, `{pattern}`, before it was interrupted"
        return "unknown", message, "have it save one more often, or give the drill more time"
    elif pattern:
        remedy = f"no file in its folder matched `checkpoint: {pattern}`; it has {list_some(saved)}"
    elif own:
        suggested = f"*{Path(own[0]).suffix}"
        if os.sep in own[0]:
            suggested = f"**/{suggested}"
        remedy = f"it saves {own[0]}: give `checkpoint: '{suggested}'` and {RESUME_OPTION}"
    else:
        remedy = f"have it save a checkpoint to {{trial_dir}}; give `checkpoint` and {RESUME_OPTION}"
    return "fails" if sweep.can_resume else "warns", message, remedy


def _first_epoch_until(launch: Launch) -> float:
    """When the first epoch was over for sure, in Unix seconds; 0 if rows were recorded too closely to tell."""
    first, second = (*launch.times[:2], 0.0, 0.0)[:2]
    return (first + second) / 2 if second - first > LAG_SECONDS else 0.0


def _last(launch: Launch) -> Any:
    """The last epoch that was reported."""
    return launch.rows[-1]["epoch"]


def _interruption(whole: Launch, runs: Runs, checkpoints: Sequence[float]) -> Callable[[Launch], bool]:
    """When to interrupt a run: within an epoch at about the middle, once there is a checkpoint if one is saved by then.

    A program that reports nothing is interrupted after half of the time.
    """
    began = time.monotonic()
    count = len(whole.rows) // 2
    saved_at = sum(each <= checkpoints[0] for each in whole.times) + 1 if checkpoints else len(whole.rows)
    waits = saved_at < len(whole.rows) - 1
    count = max(count, saved_at) if waits else count
    pause = median(np.diff(whole.times)) / 2 if whole.rows else 0.0

    def is_time(launch: Launch) -> bool:
        if not whole.rows:
            return time.monotonic() - began > whole.seconds / 2
        is_there = len(launch.rows) >= count and (not waits or runs.checkpoint_time() is not None)
        return is_there and time.time() > launch.times[-1] + pause

    return is_time


class Saves:
    """Looks for a checkpoint that is being written, once there is one before it."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder = folder
        self._pattern = checkpoints_of(pattern)
        self._before = dict[str, tuple[int, int]]()
        self._changed = set[str]()
        self._settled = set[str]()  # files that did not change between two looks
        self._has_one = False
        self.written = ""  # the file, relative to the folder

    def look(self) -> bool:
        """Whether a file has changed since the last look, and between the two before, and is one of a checkpoint.

        It may have another name until it is whole, but not that of a log or of a file that was there before.
        """
        files = list_files(self._folder)
        own = set[Path]()
        with suppress(OSError):  # a folder was removed meanwhile
            own = set(self._folder.glob(self._pattern))
        changed = _changes(self._before, files)
        for name in changed & self._changed if self._has_one else ():
            if own.intersection(self._with_parents(name)) or not (_LOGS.search(name) or name in self._settled):
                self.written = name
        self._settled.update(files.keys() - changed)
        self._has_one = self._has_one or bool(own.difference(*map(self._with_parents, changed)))
        self._before = files
        self._changed = changed
        return bool(self.written)

    def _with_parents(self, name: str) -> list[Path]:
        path = self._folder / name
        return [path, *path.parents]


def site_grace_seconds() -> float:
    """From SIGTERM to SIGKILL at this site; infinite without Slurm."""
    with suppress(UserError):
        if found := re.match(r"\d+", controller_settings().get("KillWait", "")):
            return float(found[0])
    return float("inf")


# ---- curves


@dataclass(frozen=True)
class Difference:
    """Of a metric, between a whole run and the rows of another one."""

    metric: str
    typical: float  # the median over the rows
    largest: float
    allowed: float  # what is less than the curve itself varies
    span: float  # of the values of the whole run
    rounding: float

    @property
    def share(self) -> float:
        """The typical difference, relative to the span."""
        return self.typical / (self.span or 1.0)


def compare(whole: Sequence[Row], rows: Sequence[Row]) -> list[Difference]:
    """How much each metric of these rows differs from a whole run, which is interpolated at their epochs.

    Of three rows and more, the first does not count: the epoch in which a program resumes may have been cut. What a
    curve varies by itself is the median of its second differences: it is 1.65 standard deviations of white noise, three
    times of which the median of three differences never exceeds by chance.
    """
    names = dict[str, None]()
    for row in rows:
        names |= dict.fromkeys(row)
    compared = []
    for name in names:
        is_rate = name.lower().startswith(("lr", "learning"))
        if is_timing(name) or (is_counter(name) and not is_rate):
            continue
        points = ([(row["epoch"], row[name]) for row in each if row.get(name) is not None] for each in (whole, rows))
        before, new = points
        new = [each for each in new if before and before[0][0] <= each[0] <= before[-1][0]]
        if len(before) < 2 or not new:
            continue
        (epochs, values), (at, reported) = np.array(before).T, np.array(new[1:] if len(new) >= 3 else new).T
        differences = np.abs(reported - np.interp(at, epochs, values))
        varies = float(np.median(np.abs(np.diff(values, 2)))) if len(values) > 2 else 0.0
        span = float(np.ptp(values))
        rounding = ROUNDING * float(np.abs(values).max())
        allowed = max((3 if len(at) >= 3 else 6) * varies, NEAR * span, rounding)
        compared.append(
            Difference(name, float(np.median(differences)), float(differences.max()), allowed, span, rounding)
        )
    return compared


# ---- files


def list_files(folder: Path, *, results: Path | None = None) -> dict[str, tuple[int, int]]:
    """Time and size of the files in a folder and those below it, but for some that do not count; none of very many.

    In the results, those of the drill do not count, nor those of studies, which may run meanwhile.
    """
    states: dict[str, tuple[int, int]] = {}
    own = [results / name for name in (FOLDER, "sweeps", "scaling")] if results else []
    own_outputs = [os.fstat(each) for each in (1, 2)]  # of this process, which a shell may have redirected to a file
    for root, folders, names in os.walk(folder):
        here = Path(root)
        folders[:] = [each for each in folders if here / each not in own and not _is_skipped(here / each)]
        for name in names:
            with suppress(OSError):  # it was removed meanwhile
                status = (here / name).stat()
                if any(os.path.samestat(status, each) for each in own_outputs):
                    continue
                states[str((here / name).relative_to(folder))] = (status.st_mtime_ns, status.st_size)
        if len(states) > MOST_FILES:
            return {}
    return states


def _is_skipped(folder: Path) -> bool:
    """Hidden folders, caches, environments, and what is left of a killed DataLoader."""
    return folder.name.startswith((".", "__pycache__", "pymp-")) or (folder / "pyvenv.cfg").exists()


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """The files that are new or were written."""
    return {name for name, state in after.items() if before.get(name) != state}
