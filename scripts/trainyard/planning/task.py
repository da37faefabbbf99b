"""A trial for the driver to run, and the names of the folders and files that its attempts leave."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainyard.config.trial_status import TrialStatus
from trainyard.config.trials import Spec, Values
from trainyard.config.user_programs import UserProgram
from trainyard.planning.attempts import Attempt, epochs_before, reported_epochs
from trainyard.programs.runner import CheckpointFile, failed_by_itself


@dataclass(frozen=True)
class Task:
    """A pending trial with everything that is needed to run it."""

    trial: str
    spec: Spec
    values: Values
    generation: int
    earlier: tuple[Attempt, ...] = ()  # all attempts so far, oldest first
    expected_seconds: float | None = None  # None without evidence
    min_seconds: float | None = None  # exceeded with 95 % probability
    max_seconds: float | None = None  # exceeded with 5 % probability
    has_failed: bool = False  # at the last attempt of an earlier run
    takeover: int | None = None  # as in `Started`

    @property
    def bad_checkpoints(self) -> tuple[CheckpointFile, ...]:
        """The checkpoints from which attempts resumed that failed."""
        failed = (each for each in self.earlier if each.outcome == TrialStatus.FAILED)
        return tuple(each.resumed for each in failed if each.resumed and failed_by_itself(each.error))

    def epochs_before(self, checkpoint: CheckpointFile) -> float:
        """The number of epochs up to a checkpoint of an earlier attempt, if the program does not number them."""
        same = [each for each in self.earlier if each.generation == self.generation]
        return epochs_before(reported_epochs(same), checkpoint)

    @property
    def is_command(self) -> bool:
        """Whether it runs a user's command."""
        return isinstance(self.spec, UserProgram) and self.spec.command is not None

    @property
    def folder_name(self) -> str:
        """The folder of a user's program."""
        return folder_name(self.trial, self.generation, self.takeover)


def folder_name(trial: str, generation: int, takeover: int | None) -> str:
    """The name of the folder of a trial's files, and of that of its checkpoints; `retrain` starts new ones.

    So does a takeover from a job that may still write into the old ones.
    """
    return (f"{trial}-{generation}" if generation else trial) + (f"~{takeover}" if takeover else "")


def output_name(attempt: int | Literal["*"]) -> str:
    """The name of the file in that folder with the output of an attempt, or the pattern of all of them."""
    return f"output-{attempt}.log"


def output_file(sweep_folder: Path, attempt: Attempt) -> Path:
    """The file with the output of a user's program."""
    name = folder_name(attempt.trial, attempt.generation, attempt.takeover)
    return sweep_folder / "trials" / name / output_name(attempt.number)
