"""What users request of a sweep while its jobs run: entries of the log of claims, which each job reads between trials.

`trainyard control` appends all of them but `config` and `end`, which each run appends (`added_trials.py`).
"""

from dataclasses import dataclass, field
from typing import Final

CANCELLED: Final = "a user has cancelled the trial"  # why an attempt was interrupted


@dataclass(frozen=True)
class UserRequest:
    """A request of a user."""

    kind: str  # cancel, restore, first, pause, resume, jobs, config or end
    time: float  # Unix seconds
    trial: str = ""
    jobs: int | None = None  # at most
    config: str = ""  # name of its copy in the results
    run: str | None = None  # of Snakemake, as in `SessionStarted`


@dataclass
class UserRequests:
    """The requests of a sweep that hold now."""

    cancelled: set[str] = field(default_factory=set)  # trials that are not run
    first: set[str] = field(default_factory=set)  # trials that start before others
    paused_at: float | None = None  # since when no trial starts, in Unix seconds
    jobs: int | None = None  # that run trials at the same time, at most
    configs: list[tuple[int, UserRequest]] = field(default_factory=list)  # of all runs of Snakemake, with their entries
    ended: set[str | None] = field(default_factory=set)  # runs of Snakemake that have ended

    def add(self, entry: int, request: UserRequest) -> None:
        """Apply a later request."""
        match request:
            case UserRequest(kind="cancel", trial=trial):
                self.cancelled.add(trial)
                self.first.discard(trial)
            case UserRequest(kind="restore", trial=trial):
                self.cancelled.discard(trial)
            case UserRequest(kind="first", trial=trial):
                self.first.add(trial)
            case UserRequest(kind="pause", time=time):
                self.paused_at = self.paused_at or time
            case UserRequest(kind="resume"):
                self.paused_at = None
            case UserRequest(kind="jobs", jobs=jobs):
                self.jobs = jobs
            case UserRequest(kind="config"):
                self.configs.append((entry, request))
            case UserRequest(kind="end", run=run):
                self.ended.add(run)

    @property
    def has_last_run_ended(self) -> bool:
        """Whether the last run of Snakemake that has worked on the sweep has ended as it should, or in an error."""
        return any(request.run in self.ended for _, request in self.configs[-1:])

    def entry_of(self, run: str | None) -> int | None:
        """The entry with the config of a run of Snakemake, if there is one."""
        return next((entry for entry, request in self.configs if run and request.run == run), None)
