"""The journal of a sweep: its events, their encoding as JSON lines, and how a driver records them.

Each run of a driver, a session, appends a line per event to a file of its own, `sessions/<session>.jsonl`; lines are
never rewritten. Everything known about trials is a fold over these files and the log of claims (`attempts.Fold`): the
pending set, `trials.csv`, `timeline.csv`, the Gantt chart, the live status and the evidence for the next plan. Before,
there was one file for all runs, `journal.jsonl`, which is still read.

    {"event":"started","time":1730000000.0,"trial":"3f2a...","attempt":1,"generation":0,"values":{"lr":0.1},...}

Fields of an event are named as in the journal, where they are kept in the order of their definition.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self, TypeVar, get_origin

from trainyard.config.trial_status import ENDED, TrialStatus
from trainyard.programs.runner import CheckpointFile
from trainyard.utils.errors import StorageError, storage_errors
from trainyard.utils.event_log import EventLog, read_clock
from trainyard.utils.locks import Holder

OLD_JOURNAL: Final = "journal.jsonl"  # of all runs, until each had its own
SESSIONS: Final = "sessions"
Row = dict[str, Any]  # metrics by name


class Location(NamedTuple):
    """Where an attempt runs."""

    job: str = ""  # Slurm's ID, or "local"
    node: str = ""  # of a trial on several, all, separated by commas
    gpu: str = ""  # of its first node, if there are several
    slot: int | str = ""
    gpu_model: str = ""  # as Slurm names the type
    device: str = ""  # "cpu" or the GPU's full name


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened in a sweep. A field that old journals lack has a default."""

    is_durable: ClassVar[bool] = False  # whether it is synced to the disk, see `Journal.record`
    optional: ClassVar[frozenset[str]] = frozenset()  # fields that are omitted from the journal if they are None
    time: float = 0.0  # Unix seconds, set when the event is recorded


@dataclass(frozen=True, kw_only=True)
class TrialEvent(Event):
    """An event of one attempt at a trial."""

    trial: str
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Started(TrialEvent):
    """An attempt starts on a slot."""

    optional = frozenset({"expected_seconds", "takeover"})
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

    checkpoint: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Epoch(TrialEvent):
    """A row of metrics. A second row of the same epoch completes the first."""

    optional = frozenset({"first_step_time"})
    metrics: Row
    first_step_time: float | None = None  # Unix seconds


@dataclass(frozen=True, kw_only=True)
class MicroBatchHalved(TrialEvent):
    """The micro-batch did not fit into the GPU's memory and was halved."""

    micro_batch: int
    accumulation: int


@dataclass(frozen=True, kw_only=True)
class Ended(TrialEvent):
    """An attempt ends; `status` names the event in the journal, and END_FIELDS lists what it records."""

    is_durable = True
    status: TrialStatus
    metrics: Row | None = None
    error: str | None = None
    seconds: float | None = None
    why: str | None = None  # the trial was stopped early
    rule: dict[str, Any] | None = None  # that stopped it early, as in `Stop.rule`
    early: str | None = None  # why the program was stopped before it diverged
    precision: str | None = None
    exit_code: int | None = None
    output: str | None = None  # file of the program's output
    tail: str | None = None
    progress: dict[str, Any] | None = None  # the last that the program printed, as `Progress`
    metrics_digest: str | None = None  # `heard` in the journal: digest of the `metrics` rules that read the output
    log: str | None = None  # file with details
    failure: str | None = None  # how the attempt failed after it had diverged
    retried: bool | None = None
    ended: float | None = None  # Unix seconds, if a later driver records the end
    energy_kwh: float | None = None  # of its GPUs


_PROGRAM: Final = ("precision", "exit_code", "output", "tail", "progress", "metrics_digest", "energy_kwh")
# In the journal's order; None is omitted, except for `seconds`.
END_FIELDS: Final[dict[TrialStatus, tuple[str, ...]]] = {
    TrialStatus.FINISHED: ("metrics", "seconds", *_PROGRAM),
    TrialStatus.STOPPED: ("metrics", "seconds", "why", "rule", *_PROGRAM),
    TrialStatus.DIVERGED: ("error", "seconds", "early", "rule", *_PROGRAM, "failure", "log"),
    TrialStatus.UNREADABLE: ("error", "seconds", "log", *_PROGRAM),
    TrialStatus.FAILED: ("error", "seconds", *_PROGRAM, "log", "retried"),
    TrialStatus.INTERRUPTED: ("error", *_PROGRAM, "ended"),
}


@dataclass(frozen=True, kw_only=True)
class Reread(TrialEvent):
    """The kept output of an ended attempt was read with other `metrics` rules; the last such event counts.

    It is the one with the highest number, and not that with the latest time: clocks of nodes differ.

    With `seconds`, the attempt has finished: its program had ended by itself while its driver was stopped or killed.
    """

    optional = frozenset({"seconds", "progress"})
    outcome: str
    error: str
    rows: list[Row]
    metrics: Row
    metrics_digest: str  # `heard` in the journal
    number: int = 0  # one more than that of the last such event of the attempt that its author had read
    seconds: float | None = None
    progress: dict[str, Any] | None = None  # with `seconds`, as in `Ended`


@dataclass(frozen=True, kw_only=True)
class Released(Event):
    """A session gives a trial back that it has claimed: another one may run it."""

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
    budget: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SessionStarted(Event):
    """The driver starts. Times are in seconds."""

    is_durable = True
    optional = frozenset({"cpus", "run", "code", "code_digest", "versions", "config"})
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
    gpus_per_trial: float | None = None
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
    spent: dict[str, Any]

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
class GpuFraction(Event):
    """The measured number of trials that share a GPU.

    `uses` holds the largest GPU memory of a trial that ran alone (in old journals, the memory of each). `throughput` is
    that of a GPU relative to one trial at a time, by trials at a time, and `why` the reason in words.
    """

    is_durable = True
    optional = frozenset({"throughput", "why", "mps", "gpu_model"})
    gpus_per_trial: float
    slots: int
    uses: list[dict[str, Any]]
    throughput: dict[str, float] | None = None
    why: str | None = None
    mps: str | None = None  # as configured, unless "off"; with another value, the measurement does not count
    gpu_model: str | None = None  # on which it was measured, as Slurm names the type; it counts on no other

    def slowdown(self, gpus_per_trial: float) -> float | None:
        """Of a trial with this share of a GPU, relative to a trial that runs alone; None if it was not measured."""
        count = round(1 / gpus_per_trial) if gpus_per_trial else 0  # none on CPUs
        throughput = (self.throughput or {}).get(str(count))
        return None if throughput is None else count / throughput


@dataclass(frozen=True, kw_only=True)
class JobsSubmitted(Event):
    """Snakemake submits the jobs of the sweep to Slurm, as predicted in `queue_forecast.py`, in seconds from now."""

    is_durable = True
    first_start_seconds: float | None = None  # of the first job, at the latest; None if Slurm does not say
    end_seconds: float | None = None  # of the last trial; None also if no durations are known


@dataclass(frozen=True, kw_only=True)
class Suggested(Event):
    """A search has drawn a configuration."""

    is_durable = True
    search: str  # its key
    values: dict[str, Any]
    params: dict[str, Any]
    attrs: dict[str, Any]


_KINDS: Final[dict[str, type[Event]]] = {
    "session": SessionStarted,
    "ray_up": RayStarted,
    "slot_up": SlotStarted,
    "slot_down": SlotRetired,
    "work": FlopsCounted,
    "share": GpuFraction,
    "submitted": JobsSubmitted,
    "suggested": Suggested,
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
_FIELDS: Final = {kind: tuple(each.name for each in fields(kind) if each.name != "time") for kind in _NAMES}
_COMPUTED: Final = ("status", "spent")  # by `decode`
_WRITTEN: Final = {"metrics_digest": "heard"}  # fields with another name in the journal
# Fields that every event of a kind has, with their types.
_REQUIRED: Final[dict[type[Event], tuple[tuple[str, Any], ...]]] = {
    kind: tuple(
        (_WRITTEN.get(each.name, each.name), (int, float) if each.type is float else get_origin(each.type) or each.type)
        for each in fields(kind)
        if each.name == "time" or (each.default is MISSING and each.name not in _COMPUTED)
    )
    for kind in _NAMES
}


def encode(event: Event) -> dict[str, Any]:
    """The JSON object of an event."""
    match event:
        case Ended():
            name, names = event.status.value, ("trial", "attempt", *END_FIELDS[event.status])
            content = {each: getattr(event, each) for each in names}
            content = {each: value for each, value in content.items() if value is not None or each == "seconds"}
        case SlotStarted(slot=slot, spent=spent):
            name, content = "slot_up", {"slot": slot, **spent}
        case RayStarted(spent=spent):
            name, content = "ray_up", dict(spent)
        case _:
            name, content = _NAMES[type(event)], {each: getattr(event, each) for each in _FIELDS[type(event)]}
            content = {
                each: value for each, value in content.items() if value is not None or each not in event.optional
            }
    return {"event": name, "time": event.time, **{_WRITTEN.get(each, each): value for each, value in content.items()}}


def decode(record: dict[str, Any]) -> Event | None:
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
    if kind is Reread:
        TrialStatus(record["outcome"])
    elif kind is Resumed and record["checkpoint"].keys() != set(CheckpointFile._fields):
        raise ValueError("resumed: a field of the checkpoint is missing")
    event = kind.__new__(kind)
    values = {**record}
    object.__setattr__(event, "__dict__", values)
    if "heard" in record:
        values["metrics_digest"] = record["heard"]
    if kind is Ended:
        values["status"] = _STATUS[record["event"]]
    elif kind is SlotStarted or kind is RayStarted:
        values["spent"] = {name: value for name, value in record.items() if name not in ("event", "time", "slot")}
    return event


def journal_files(folder: Path) -> list[Path]:
    """The files of a sweep's journal: that of old versions, if any, and one per session."""
    old = folder / OLD_JOURNAL
    return [*([old] if old.exists() else ()), *sorted((folder / SESSIONS).glob("*.jsonl"))]


def order_job_of(session: str) -> int:
    """The number of its job in the sweep, with which the name of a session begins; 0 for runs of old versions."""
    return int(session.partition("-")[0] or 0)


def session_name(order_job: int) -> str:
    """A new name for a run of the driver: number of the sweep's job, ID and restarts of the Slurm job, a token."""
    holder = Holder.this_process()
    return f"{order_job}-{holder.job or 'local'}.{holder.restarts}-{holder.token[:8]}"


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
