"""Messages between the driver and the workers of the slots; Ray pickles them."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trainyard.config.config import Data
from trainyard.config.train import ProfiledSteps, Train
from trainyard.config.user_programs import GRACE_SECONDS, Metrics, UserProgram
from trainyard.packing.worker_gpu import GpuUse
from trainyard.planning.journal import MicroBatchHalved, Resumed
from trainyard.planning.sweep_state import Task, output_name
from trainyard.programs.runner import CheckpointFile
from trainyard.programs.trial_messages import EpochReported, TrialEnded

# What a worker imports before its first trial. Modules of a user's own code are imported by the trials.
WORKER_MODULES: Final = ("trainyard.packing.worker",)
# Also, if trials run Trainyard's loop. An optimizer's first step imports the compiler, whether it compiles or not.
TRAINING_MODULES: Final = ("torch", "trainyard.training.trainer", "torch._dynamo")
# Files in the folder of a launch, between a worker and the ranks of a training on several GPUs.
TRIAL: Final = "trial.json"  # what to train
EPOCHS: Final = "epochs.jsonl"  # a row of metrics each
END: Final = "end.json"  # how it ended


@dataclass(frozen=True)
class WorkerSetup:
    """Settings that all trials of a sweep share."""

    folder: Path  # the sweep's, absolute
    data: Data
    threads: int
    is_training: bool = True  # whether trials run Trainyard's own training loop
    profile: ProfiledSteps | None = None  # of the trainings
    is_deterministic: bool = False  # whether one of them may be `deterministic`
    dataset: Path | None = None
    gpu_share: float = 1.0  # of a GPU, for a trial: below 1, the limit of its GPU memory; 0: it sees no GPU
    nodes: int = 1  # of a trial, each with so many GPUs
    metrics: Metrics | None = None
    checkpoint: str | None = None  # pattern of the files that a command can resume from
    resume: str | None = None  # the option that makes a command resume
    can_resume: bool = True  # whether an interrupted trial resumes from a checkpoint
    timeout_seconds: float | None = None
    grace_seconds: float = 0.0  # from SIGTERM to SIGKILL, for a command
    end_seconds: float = GRACE_SECONDS  # for a trial to save its state when the sweep is interrupted
    cwd: str = ""  # where users' programs run
    trial_workdirs: bool = False  # whether each trial runs in its own folder instead
    python: Path | None = None  # the interpreter of the environment in which commands run, if it is not the user's

    @property
    def gpus(self) -> int:
        """The number of GPUs that a trial sees on each of its nodes; 0 for none."""
        return math.ceil(self.gpu_share)

    @property
    def trains_here(self) -> bool:
        """Whether a worker runs Trainyard's own training loop; with several GPUs, it starts a rank for each."""
        return self.is_training and self.gpus <= 1 and self.nodes == 1

    def trial_folder(self, task: Task) -> Path:
        """The folder for the files that a user's program leaves."""
        return self.folder / "trials" / task.folder_name

    def checkpoint_folder(self, task: Task) -> Path:
        """The folder for the checkpoints of a trial. It is removed when the trial has finished."""
        takeover = f"~{task.takeover}" if task.takeover else ""
        return self.folder / "checkpoints" / f"{task.trial}-{task.generation}{takeover}"

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
class TrialRequest:
    """A trial for a worker to run."""

    spec: Train | UserProgram
    trial: str
    attempt: int
    folder: Path
    checkpoints: Path
    earlier_outputs: tuple[Path, ...] = ()  # of the attempts before, the latest first
    taken_over: tuple[Path, Path] | None = None  # folders for files and for checkpoints, to copy checkpoints from
    deadline: float = math.inf  # Unix seconds at which to stop
    bad_checkpoints: tuple[CheckpointFile, ...] = ()  # attempts that resumed from these have failed
    measures_gpu: bool = False  # whether to measure its GPU memory and utilization

    @property
    def label(self) -> str:
        """Names the attempt, to end it alone."""
        return attempt_label(self.trial, self.attempt)


def attempt_label(trial: str, attempt: int) -> str:
    """What `request_stop_of_workers` calls an attempt."""
    return f"{trial}/{attempt}"


@dataclass(frozen=True)
class WorkerStarted:
    """Where a worker runs, and how long its start took."""

    job: str
    node: str  # of a trial on several, all, separated by commas
    gpu: str  # the IDs of its GPUs, separated by commas
    device: str  # the model of its GPU, or "cpu"
    startup: dict[str, Any]  # fields of the journal's event `slot_up`: seconds per step, and `copy`

    @property
    def copy_message(self) -> str:
        """How the dataset was copied to this node; "" if it was not."""
        return str(self.startup.get("copy", ""))


@dataclass(frozen=True, kw_only=True)
class TrainingEnded(TrialEnded):
    """How a training by Trainyard's own loop ended."""

    precision: str | None = None
    gpu_use: GpuUse | None = None  # if it was measured


TrialMessage = EpochReported | Resumed | MicroBatchHalved | TrialEnded
