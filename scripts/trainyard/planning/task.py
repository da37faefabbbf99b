"""Tasks: the trials that the packer runs, and the source of those that a search draws."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from trainyard.config.train import Train
from trainyard.config.user_programs import UserProgram
from trainyard.planning.attempts import ReportedEpochs
from trainyard.programs.command import CheckpointFile


@dataclass(frozen=True)
class Task:
    """A pending trial with everything that the packer needs to run it."""

    trial: str
    spec: Train | UserProgram
    values: dict[str, Any]
    generation: int
    earlier_attempts: int
    expected_seconds: float | None = None  # None without evidence
    bad_checkpoints: tuple[CheckpointFile, ...] = ()  # attempts that resumed from these failed
    min_seconds: float | None = None  # exceeded with 95 % probability
    has_failed: bool = False  # at the last attempt of an earlier run
    earlier_epochs: tuple[ReportedEpochs, ...] = ()  # of earlier attempts, if rows of metrics are numbered

    @property
    def is_command(self) -> bool:
        """Whether it runs a user's command."""
        return isinstance(self.spec, UserProgram) and self.spec.command is not None

    @property
    def is_function(self) -> bool:
        """Whether it calls a user's function."""
        return isinstance(self.spec, UserProgram) and self.spec.function is not None

    @property
    def folder_name(self) -> str:
        """The folder of a user's program."""
        return folder_name(self.trial, self.generation)


def folder_name(trial: str, generation: int) -> str:
    """The name of the folder of a user's program; `retrain` starts a new one."""
    return f"{trial}-{generation}" if generation else trial


def output_name(attempt: int | Literal["*"]) -> str:
    """The name of the file in that folder with the output of an attempt, or the pattern of all of them."""
    return f"output-{attempt}.log"


class TaskSource(Protocol):
    """A source of tasks that are not known beforehand."""

    @property
    def remaining(self) -> int:
        """The number of tasks that it can still return."""

    def next_task(self) -> Task | None:
        """The next task; None if none is left."""
