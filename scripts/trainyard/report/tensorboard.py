"""Event files of TensorBoard, derived from the journal of a sweep and from the results of a scaling study.

results/tensorboard/<kind>/<name>/<run>/events.out.tfevents.trainyard

A run is a trial, or a scale of a study. The same results always give the same bytes. A file that has only grown is
appended to, so that a TensorBoard that is open reads on; a file of a run that is no longer in the config is removed.
"""

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.plugins.hparams import metadata
from tensorboard.plugins.hparams.api_pb2 import Status
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo
from tensorboard.summary.writer.record_writer import RecordWriter

from trainyard.config.config import Config
from trainyard.config.trial_status import FINAL, WITH_RESULT, TrialStatus
from trainyard.planning.attempts import Attempt
from trainyard.planning.history import TrialRecord, read_state
from trainyard.programs.metric_rows import step_numbers
from trainyard.utils.csv_files import read_table
from trainyard.utils.errors import storage_errors
from trainyard.utils.files import append_whole, atomic_write
from trainyard.utils.locks import hold

KINDS: Final = ("sweeps", "scaling")
FILE: Final = "events.out.tfevents.trainyard"
FOLDER: Final = "tensorboard"  # in the results
_SCALE_KEYS: Final = ("nodes", "gpus", "repeat", "global_batch", "lr", "precision")  # of summary.json


@dataclass(frozen=True)
class Point:
    """The metrics of one epoch."""

    time: float  # Unix seconds
    step: int  # its epoch, see `step_numbers`
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """What TensorBoard shows of a trial, or of a scale of a study."""

    start: float  # Unix seconds
    settings: Mapping[str, Any]  # the columns of the HParams tab
    points: Sequence[Point]
    ended: tuple[float, bool] | None = None  # when it ended (Unix seconds), and whether it has a result


def write_event_files(config: Config, kind: str, name: str, results: Path) -> int:
    """Write the event files of a sweep or scaling study as far as it has run; return the number of its runs.

    Raises:
        LockHeldError: another process writes them.
        StorageError: they cannot be written.
    """
    folder = results / FOLDER / kind / name
    with hold(folder.with_name(f".{name}.lock"), wait_seconds=60):
        if kind == "sweeps":
            runs = _sweep_runs(config, name, results)
        else:
            study = config.scaling[name]
            source = results / "scaling" / name
            names = [run for scale in study.scales for run in study.runs(scale)]
            runs = {run: _scale_run(source / run) for run in names if (source / run / "summary.json").exists()}
        for run, content in runs.items():
            _store(folder / run / FILE, encode_run(content))
        for path in list(folder.rglob(FILE)):
            if str(path.parent.relative_to(folder)) not in runs:
                path.unlink()
                with suppress(OSError):  # it has other files, or other runs
                    path.parent.rmdir()
    return len(runs)


def _store(path: Path, content: bytes) -> None:
    old = path.read_bytes() if path.exists() else None
    if old == content:
        return
    if not old or not content.startswith(old):
        with atomic_write(path, "wb") as file:
            file.write(content)
        return
    with storage_errors(path), open(path, "ab", buffering=0) as file:
        append_whole(file.fileno(), content[len(old) :])


# ---- the runs


def _sweep_runs(config: Config, name: str, results: Path) -> dict[str, Run]:
    state = read_state(config.sweeps[name], name, results)
    keys = state.varied_keys
    runs = {}
    for record in state.records:
        # The attempt that ended the trial, or else the last one that has reported an epoch, or else the last one.
        candidates = [each for each in record.current if each.epochs] or record.current
        if (shown := record.end or next(reversed(candidates), None)) is not None:
            settings = record.values_of(keys)
            ended = None if shown.outcome in (TrialStatus.RUNNING, TrialStatus.INTERRUPTED) else shown.end
            points = _trial_points(record, shown)
            start = min(each.start for each in record.attempts if each.generation == shown.generation)
            end = None if ended is None else (ended, shown.outcome in WITH_RESULT)
            runs[record.name] = Run(start, settings, points, end)
    return runs


def _trial_points(record: TrialRecord, shown: Attempt) -> list[Point]:
    """The epochs of a trial at the times when they were first reported: a resumed training reports them again."""
    times: dict[str, float] = {}
    for attempt in (each for each in record.attempts if each.generation == shown.generation):
        for number, row in enumerate(attempt.epochs, start=1):
            reported = attempt.epoch_times.get(row.get("epoch", number), attempt.end)
            times.setdefault(json.dumps(row, sort_keys=True), reported)
    rows = record.epochs_of(shown)
    points = [
        Point(times[json.dumps(row, sort_keys=True)], step, row)
        for step, row in zip(step_numbers(rows), rows, strict=True)
    ]
    if shown.outcome in FINAL:
        points += _last_point(shown.end, points, shown.metrics)
    return points


def _scale_run(folder: Path) -> Run:
    """A finished scale. Its epochs have durations; its end is when its tables were written."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    history = read_table(folder / "history.csv")
    end = (folder / "history.csv").stat().st_mtime
    seconds = pd.to_numeric(history["seconds"], errors="coerce").fillna(0)
    times = end - (seconds.sum() - seconds.cumsum())
    rows = history.to_dict("records")
    points = [Point(time, step, row) for time, step, row in zip(times, step_numbers(rows), rows, strict=True)]
    settings = {key: summary.get(key) for key in _SCALE_KEYS}
    points += _last_point(end, points, {key: value for key, value in summary.items() if key not in settings})
    return Run(end - seconds.sum(), settings, points, (end, True))


def _last_point(time: float, points: Sequence[Point], metrics: Mapping[str, Any]) -> list[Point]:
    """The final metrics that no epoch has, at the last epoch."""
    known = {name for point in points for name in point.metrics}
    final = {name: value for name, value in metrics.items() if name not in known}
    step = points[-1].step if points else 1
    return [Point(time, step, final)] if final else []


# ---- their encoding


def encode_run(run: Run) -> bytes:
    """The content of the event file of a run."""
    file = io.BytesIO()
    writer = RecordWriter(file)
    for event in _events(run):
        writer.write(event.SerializeToString(deterministic=True))
    return file.getvalue()


def _events(run: Run) -> Iterator[Event]:
    yield Event(wall_time=run.start, file_version="brain.Event:2")
    start = SessionStartInfo(start_time_secs=run.start)
    for key, value in run.settings.items():
        if isinstance(value, bool):
            start.hparams[key].bool_value = value
        elif isinstance(value, (int, float)):
            start.hparams[key].number_value = value
        elif value is not None:
            start.hparams[key].string_value = value if isinstance(value, str) else json.dumps(value)
    yield _hparams_event(run.start, metadata.SESSION_START_INFO_TAG, session_start_info=start)
    for point in run.points:
        values = [
            Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in point.metrics.items()
            if tag != "epoch" and isinstance(value, (int, float)) and not math.isnan(value)
        ]
        if values:
            yield Event(wall_time=point.time, step=point.step, summary=Summary(value=values))
    if run.ended is not None:
        time, has_result = run.ended
        status = Status.Value("STATUS_SUCCESS" if has_result else "STATUS_FAILURE")
        end = SessionEndInfo(status=status, end_time_secs=time)
        yield _hparams_event(time, metadata.SESSION_END_INFO_TAG, session_end_info=end)


def _hparams_event(time: float, tag: str, **info: Any) -> Event:
    content = HParamsPluginData(version=metadata.PLUGIN_DATA_VERSION, **info)
    plugin = SummaryMetadata.PluginData(
        plugin_name=metadata.PLUGIN_NAME, content=content.SerializeToString(deterministic=True)
    )
    value = Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin))
    return Event(wall_time=time, summary=Summary(value=[value]))
