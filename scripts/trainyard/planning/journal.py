"""The journal of a sweep: its events, their encoding as JSON lines, and how a driver records them.

Each run of a driver, a session, appends a line per event to a file of its own, `sessions/<session>.jsonl`; lines are
never rewritten. Everything known about trials is a fold over these files and the log of claims (`attempts.Fold`): the
pending set, `trials.csv`, `timeline.csv`, the Gantt chart, the live status and the evidence for the next plan.

    {"event":"started","time":1730000000.0,"trial":"3f2a...","attempt":1,"generation":0,"values":{"lr":0.1},...}

Fields of an event are named as in the journal, which has them in the order of their definition, without those that
are None.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar, get_origin

from trainyard.config.trial_status import ENDED, FINAL, TrialStatus
from trainyard.programs.runner import CheckpointFile
from trainyard.utils.errors import StorageError, storage_errors
from trainyard.utils.event_log import EventLog, read_clock
from trainyard.utils.locks import Holder

SESSIONS: Final = "sessions"
JsonObject = dict[str, Any]
Row = JsonObject  # metrics, or values of the varied keys, by name


class Location(NamedTuple):
    """Where an attempt, or the worker of a slot, runs. A new worker of the same slot may get another GPU."""

    job: str = ""  # Slurm's ID, or "local"
    node: str = ""  # of a trial on several, all, separated by commas
    gpu: str = ""  # of its first node, if there are several
    slot: int | str = ""  # each job of a sweep has numbers of its own
    gpu_model: str = ""  # as Slurm names the type
    device: str = ""  # "cpu" or the GPU's full name

    @property
    def gpu_key(self) -> tuple[str, str, str]:
        """Node and GPU, which several slots may share. Each job on a node may number its GPUs from 0."""
        return self.node, self.gpu, self.gpu and self.job


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a sweep."""

    is_durable: ClassVar[bool] = False  # whether it is synced to the disk, see `Journal.record`
    time: float = 0.0  # Unix seconds, set when the event is recorded


@dataclass(frozen=True, kw_only=True)
class TrialEvent(Event):
    """An event of one attempt at a trial."""

    trial: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Started(TrialEvent):
    """An attempt starts on a slot."""

    generation: int = 0  # the `retrain` number it runs for
    takeover: int | None = None  # the entry of the claims with which its folder began, as in `ClaimLog.takeovers`
    values: Row | None = None  # of the varied keys
    gpus_per_trial: float = 1.0
    job: str = ""
    node: str = ""
    gpu: str = ""
    slot: int | str = ""
    gpu_model: str = ""
    device: str = ""
    expected_seconds: float | None = None

    @property
    def location(self) -> Location:
        """Where the attempt runs."""
        return Location(self.job, self.node, self.gpu, self.slot, self.gpu_model, self.device)


@dataclass(frozen=True, kw_only=True)
class Resumed(TrialEvent):
    """A user's program resumes from a checkpoint: its name, `modified_ns` and size."""

    checkpoint: JsonObject


@dataclass(frozen=True, kw_only=True)
class Epoch(TrialEvent):
    """A row of metrics. A second row of the same epoch completes the first."""

    metrics: Row
    first_step_time: float | None = None  # Unix seconds


@dataclass(frozen=True, kw_only=True)
class MicroBatchHalved(TrialEvent):
    """The micro-batch did not fit into the GPU's memory and was halved."""

    micro_batch: int
    accumulation: int


@dataclass(frozen=True, kw_only=True)
class Ended(TrialEvent):
    """An attempt ends; `status` names the event in the journal."""

    is_durable = True
    status: TrialStatus
    metrics: Row | None = None
    error: str | None = None
    seconds: float | None = None
    why: str | None = None  # it was stopped early, also if it has diverged
    rule: JsonObject | None = None  # that stopped it early, as in `Stop.rule`
    precision: str | None = None
    exit_code: int | None = None
    output: str | None = None  # file of the program's output
    tail: str | None = None
    hidden_error: str | None = None  # at the end of its output, although the exit code is 0
    progress: JsonObject | None = None  # the last that the program printed, as `Progress`
    units: dict[str, str] | None = None  # of metrics that have one, as `ms`
    metrics_digest: str | None = None  # of the `metrics` rules that read the output
    log: str | None = None  # file with details
    failure: str | None = None  # how the attempt failed after it had diverged
    retried: bool | None = None
    has_saved: bool | None = None  # of a program that was interrupted: as in `Piece`
    ended: float | None = None  # Unix seconds, if a later driver records the end
    energy_kwh: float | None = None  # of its GPUs

    @property
    def is_final(self) -> bool:
        """Whether the trial is not run again, at least in this run of the sweep."""
        return self.status in FINAL or (self.status is TrialStatus.FAILED and not self.retried)


@dataclass(frozen=True, kw_only=True)
class Reread(Event):
    """The kept output of an attempt that is over was read again. It counts under the rules by which it was read."""

    trial: str
    attempt: int
    rules: str  # as in `History.rules`
    metrics_digest: str  # as in `Ended`
    rows: list[Row]
    metrics: Row
    outcome: TrialStatus | None = None  # by what was read; None of an attempt that was interrupted or has failed
    error: str = ""
    units: dict[str, str] | None = None  # as in `Ended`


@dataclass(frozen=True, kw_only=True)
class Released(Event):
    """A session gives a trial back that it has claimed and does not run: another one may."""

    is_durable = True
    trial: str
    claim: int  # the entry with which it took the trial


@dataclass(frozen=True, kw_only=True)
class Left(Event):
    """A session ends: it gives back all trials that have not ended."""

    is_durable = True


@dataclass(frozen=True, kw_only=True)
class BudgetReached(Event):
    """No trial that is left fits this budget, as the config has it."""

    is_durable = True
    budget: JsonObject


@dataclass(frozen=True, kw_only=True)
class SessionStarted(Event):
    """The driver starts. Times are in seconds."""

    is_durable = True
    run: str | None = None  # names the run of Snakemake that has started it; failed trials are not retried in the same
    job: str = ""  # Slurm's ID, or "local"
    node: str = ""
    process: int | None = None
    code: str | None = None  # the commit of the folder in which it runs, as `code_version`
    code_digest: str | None = None  # of the files of the option `code`
    versions: dict[str, str] | None = None  # of Trainyard, and of Python and torch for the trials
    config: str | None = None  # its digest, which names its copy in `configs`
    slots: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    cpus: int | None = None  # of a sweep without GPUs
    walltime_seconds: float | None = None  # requested
    lead_seconds: float | None = None  # from the start of the Slurm job
    pending: int | None = None  # trials
    predicted_seconds: float | None = None
    predicted_low_seconds: float | None = None
    predicted_high_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class RayStarted(Event):
    """Ray can assign slots; `spent` holds the seconds of each step of its start."""

    spent: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class SlotStarted(Event):
    """The worker process of a slot is ready; `spent` holds the seconds of each step of its start."""

    slot: int
    spent: JsonObject

    @property
    def startup_seconds(self) -> float:
        """Sum over the steps."""
        return float(sum(value for name, value in self.spent.items() if name.endswith("_seconds")))


@dataclass(frozen=True, kw_only=True)
class SlotRetired(Event):
    """A slot is retired."""

    slot: int
    error: str


@dataclass(frozen=True, kw_only=True)
class FlopsCounted(Event):
    """FLOPs by trial, counted before any has run."""

    is_durable = True
    flops: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Suggested(Event):
    """A search has drawn a configuration. An entry of the claims has it, and no journal."""

    search: str  # its key
    values: Row
    params: Row
    attrs: JsonObject


_KINDS: Final[dict[str, type[Event]]] = {
    "session": SessionStarted,
    "ray_up": RayStarted,
    "slot_up": SlotStarted,
    "slot_down": SlotRetired,
    "work": FlopsCounted,
    "started": Started,
    "resumed": Resumed,
    "epoch": Epoch,
    "halved": MicroBatchHalved,
    "reread": Reread,
    "released": Released,
    "left": Left,
    "budget": BudgetReached,
    **dict.fromkeys(ENDED, Ended),
}
_STATUS: Final = {status.value: status for status in ENDED}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_FIELDS: Final = {
    kind: tuple(each.name for each in fields(kind) if each.name not in ("time", "status")) for kind in _NAMES
}
_COMPUTED: Final = ("status", "spent")  # by `decode`
# Fields that every event of a kind has, with their types.
_REQUIRED: Final[dict[type[Event], tuple[tuple[str, Any], ...]]] = {
    kind: tuple(
        (each.name, (int, float) if each.type is float else get_origin(each.type) or each.type)
        for each in fields(kind)
        if each.name == "time" or (each.default is MISSING and each.name not in _COMPUTED)
    )
    for kind in _NAMES
}


def encode(event: Event) -> JsonObject:
    """The JSON object of an event."""
    kind = type(event)
    name = event.status.value if isinstance(event, Ended) else _NAMES[kind]
    content = {name: getattr(event, name) for name in _FIELDS[kind] if getattr(event, name) is not None}
    spent = content.pop("spent", {})
    return {"event": name, "time": event.time, **content, **spent}


def decode(record: JsonObject) -> Event | None:
    """The event of a JSON object; None if this version does not know its kind.

    Fields are set without `__init__`, whose calls would take a third of the time to read a large journal.

    Raises:
        ValueError: the event lacks a field, or cannot have such a value.
    """
    kind = _KINDS.get(str(record["event"]))
    if kind is None:
        return None
    for name, of_type in _REQUIRED[kind]:
        if not isinstance(record.get(name), of_type):
            raise ValueError(f"{record['event']}: {name} is missing")
    if kind is Resumed and record["checkpoint"].keys() != set(CheckpointFile._fields):
        raise ValueError("resumed: a field of the checkpoint is missing")
    event = kind.__new__(kind)
    values = {**record}
    object.__setattr__(event, "__dict__", values)
    if kind is Ended:
        values["status"] = _STATUS[record["event"]]
    elif kind is Reread and "outcome" in record:
        values["outcome"] = TrialStatus(record["outcome"])
    elif kind is SlotStarted or kind is RayStarted:
        values["spent"] = {name: value for name, value in record.items() if name not in ("event", "time", "slot")}
    return event


def journal_files(folder: Path) -> list[Path]:
    """The files of a sweep's journal: one per session."""
    return sorted((folder / SESSIONS).glob("*.jsonl"))


def order_job_of(session: str) -> int:
    """The number of its job in the sweep, with which the name of a session begins."""
    return int(session.partition("-")[0])


def session_name(order_job: int) -> str:
    """A new name for a run of the driver: number of the sweep's job, ID and restarts of the Slurm job, a token."""
    holder = Holder.this_process()
    return f"{order_job}-{holder.job or 'local'}.{holder.restarts}-{secrets.token_hex(4)}"


Recorded = TypeVar("Recorded", bound=Event)


class Journal(EventLog):
    """Appends to the journal of a session; get one from `of_new_session`."""

    @classmethod
    @contextmanager
    def of_new_session(cls, folder: Path, *, order_job: int = 0) -> Iterator[Self]:
        """The journal of a new session of the sweep in `folder`. A session without events leaves no file.

        Raises:
            StorageError: it cannot be written.
        """
        path = folder / SESSIONS / f"{session_name(order_job)}.jsonl"
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            journal = cls(path)
        try:
            yield journal
        finally:
            is_empty = journal.is_empty
            journal.close()
            if is_empty:
                path.unlink(missing_ok=True)

    @property
    def session(self) -> str:
        """The name of the session."""
        return self.path.name.removesuffix(".jsonl")

    @property
    def order_job(self) -> int:
        """The number of this job in a sweep with several."""
        return order_job_of(self.session)

    def leave(self, *, has_claims: bool = False) -> None:
        """Record the end of the session, unless it has recorded and claimed nothing: it gives back its claims."""
        if has_claims or not self.is_empty:
            with suppress(StorageError):  # an error that has ended the session is more important
                self.record(Left())

    def record(self, event: Recorded, *, then: Callable[[], object] | None = None) -> Recorded:
        """Append an event, and return it with the time now. With `then`, a durable event is synced in a thread."""
        stamped = replace(event, time=round(read_clock(), 4))
        self.write(encode(stamped), durable=event.is_durable, then=then)
        return stamped
