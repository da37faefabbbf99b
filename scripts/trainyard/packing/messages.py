"""Messages between the driver and the workers of the slots; Ray pickles them."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from trainyard.config.config import Data
from trainyard.config.sweep import Sweep
from trainyard.planning.journal import MicroBatchHalved, Resumed
from trainyard.planning.task import Task, output_name
from trainyard.programs.runner import CheckpointFile
from trainyard.programs.trial_messages import EpochReported, TrialEnded
from trainyard.utils.environment_variables import Variables

# What a worker imports before its first trial. Modules of a user's own code are imported by the trials.
WORKER_MODULES: Final = ("trainyard.packing.worker", "trainyard.cluster.telemetry")


@dataclass(frozen=True)
class WorkerSetup:
    """Settings that all trials of a sweep share."""

    sweep: Sweep  # with the slots of this job
    folder: Path  # of the sweep, absolute
    data: Data
    is_deterministic: bool = False  # whether a training may be `deterministic`
    dataset: Path | None = None
    cwd: str = ""  # where users' programs run, unless each trial runs in its own folder
    variables: Variables = field(default_factory=dict)  # that `setup` has changed
    python: Path | None = None  # the interpreter of the environment in which commands run, if it is not the user's

    @property
    def threads(self) -> int:
        """Threads of a trial on each of its nodes."""
        return self.sweep.slots.cpus_per_trial

    @property
    def nodes(self) -> int:
        """Nodes of a trial."""
        return self.sweep.slots.nodes_per_trial

    @property
    def gpu_share(self) -> float:
        """GPUs of a trial on each of its nodes: below 1, the limit of its GPU memory; 0: it sees no GPU."""
        return self.sweep.slots.node_share

    @property
    def gpus(self) -> int:
        """The number of GPUs that a trial sees on each of its nodes; 0 for none."""
        return math.ceil(self.gpu_share)

    def trial_folder(self, task: Task) -> Path:
        """The folder for the files that a user's program leaves."""
        return self.folder / "trials" / task.folder_name

    def checkpoint_folder(self, task: Task) -> Path:
        """The folder for the checkpoints of a trial. It is removed when the trial has finished."""
        return self.folder / "checkpoints" / task.folder_name

    def earlier_outputs(self, task: Task) -> tuple[Path, ...]:
        """The outputs of the attempts before, the latest first."""
        return tuple(
            self.trial_folder(replace(task, takeover=each.takeover)) / output_name(each.number)
            for each in reversed(task.earlier)
            if each.generation == task.generation
        )

    def taken_over(self, task: Task) -> tuple[Path, Path] | None:
        """The folders of the last attempt before a takeover, for its files and its checkpoints; None without one."""
        others = (each for each in reversed(task.earlier) if each.takeover != task.takeover)
        before = next((each for each in others if each.generation == task.generation), None)
        if before is None:
            return None
        earlier = replace(task, takeover=before.takeover)
        return self.trial_folder(earlier), self.checkpoint_folder(earlier)


@dataclass(frozen=True)
class Assignment:
    """A trial that a worker is to run."""

    spec: Any  # what its kind runs
    trial: str
    attempt: int
    folder: Path
    checkpoints: Path
    earlier_outputs: tuple[Path, ...] = ()  # of the attempts before, the latest first
    taken_over: tuple[Path, Path] | None = None  # folders for files and for checkpoints, to copy checkpoints from
    deadline: float = math.inf  # Unix seconds at which to stop
    bad_checkpoints: tuple[CheckpointFile, ...] = ()  # attempts that resumed from these have failed


@dataclass(frozen=True)
class WorkerStarted:
    """Where a worker runs, and how long its start took."""

    process: int
    job: str
    node: str  # of a trial on several, all, separated by commas
    gpu: str  # the IDs of its GPUs, separated by commas
    device: str  # the model of its GPU, or "cpu"
    startup: dict[str, Any]  # fields of the journal's event `slot_up`: seconds per step, and `copy`

    @property
    def copy_message(self) -> str:
        """How the dataset was copied to this node; "" if it was not."""
        return str(self.startup.get("copy", ""))


TrialMessage = EpochReported | Resumed | MicroBatchHalved | TrialEnded
