"""Messages of a running trial; Ray pickles them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from trainyard.config.trial_status import TrialStatus
from trainyard.programs.metric_rows import Row
from trainyard.programs.progress import Progress


@dataclass(frozen=True)
class EpochReported:
    """A row of metrics. The trial waits for the answer, which stops or continues it."""

    row: Row  # with its `epoch`
    warning: str = ""  # about how metrics are read
    first_step_time: float | None = None  # of a training: Unix seconds


ReportEpoch = Callable[[EpochReported], bool]  # returns whether the trial stops early


@dataclass(frozen=True, kw_only=True)
class TrialEnded:
    """How an attempt at a trial ended. The journal's event has the fields of the same names."""

    status: TrialStatus
    metrics: Row = field(default_factory=dict)  # the last value of each, unless something else ended it
    error: str = ""  # why it did not finish
    seconds: float | None = None
    traceback: str = ""
    warning: str = ""  # about how metrics are read
    energy_kwh: float | None = None  # of its GPUs, as NVML counts it; of a shared GPU, its share
    interrupts_itself: bool = False  # a function that nothing asked to end
    has_saved: bool = False  # a program that was interrupted: another checkpoint than it resumed from
    precision: str | None = None  # of a training by Trainyard's own loop
    # Of a command:
    exit_code: int | None = None  # or minus the signal that ended it
    output: str | None = None  # the path of its whole output
    tail: str | None = None  # the last lines of it
    hidden_error: str = ""  # at its end, although the exit code is 0
    progress: Progress | None = None  # the last that it printed
    units: dict[str, str] | None = None  # as in `MetricsCollector`; None if no metric has one
    unread: dict[str, str] = field(default_factory=dict)  # as in `MetricsCollector`
    metrics_digest: str | None = None  # of the `metrics` section that its output was read with


def timeout_error(seconds: float) -> str:
    """The error of a trial that ran longer than its timeout."""
    return f"it exceeded timeout_minutes ({seconds / 60:g})"
