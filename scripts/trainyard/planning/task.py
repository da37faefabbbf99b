"""What packing works with: trials to run, where they come from, and the slots that they run on."""

from dataclasses import dataclass
from typing import Any, Protocol

from trainyard.config.train import Train
from trainyard.config.user_programs import UserProgram
from trainyard.programs.command import CheckpointFile


@dataclass(frozen=True)
class Task:
    """A pending trial as the driver hands it out."""

    trial: str
    spec: Train | UserProgram
    values: dict[str, Any]
    generation: int
    earlier_attempts: int
    expected_seconds: float | None = None  # None before there is evidence
    bad_checkpoints: tuple[CheckpointFile, ...] = ()  # attempts that went on from these have failed by themselves
    least_seconds: float | None = None  # that it hardly falls short of

    @property
    def folder_name(self) -> str:
        """Of what a user's program leaves."""
        return folder_name(self.trial, self.generation)


def folder_name(trial: str, generation: int) -> str:
    """Of what a user's program leaves: another one when it is trained anew on purpose."""
    return f"{trial}-{generation}" if generation else trial


def output_name(attempt: int) -> str:
    """Of the file in that folder that holds what an attempt has said."""
    return f"output-{attempt}.log"


class TaskSource(Protocol):
    """Where tasks come from that are not known beforehand."""

    @property
    def open(self) -> int:
        """How many it can still give."""

    def next_task(self) -> Task | None:
        """One, or None if none is left."""
