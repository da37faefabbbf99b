"""The effect check: which of the varied keys of a sweep change what its program reports or prints.

One configuration runs twice, for a few seconds each: what differs between these two runs is noise. Then it runs once
more for each key, with another value of that key. All these runs have the same random numbers (`effect_probe`), also
if the program sets no seeds.
"""

import json
import logging
import math
import re
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from trainyard.checks import effect_probe
from trainyard.checks.findings import Finding, Verdict
from trainyard.checks.resume_drill import LEAST_ROWS, Launch, Runs, config_of_trial
from trainyard.config.config import Config
from trainyard.config.metric_names import is_counter, is_timing
from trainyard.config.sweep import is_seed
from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import make_trial, trials_to_check
from trainyard.planning.task import output_name
from trainyard.programs.metric_rows import BURST_ROWS, merge_row
from trainyard.programs.output import read_saved_lines
from trainyard.programs.user_environment import FIRST_MODULES
from trainyard.results.effects import ReportedResults
from trainyard.utils.environment_variables import environment_variables
from trainyard.utils.text import format_duration

EXTENSION: Final = 6  # times as long takes a run that has reported too little
BEYOND_NOISE: Final = 3  # times the largest difference between runs with the same settings
FASTER: Final = 1.5  # times, and by a second: another speed
STEP_VALUE: Final = "parameters"
LARGE: Final = 1000.0  # a factor with which a number that has any effect shows it
# A number and the word before it; no digits within a word, and no number with a unit of time.
_NUMBER: Final = re.compile(
    r"([A-Za-z_]\w*)?\W*?(?<![\w.])([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"
    r"(?![\w.]| ?(?:m?s|secs?|seconds|min|\w+/s)\b)",
    re.IGNORECASE,
)
_OF_SPEED: Final = re.compile(
    r"worker|thread|pin_?mem|prefetch|compile|cache|jit|fused|jobs|num_proc|checkpointing|determinis"
)
_LATE: Final = re.compile(  # what may have an effect only after the seconds of a run
    r"epoch|step|iter|update|episode|total|patience|warm|every|interval|freq|period|sched|milestone|gamma|anneal|"
    r"(?<!weight_)decay|save|eval|test|valid|infer|predict|generat|sampl|beam|stop|start|end|last|final|best|target"
)
_REMEDY: Final = (
    "look where your program reads it: it may be parsed and not used, overridden, lost on its way, or act on GPUs only"
)
log = logging.getLogger(__name__)
Values = Mapping[str, Any]  # of the varied keys
Rows = Mapping[str, Mapping[str, Any]]  # numbers by name: of an epoch, or the first of each name, the second, and so on


def find_effects(config: Config, results: Path, *, seconds: float) -> Iterator[Finding]:
    """A finding per varied key of each sweep; a run takes `seconds`, or longer if it has reported little by then."""
    for name, sweep in config.sweeps.items():
        place = f"sweeps.{name}"
        tries = _Tries(config, name, results.absolute() / "data", seconds)
        pairs = _pairs(trial.values for trial in trials_to_check(sweep))
        least = format_duration((len(pairs) + 2) * seconds)
        log.info("%s: %s for %d varied keys, or up to %d times as long", place, least, len(pairs), EXTENSION)
        for key, (base, value) in pairs.items():
            verdict, message, remedy = _judge(tries, key, base, value)
            yield Finding(place, verdict, f"`{key}` {message}", remedy)


def _pairs(configurations: Iterable[Values]) -> dict[str, tuple[Values, Any]]:
    """By key: the first configuration that has it, and the last other value of it."""
    bases = dict[str, Values]()
    pairs = dict[str, tuple[Values, Any]]()
    for values in configurations:
        for key, value in values.items():
            base = bases.setdefault(key, values)
            if _text(value) != _text(base[key]):
                pairs[key] = base, value
    return {key: pairs[key] for key in bases if key in pairs}


# ---- runs


@dataclass(frozen=True)
class _Try:
    """What a run has shown until its end, or until it was ended."""

    rows: Rows = field(default_factory=dict)  # without times and counters; infinite for NaN
    steps: Rows = field(default_factory=dict)  # the norm of the parameters after steps of an optimizer
    seconds: float = 0.0  # until its end, or between its rows
    is_whole: bool = False
    failure: str = ""

    @property
    def pace(self) -> float:
        """Seconds per row; 0 without rows."""
        return self.seconds / len(self.rows) if self.rows else 0.0

    @property
    def has_metrics(self) -> bool:
        """Whether the rows are not just the numbers in its output."""
        return "place 1" not in self.rows

    @property
    def shown(self) -> dict[str, Mapping[str, Any]]:
        """The rows and the steps."""
        return {**self.rows, **self.steps}


class _Enough(Exception):
    """A run has ended, has shown enough, or takes too long."""


@dataclass
class _Tries:
    """The runs of a sweep's configurations, in temporary folders."""

    config: Config
    name: str
    data: Path
    seconds: float
    _known: dict[tuple[str, bool], list[_Try]] = field(default_factory=dict)

    def run(self, values: Values, times: int = 1, *, is_seeded: bool = True) -> list[_Try]:
        """The first runs with these values; all that are seeded have the same random numbers."""
        tries = self._known.setdefault((_text(values), is_seeded), [])
        while len(tries) < times:
            log.info("%s: %s", self.name, _text(values))
            with tempfile.TemporaryDirectory(prefix="effect-") as temporary:
                try:
                    tries.append(self._try(values, Path(temporary), is_seeded=is_seeded))
                except ValueError as error:  # the values are not valid together
                    tries.append(_Try(failure=str(error)))
        return tries[:times]

    def _try(self, values: Values, folder: Path, *, is_seeded: bool) -> _Try:
        sweep = self.config.sweeps[self.name]
        config = config_of_trial(self.config, self.name, make_trial(sweep, dict(values)))
        runs = Runs(folder / "results", config, self.name, data=self.data, temporary=folder)
        output = runs.trial_folder / output_name(1)
        began = math.inf
        probe = folder / "probe" / "sitecustomize.py"
        record = probe.with_name(effect_probe.RECORD.name)
        probe.parent.mkdir()
        if is_seeded:
            shutil.copyfile(effect_probe.__file__, probe)

        def report(launch: Launch) -> dict[str, Mapping[str, Any]]:
            if not sweep.program_metrics and not launch.rows and output.exists():
                return _read_numbers(output, is_torn=launch.end is None)
            rows = list[dict[str, Any]]()
            for row in launch.rows:
                merge_row(rows, {**row})
            return {f"epoch {row['epoch']}": row for row in rows}

        def watch(launch: Launch) -> bool:
            nonlocal began
            if launch.rows or runs.trial_folder.exists():  # the driver and Ray have started
                began = min(began, time.monotonic())
            elapsed = (time.monotonic() - began) / self.seconds
            is_enough = elapsed > 1 and len(report(launch)) > LEAST_ROWS
            if not sweep.program_metrics and record.exists():  # the numbers may be of before its first step
                is_enough = is_enough and len(read_steps(record)) > LEAST_ROWS
            if launch.end or elapsed > EXTENSION or is_enough:
                raise _Enough(launch)
            return False

        # The order of sets is no noise.
        with environment_variables({FIRST_MODULES: str(probe.parent), "PYTHONHASHSEED": "0"}):
            try:
                launch = runs.launch(watch)
            except _Enough as enough:
                launch = enough.args[0]
        steps = read_steps(record)
        end = launch.end
        reported = report(launch)
        if reported and not end:
            reported.popitem()  # the last epoch may go on
        rows = {
            at: {
                name: math.inf if value is None else value
                for name, value in row.items()
                if not (is_timing(name) or is_counter(name))
            }
            for at, row in reported.items()
        }
        if end and end.status is not TrialStatus.FAILED:
            is_whole = len(launch.rows) < BURST_ROWS  # else, rows are left out
            return _Try(rows, steps, end.seconds or 0.0, is_whole)
        seconds = launch.times[-1] - launch.times[0] if launch.times else 0.0
        return _Try(rows, steps, seconds, failure=launch.failure if end or launch.seconds else "")


def _read_numbers(output: Path, *, is_torn: bool) -> dict[str, Mapping[str, Any]]:
    """The numbers in the output of a run."""
    rows = defaultdict[str, dict[str, Any]](dict)
    count = Counter[str]()
    for line in read_saved_lines(output, torn=is_torn):
        for match in _NUMBER.finditer(line.replace(str(output.parent), "")):
            name = match[1] or ""
            count[name] += 1
            rows[f"place {count[name]}"][name] = float(match[2])
    return {**rows}


def read_steps(record: Path) -> Rows:
    """The norms of the parameters after steps; the processes that took them are numbered in their order."""
    lines = record.read_text().splitlines() if record.exists() else []
    recorded = [json.loads(line) for line in lines if line.endswith("]")]
    processes = sorted({process for process, *_ in recorded})  # which began in this order
    steps = dict[str, dict[str, float]]()
    for process, step, norm in recorded:
        suffix = f" of process {processes.index(process) + 1}" if len(processes) > 1 else ""
        steps[f"step {step}{suffix}"] = {STEP_VALUE: norm if math.isfinite(norm) else math.inf}
    return steps


# ---- verdicts


def _judge(tries: _Tries, key: str, base: Values, value: Any) -> tuple[Verdict, str, str]:
    """Whether another value of a key changes results: verdict, message and remedy."""
    changed = {**base, key: value}
    for values in (base, changed):
        if failure := tries.run(values)[0].failure:
            verdict: Verdict = "fails" if values is base else "warns"
            return verdict, f"is not known: {_text(values)} fails: {failure}", ""
    alike = tries.run(base, 2)
    first = alike[0]
    other = tries.run(changed)[0]
    if any(name for name, *_ in _differences(*alike)):
        alike = tries.run(base, 3)
    noise = _measure_noise(alike)
    change = _find_change(first, other, (base[key], value), noise)
    if change and is_seed(key):
        noise |= _measure_noise(tries.run(base, 2, is_seeded=False))
    differ = f"results differ from run to run with the same settings ({', '.join(filter(None, noise))})"
    if is_seed(key) and any(noise):
        return "warns", f"does not make results repeatable: {differ}", "set the seeds of all libraries"
    if change:
        return "ok", f"changes results ({change})", ""
    if any(noise) and (first.has_metrics or not first.steps or STEP_VALUE in noise):
        return "unknown", f"is not known: {differ}", "set all random seeds"
    return _judge_same(tries, key, base, value, noise)


def _judge_same(
    tries: _Tries, key: str, base: Values, value: Any, noise: Mapping[str, float]
) -> tuple[Verdict, str, str]:
    """What it means that two values of a key give the same."""
    changed = {**base, key: value}
    first = tries.run(base)[0]
    other = tries.run(changed)[0]
    longer = f"`--effect {EXTENSION * tries.seconds:g}` gives it more time"
    report = _same_report(first, other)
    if not report.rows:
        return "unknown", "is not known: the program reported no numbers in its time", longer
    same = f"{_text(base[key])} and {_text(value)} give the same {sum(map(len, report.rows))} numbers"
    if steps := sum(STEP_VALUE in dict(row) for row in report.rows):
        same += f", {steps} of which are of all parameters after a step"
    if not _is_telling(first, other):
        return "unknown", f"is not known: {same}, which may be chance", "report more digits, or give it more time"
    if all(_differ_in_speed(tries.run(base, times + 1), tries.run(changed, times)) for times in (1, 2)):
        return "ok", f"changes only the speed: {same}, in {first.pace:.2g} and {other.pace:.2g} s per row", ""
    if _OF_SPEED.search(key):
        return "unknown", f"changes no results, and hardly the speed: {same}", ""
    shows_all = first.rows and (first.has_metrics or first.steps)
    if not (first.is_whole and other.is_whole) and (_LATE.search(key) or not shows_all):
        return "unknown", f"may have an effect later: {same}", longer
    if isinstance(value, float):
        extreme = LARGE * max(value, base[key], key=abs)
        probe = tries.run({**base, key: extreme})[0]
        if not _is_telling(first, probe) or _find_change(first, probe, (base[key], extreme), noise):
            return "unknown", f"may have an effect, as {extreme:g} has: {same}", longer
    return "fails", f"has no effect: {same}", _REMEDY


def _differences(one: _Try, two: _Try) -> Iterator[tuple[str, str, float, float]]:
    """Name and place of the numbers that differ; if both runs ended by themselves, also of those that only one has."""
    for at in one.shown | two.shown:
        first = one.shown.get(at, {})
        second = two.shown.get(at, {})
        for name in {**first, **second}:
            if (one.is_whole and two.is_whole) or (name in first and name in second):
                pair = first.get(name, math.inf), second.get(name, math.inf)
                if pair[0] != pair[1]:
                    yield name, at, *pair


def _measure_noise(alike: Sequence[_Try]) -> dict[str, float]:
    """The largest difference of each number between runs with the same settings."""
    noise = defaultdict[str, float](float)
    for pair in combinations(alike, 2):
        for name, _, one, two in _differences(*pair):
            noise[name] = max(noise[name], abs(one - two))
    return noise


def _find_change(one: _Try, two: _Try, values: tuple[Any, Any], noise: Mapping[str, float]) -> str:
    """A difference beyond noise, other than that the values themselves are printed; "" without one."""
    for name, at, *pair in _differences(one, two):
        if pair != list(values) and abs(pair[0] - pair[1]) > BEYOND_NOISE * noise.get(name, 0.0):
            return f"{name} {pair[0]:g} -> {pair[1]:g} at {at}".replace("inf", "none").strip()
    return ""


def _same_report(one: _Try, two: _Try) -> ReportedResults:
    """The numbers that both runs have reported alike."""
    rows = (frozenset(row.items() & two.shown.get(at, {}).items()) for at, row in one.shown.items())
    return ReportedResults(tuple(filter(None, rows)))


def _is_telling(one: _Try, two: _Try) -> bool:
    """Whether runs that report the same hardly do so by chance, nor because too little has happened."""
    report = _same_report(one, two)
    return report.is_telling and (len(report.rows) >= LEAST_ROWS or (one.is_whole and two.is_whole))


def _differ_in_speed(one: Sequence[_Try], two: Sequence[_Try]) -> bool:
    """Whether all of some runs are faster than all others, by more than chance."""
    fast, slow = sorted(([run.pace for run in runs] for runs in (one, two)), key=min)
    is_slower = min(slow) > max(FASTER * max(fast), max(fast) + 1 / max(1, len(one[0].rows)))
    return is_slower and len({run.is_whole for run in [*one, *two]}) == 1


def _text(value: Any) -> str:
    return json.dumps(value, default=str)
