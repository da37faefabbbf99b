"""What a trial runs, as the process of a slot sees it. Each kind of sweep has a module in `kinds/`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.cluster.stop_request import StopRequest
from trainyard.config.sweep import Sweep
from trainyard.packing.messages import Assignment, TrialMessage, WorkerSetup
from trainyard.programs.trial_messages import TrialEnded

if TYPE_CHECKING:  # it imports numpy, which reads its number of threads: a worker sets that first
    from trainyard.planning.plan import Plan

Report = Callable[[TrialMessage], bool]  # returns whether early stopping ends the trial


class TrialKind(ABC):
    """Runs trials of one kind. A worker makes one, lets it prepare, and then lets it run one trial after another."""

    def __init__(self, setup: WorkerSetup, stop_request: StopRequest) -> None:
        self.setup = setup
        self.stop_request = stop_request
        self.resources = ExitStack()  # held until the process ends
        self.seconds_before = 0.0  # of the trial that runs, in the attempts that it continues

    @classmethod
    def preload(cls, sweep: Sweep) -> Sequence[str]:
        """The modules that workers import while Ray starts."""
        return ()

    @classmethod  # noqa: B027  (most kinds check nothing)
    def check_job(cls, sweep: Sweep, dataset: Path | None) -> None:
        """Check that the trials of a sweep can run in this job, on a staged dataset.

        Raises:
            UserError: they cannot.
        """

    @classmethod
    def count_flops(cls, plan: "Plan", dataset: Path | None, *, seconds: float) -> dict[str, float]:
        """The FLOPs of the pending trials, of which their order follows before any has run; {} if it does not."""
        return {}

    @abstractmethod
    def prepare(self) -> tuple[str, dict[str, Any]]:
        """Prepare for trials; returns the device, and the seconds of each step."""

    @abstractmethod
    def run(self, assignment: Assignment, report: Report) -> TrialEnded:
        """Run a trial. An exception is a failure of the trial, or that it has diverged."""


def find_kind(sweep: Sweep) -> type[TrialKind]:
    """What the trials of a sweep run in the process of a slot."""
    kind: type[TrialKind] = import_module(f"trainyard.kinds.{sweep.trial_kind}").KIND
    return kind
